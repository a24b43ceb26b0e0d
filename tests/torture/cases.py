"""The cases of the campaign: each takes random numbers, an empty folder and what all share, and raises if a promise is
broken."""

import errno
import json
import math
import os
import random
import shutil
import signal
import string
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from browser import CHROMIUM, Browser
from safetensors.torch import load_file
from synthetic import evaluation, record, study

from latebloom import RunConfig, TrainedRun, run
from latebloom.config import with_overrides
from latebloom.engine.loop import run_stacked
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError, LatebloomError, NonFiniteLossError, ResultsError
from latebloom.report.page import study_page
from latebloom.report.study import read_sections
from latebloom.results.file import read_results, write_results


@dataclass(frozen=True)
class Shared:
    """A small configuration, its finished run and that of another seed, a results file, and a browser."""

    config: RunConfig
    finished: Path
    other: Path
    results: Path
    browser: Browser | None


def assert_same(found: Path, shared: Shared) -> None:
    """Compare a run with the one that nothing happened to, bit for bit."""
    for name in ("metrics.jsonl", "evaluation.json"):
        assert (found / name).read_bytes() == (shared.finished / name).read_bytes(), f"{name} differs"
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (found, shared.finished))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one), "weights differ"


def _train(shared: Shared, folder: Path) -> TrainedRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is damaged and restored
        return run(shared.config, folder, device="cpu")


def _forked(work: Callable[[], object]) -> int:
    """Start work in a process of its own, which ends with status 0, or 3 after a user's error."""
    child = os.fork()
    if child:
        return child
    status = 4
    try:
        work()
        status = 0
    except LatebloomError:
        status = 3
    finally:
        os._exit(status)


def _status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Kill a run at a random moment, up to five times, and let it finish; return how many kills met a live process."""
    kills = 0
    for _ in range(rng.randint(1, 5)):
        child = _forked(lambda: _train(shared, folder))
        time.sleep(rng.uniform(0, 0.4))
        os.kill(child, signal.SIGKILL)
        status = _status(child)
        assert status in (0, -signal.SIGKILL)
        kills += status == -signal.SIGKILL
    _train(shared, folder)
    assert_same(folder, shared)
    return kills


CALLS = ("fsync", "replace", "rename", "open", "mkdir", "scandir", "close")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EINTR)


@contextmanager
def failing(name: str, after: int, number: int | None):
    """Let a function of `os` fail once after so many calls, or end the process there if no error is given."""
    original, calls = getattr(os, name), 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            if number is None:
                os._exit(9)
            raise OSError(number, os.strerror(number), *arguments[:1])
        return original(*arguments, **options)

    setattr(os, name, call)
    try:
        yield
    finally:
        setattr(os, name, original)


def file_fault(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Let a call to the file system fail, or end the process there; afterwards the run continues."""
    name, number = rng.choice(CALLS), rng.choice((None, *ERRORS))
    after = rng.randrange(45)

    def work() -> None:
        with failing(name, after, number):
            _train(shared, folder)

    status = _status(_forked(work))
    assert status in (0, 3, 9), f"os.{name} call {after} with error {number}: neither finished nor one sentence"
    _train(shared, folder)
    assert_same(folder, shared)


def mutate(rng: random.Random, file: Path, other: Path | None = None) -> str:
    """Change a file in a random way, and return how."""
    content = bytearray(file.read_bytes())
    ways = ["flip", "cut", "empty", "remove", "zero", "insert", *(["swap"] if other else [])]
    way, place = rng.choice(ways), rng.randrange(max(1, len(content)))
    if way == "remove":
        file.unlink()
        return way
    if way == "swap" and other is not None:
        content = bytearray(other.read_bytes())
    elif way == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif way == "zero":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif way == "insert":
        content[place:place] = rng.randbytes(3)
    else:
        del content[0 if way == "empty" else place :]
    file.write_bytes(content)
    return way


