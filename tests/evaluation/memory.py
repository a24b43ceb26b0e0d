"""Measure the peak memory of evaluation: with each recurrence, score function and task, and over 100,000 tokens.

    python tests/evaluation/memory.py              # every case: results/memory.json, in about ten minutes
    python tests/evaluation/memory.py kda entmax   # these cases again, the others stay

Each case is a process of its own, on a CPU with one thread, with a model of one block of width 64 and one sequence.
`python docs/fill.py` makes the table of docs/components.md from the file.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from latebloom.engine.environment import describe_environment
from latebloom.engine.files import write_json
from latebloom.layers.attention import Scores
from latebloom.layers.recurrence import Recurrence
from latebloom.models.settings import Attention, Model
from latebloom.tasks import Composite, ModularSum, Task
from latebloom.tasks.keyed import KeyedTask

RESULTS = Path(__file__).parents[2] / "results" / "memory.json"
ITEMS, TOKENS = 10_000, 100_000
WIDTH = 64
LIMIT = 4 * 2**30
Family = type[Recurrence] | type[Scores] | type[Task]
TWO: dict[str, Any] = {"keys": 128, "key_tokens": 2}
"""Enough keys for every task."""


def own(family: Family) -> list[str]:
    """Return the names of the components of this package."""
    return [name for name, member in family.members.items() if member.__module__.startswith("latebloom.")]


def cases() -> dict[str, tuple[Model, Task, int]]:
    """Return a model, a task and a length for each case: KIND/NAME."""
    composite = Composite(**TWO)
    found: dict[str, tuple[Model, Task, int]] = {}
    for name in own(Recurrence):
        found[f"recurrence/{name}"] = _model(recurrence=name), composite, ITEMS
        found[f"in pieces/{name}"] = _model(layout="rm", recurrence=name), ModularSum(), TOKENS - 1
    for name in own(Scores):
        found[f"scores/{name}"] = _model(scores=name), composite, ITEMS
    for name in own(Task):
        kind = Task.members[name]
        settings: dict[str, Any] = TWO if issubclass(kind, KeyedTask) else {}
        found[f"task/{name}"] = _model(), kind(**settings), ITEMS
    return found


def _model(layout: str = "ram", recurrence: str = "lstm", scores: str = "softmax") -> Model:
    return Model(
        layout=layout, width=WIDTH, blocks=1, recurrence=Recurrence.named(recurrence),
        attention=Attention(scores=Scores.named(scores)),
    )  # fmt: skip


def evaluate_case(name: str) -> dict[str, Any]:
    """Evaluate a case in this process; return its tokens, peak memory in bytes and seconds."""
    import torch

    from latebloom import SequenceModel, evaluate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings, task, length = cases()[name]
    model = SequenceModel(settings, task.vocabulary_size)
    started = time.perf_counter()
    evaluate(model, task, [length], training_length=25, sequences=1)
    return {"tokens": task.token_count(length), "bytes": peak(), "seconds": round(time.perf_counter() - started, 1)}


def peak() -> int:
    """Return the largest memory that this process has had, in bytes; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(name: str) -> dict[str, Any]:
    """Evaluate a case in a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        print(json.dumps(evaluate_case(words[1])))
        return
    rows = json.loads(RESULTS.read_text())["rows"] if words else {}
    chosen = [name for name in cases() if not words or name.partition("/")[2] in words]
    for name in chosen:
        rows[name] = measure(name)
        print(f"{name}: {rows[name]['bytes'] / 2**30:.2f} GiB, {rows[name]['seconds']} s", flush=True)
        in_order = {name: rows[name] for name in cases() if name in rows}
        write_json(RESULTS, {"environment": describe_environment(0, "cpu"), "rows": in_order})


if __name__ == "__main__":
    main()
