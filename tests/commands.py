"""Commands in processes of their own, which need not import torch again: they are forked from a clean server."""

import multiprocessing as mp
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from traceback import print_exc

PRELOADED = ["latebloom.cli", "latebloom.study", "latebloom.dry_run", "latebloom.studies.local", "torch._dynamo"]


def latebloom(*words: str | Path, cwd: Path | None = None, timeout: float = 120) -> CompletedProcess[str]:
    """Run a command as its own process in a folder, and return what it printed and its status."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    given = ["latebloom", *map(str, words)]
    with TemporaryDirectory() as place:
        process = context.Process(target=_run, args=(given, str(cwd or Path.cwd()), dict(os.environ), place))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise TimeoutError(" ".join(given))
        printed = [Path(place, name).read_text() for name in ("out", "err")]
    assert process.exitcode is not None
    return CompletedProcess(given, process.exitcode, *printed)


def _run(words: list[str], folder: str, environment: dict[str, str], place: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(place, name), os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    sys.path.insert(0, folder)  # as with python -m
    from latebloom.cli import main

    try:
        main()
    except SystemExit:
        raise
    except BaseException:
        print_exc()
        sys.exit(1)