def mutated_run(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Change a file of a finished run: it is refused, or its numbers are those that it had."""
    shutil.copytree(shared.finished, folder, dirs_exist_ok=True)
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    name = rng.choice(sorted(names))
    other = shared.other / name
    way = mutate(rng, folder / name, other if other.exists() else None)
    try:
        loaded = TrainedRun.load(folder)
    except LatebloomError:
        pass
    else:
        expected = TrainedRun.load(shared.finished)
        assert loaded.evaluation == expected.evaluation, f"{way} of {name}: another evaluation"
        ours, theirs = loaded.model.state_dict(), expected.model.state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), f"{way} of {name}: other weights"
    try:
        _train(shared, folder)
    except LatebloomError:
        return
    assert_same(folder, shared)


def mutated_checkpoint(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Change a file of the newest checkpoint of an unfinished run: the one before it continues the run."""
    shutil.copytree(shared.finished, folder, dirs_exist_ok=True)
    (folder / "result.json").unlink()
    newest = max((folder / "checkpoints").iterdir())
    mutate(rng, rng.choice(sorted(newest.iterdir())))
    _train(shared, folder)
    assert_same(folder, shared)


def mutated_results(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Change a results file: it is refused, or its content is the same."""
    file = Path(shutil.copy(shared.results, folder / "a.parquet"))
    way = mutate(rng, file)
    try:
        found = read_results([file])
    except ResultsError:
        return
    assert found == read_results([shared.results]), f"{way} of a results file changed its content"


VALUES = ("0", "-1", "1", "3", "1e308", "1e-308", "-0.0", "null", "true", "[]", "{}", "[1,2]", "nan", "x", '""', "none")
VALUES += (
    str(10**30),
    "9" * 5000,
    "[" * 5000,
    "\x00",
    "\u2028",
    '{"name":"lstm"}',
    "softmax",
    "at_step",
    "1e30",
    "2147483648",
)


def _names(data: Any, prefix: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [prefix]
    return [prefix, *(name for key, value in data.items() for name in _names(value, f"{prefix}.{key}".strip(".")))]


def configuration(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Change settings at random: a configuration or one error that names the field, at once."""
    names = [name for name in _names(shared.config.to_json()) if name]
    changes = [f"{rng.choice(names)}={rng.choice(VALUES)}" for _ in range(rng.randint(1, 4))]
    began = time.monotonic()
    try:
        config = with_overrides(shared.config, changes)
    except ConfigError:
        pass
    else:
        assert with_overrides(config, []).hash == config.hash
        json.dumps(config.to_json())
    assert time.monotonic() - began < 10, f"{changes} took {time.monotonic() - began:.0f} s"


def numbers(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Put NaN, infinity or 1e30 into weights or moments: the run fails, and continues from what was saved before."""
    at, value = rng.randint(1, 24), rng.choice((math.nan, math.inf, -math.inf, 1e30))
    is_stack, tensor = rng.random() < 0.3, rng.choice(("weights", "first", "second"))
    value = math.inf if tensor == "second" else value  # a second moment of 1e30 is only a small step
    advance = Trainer.advance

    def spoil(self: Any) -> list[int]:
        switched = advance(self)
        if self.step == at:
            with torch.no_grad():
                if is_stack:
                    name = {"weights": "flat"}.get(tensor, tensor)
                    getattr(self.backend, name)[0, rng.randrange(100)] = value
                elif tensor == "weights":
                    rng.choice(list(self.backend.template.parameters())).view(-1)[0] = value
                else:
                    state = rng.choice(list(self.backend.optimizer.state.values()))
                    state["exp_avg" if tensor == "first" else "exp_avg_sq"].view(-1)[0] = value
        return switched

    Trainer.advance = spoil
    try:
        if is_stack:
            configs = {"one": replace(shared.config, seed=1), "two": shared.config}
            outcome = run_stacked(configs, folder, torch.device("cpu"))
            assert list(outcome.failed) == ["one"], (
                f"{tensor}={value} at {at} in a stack: failed {list(outcome.failed)}"
            )
            return
        try:
            run(shared.config, folder, device="cpu")
        except NonFiniteLossError:
            pass
        else:
            raise AssertionError(f"{tensor}={value} at step {at} went unnoticed")
    finally:
        Trainer.advance = advance
    _train(shared, folder)
    assert_same(folder, shared)


def two_processes(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Start two trainers in one folder: one wins, or the second finds the run finished; the result is whole."""
    first = _forked(lambda: _train(shared, folder))
    time.sleep(rng.uniform(0, 0.2))
    second = _forked(lambda: _train(shared, folder))
    ends = sorted((_status(first), _status(second)))
    assert ends in ([0, 0], [0, 3]), f"they ended with {ends}"
    assert_same(folder, shared)


def names(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Draw a report of arms with random names in a browser."""
    if shared.browser is None:
        return
    letters = string.printable + "\u2028\u2029\u202e\x00\x1b\ufeff\U0001f600'\"`${}<>&\\"
    known = ("constructor", "toString", "__proto__", "</script>", "x" * 10_000)
    arms = {rng.choice((*known, "".join(rng.choices(letters, k=rng.randint(1, 40))))) for _ in range(4)}
    write_results(folder / "a.parquet", [record(arm, 0, evaluation({10: 1.0, 25: 0.9, 75: 0.4})) for arm in arms])
    (folder / "page.html").write_text(study_page(read_sections([folder / "a.parquet"])))
    shared.browser.complaints.clear()
    shared.browser.open(folder / "page.html")
    assert shared.browser.complaints == [], f"{arms}: {shared.browser.complaints}"
    assert all(url.startswith(("file:", "data:")) for url in shared.browser.requests)


CASES: dict[str, Callable[[random.Random, Path, Shared], int | None]] = {
    "a run killed at random moments": kill,
    "a fault at a call to the file system": file_fault,
    "a changed file of a finished run": mutated_run,
    "a changed file of the newest checkpoint": mutated_checkpoint,
    "a changed results file": mutated_results,
    "a random configuration": configuration,
    "NaN, infinity or 1e30 in weights and moments": numbers,
    "two processes in one folder": two_processes,
    "random names in a report, in a browser": names,
}


def prepare(config: RunConfig, folder: Path, with_browser: bool) -> Shared:
    """Train the runs that the cases compare with."""
    run(config, folder / "finished", device="cpu")
    run(replace(config, seed=config.seed + 1), folder / "other", device="cpu")
    write_results(folder / "a.parquet", study(arms=("dat", "joint"), seeds=2))
    browser = Browser() if with_browser and CHROMIUM else None
    return Shared(config, folder / "finished", folder / "other", folder / "a.parquet", browser)
