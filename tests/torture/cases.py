"""The cases of the campaign: each takes random numbers, an empty folder and what all share, and raises if a promise is
broken. A case that makes several attacks returns their number."""

import json
import random
import shutil
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fault_cases import file_fault, file_fault_in_stack
from number_cases import learning_rate, numbers
from process_cases import kill, kill_ray_worker, kill_stack, kill_study, remove_ray_node, two_processes
from reference import Shared, assert_same, train
from synthetic import evaluation, record

from latebloom import TrainedRun
from latebloom.config import with_overrides
from latebloom.errors import ConfigError, LatebloomError, ResultsError
from latebloom.report.page import study_page
from latebloom.report.study import read_sections
from latebloom.results.file import read_results, write_results


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
        train(shared, folder)
    except LatebloomError:
        return
    assert_same(folder, shared.finished)


def mutated_checkpoint(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Change a file of the newest checkpoint of an unfinished run: the one before it continues the run."""
    shutil.copytree(shared.finished, folder, dirs_exist_ok=True)
    (folder / "result.json").unlink()
    newest = max((folder / "checkpoints").iterdir())
    mutate(rng, rng.choice(sorted(newest.iterdir())))
    train(shared, folder)
    assert_same(folder, shared.finished)


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


Case = Callable[[random.Random, Path, Shared], int | None]

CASES: dict[str, Case] = {
    "a run killed at random moments": kill,
    "a stack killed at random moments": kill_stack,
    "a fault at a call to the file system": file_fault,
    "a fault at a call to the file system, in a stack": file_fault_in_stack,
    "a changed file of a finished run": mutated_run,
    "a changed file of the newest checkpoint": mutated_checkpoint,
    "a changed results file": mutated_results,
    "a random configuration": configuration,
    "NaN, infinity or 1e30 in weights, moments, gradient or loss": numbers,
    "a learning rate of 1e20 to 1e30": learning_rate,
    "two processes in one folder": two_processes,
    "random names in a report, in a browser": names,
}

# Cases of some seconds each; in `make test`, tests/studies has tests of them.
LONG_CASES: dict[str, Case] = {
    "a study whose processes are killed": kill_study,
    "a Ray worker killed": kill_ray_worker,
    "a Ray node lost": remove_ray_node,
}
