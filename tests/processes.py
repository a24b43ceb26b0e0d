"""The processes that a process has started, and the one that trains in a folder."""

import os
import subprocess
from pathlib import Path


def _parents_and_words() -> dict[int, tuple[int, str]]:
    """Every process, its parent and its command line, at one moment and uncut, however narrow the terminal."""
    command = ["ps", "-ww", "-eo", "pid=,ppid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = (line.split(maxsplit=2) for line in lines)
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}


def descendants(process: int) -> set[int]:
    """Those that it has started, and those that they have."""
    return _descendants(process, _parents_and_words())


def _descendants(process: int, listed: dict[int, tuple[int, str]]) -> set[int]:
    found: set[int] = set()
    while more := {one for one, (parent, _) in listed.items() if parent in found | {process}} - found:
        found |= more
    return found


def workers_of(process: int) -> set[int]:
    """Of its descendants those that have started none themselves, but for Python's keeper of shared things."""
    listed = _parents_and_words()
    with_children = {parent for parent, _ in listed.values()}
    keepers = {one for one, (_, words) in listed.items() if "resource_tracker" in words}
    return _descendants(process, listed) - with_children - keepers


def living(processes: set[int]) -> set[int]:
    """Of these those that live still; one that is dead and waits to be buried does not."""
    shown = subprocess.run(["ps", "-eo", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    states = dict(line.split() for line in shown.splitlines())
    return {one for one in processes if not states.get(str(one), "Z").startswith("Z")}


def trainer_of(folder: Path) -> int | None:
    """The process that holds the lock of a run."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(folder / ".lock"):
                return int(link.parts[2])
        except OSError:
            continue
    return None
