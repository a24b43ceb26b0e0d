"""The processes that a process has started."""

import subprocess


def _listed(*columns: str) -> list[list[str]]:
    """What `ps` says of all processes."""
    shown = subprocess.run(["ps", "-eo", ",".join(columns)], capture_output=True, text=True, check=True).stdout
    return [line.split(maxsplit=len(columns) - 1) for line in shown.splitlines()[1:]]


def descendants(process: int) -> set[int]:
    """Those that it has started, and those that they have."""
    parents = {int(child): int(parent) for child, parent in _listed("pid", "ppid")}
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {process}} - found:
        found |= more
    return found


def workers_of(process: int) -> set[int]:
    """Of its descendants those that have started none themselves, but for Python's keeper of shared things."""
    mine = descendants(process)
    with_children = {int(parent) for _, parent in _listed("pid", "ppid")}
    keepers = {int(one) for one, words in _listed("pid", "args") if "resource_tracker" in words}
    return mine - with_children - keepers


def living(processes: set[int]) -> set[int]:
    """Of these those that live still; one that is dead and waits to be buried does not."""
    dead = {int(one) for one, state in _listed("pid", "stat") if state.startswith("Z")}
    return processes & {int(one) for (one,) in _listed("pid")} - dead
