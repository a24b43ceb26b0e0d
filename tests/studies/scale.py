"""Measure studies and reports of many runs: seconds, memory and sizes.

    python tests/studies/scale.py                  # every case: results/scale.json, in about ten minutes
    python tests/studies/scale.py "report of 40"   # these cases again, the others stay

The runs of a study are not trained: a stand-in for the trainer writes the folder of a real small run, with the
configuration, the evaluation and the curve of each one, and reports progress as a worker does. Everything else is what
`latebloom study` does. Each case is a process of its own with one thread. `python docs/fill.py` makes the table of
docs/guarantees.md from the file.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "report")]

from browser import CHROMIUM, Browser  # noqa: E402
from synthetic import ARMS, evaluation, falling, study  # noqa: E402

import latebloom.study  # noqa: E402
from latebloom import Composite, Evaluating, Phase, RunConfig, Training, hybrid, run  # noqa: E402
from latebloom.engine.environment import describe_environment  # noqa: E402
from latebloom.engine.files import to_json, write_json  # noqa: E402
from latebloom.engine.folder import RunFolder  # noqa: E402
from latebloom.engine.manifest import write_manifest  # noqa: E402
from latebloom.engine.outcome import Progress  # noqa: E402
from latebloom.results.file import write_results  # noqa: E402
from latebloom.studies.plan import Arm, Plan  # noqa: E402
from latebloom.studies.stacks import Configs, unfinished  # noqa: E402

RESULTS = TESTS.parent / "results" / "scale.json"
LENGTH = 25
SHAPES = {40: (2, 20), 1_000: (10, 100), 10_000: (100, 100)}
"""Arms and seeds of each number of runs."""


def small() -> RunConfig:
    """A run of a tenth of a second."""
    return RunConfig(
        task=Composite(modulus=10, keys=64, values=64),
        model=hybrid(width=8, blocks=1, heads=2),
        delay=None,
        training=Training(length=LENGTH, steps=4, full=Phase(batch_size=4, warmup=1), checkpoint_every=2),
        evaluation=Evaluating(multiples=(1, 3), sequences=4),
    )


def plan(arms: int, seeds: int) -> Plan:
    """A study whose arms differ in the learning rate."""
    base = small()

    def config(k: int) -> RunConfig:
        full = replace(base.training.full, learning_rate=1e-3 * (1 + k / arms))
        return replace(base, training=replace(base.training, full=full))

    return Plan([Arm(f"rate-{k}", config(k)) for k in range(arms)], range(seeds))


class StandIn:
    """Writes folders of finished runs in place of training them; keeps the times of making and of each report."""

    def __init__(self, source: Path) -> None:
        run(small(), source, device="cpu")
        self.files = {file.relative_to(source): file.read_bytes() for file in source.rglob("*") if file.is_file()}
        self.result = json.loads(self.files[Path("result.json")])
        self.curve = [{"step": step, "loss": 3 * 0.98 ** (step / 150)} for step in range(150, 15_001, 150)]
        right = {"accuracy": 0.9, "sum": 0.95, "recall": 0.95}
        self.curve += [{"step": step, "check": {"25": right, "75": right}} for step in range(500, 15_001, 500)]
        self.making, self.slowest, self.began = 0.0, 0.0, 0.0

    def train(
        self, configs: Configs, folder: Path, *, observe: Callable[[str, Progress], None], **where: Any
    ) -> dict[str, str]:
        left = unfinished(configs, folder)
        self.began = time.perf_counter()
        for number, (name, config) in enumerate(left.items()):
            began = time.perf_counter()
            self.make(RunFolder(folder / name), config, number)
            steps, self.making = config.training.steps, self.making + time.perf_counter() - began
            for seen in (Progress(0, steps, "full"), Progress(steps, steps, "done", accuracy_beyond=0.5, tested=1.0)):
                began = time.perf_counter()
                observe(name, seen)
                self.slowest = max(self.slowest, time.perf_counter() - began)
        return {}

    def make(self, folder: RunFolder, config: RunConfig, number: int) -> None:
        """Write the folder of a finished run, sealed."""
        fsync, os.fsync = os.fsync, lambda descriptor: None  # the disk is not what is measured
        try:
            for name, content in self.files.items():
                (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
                if name.name == "state.json":
                    content = json.dumps(json.loads(content) | {"run": config.hash}).encode()
                (folder.path / name).write_bytes(content)
            write_json(folder.config_file, config.to_json())
            folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in self.curve))
            held, floor, spread, _ = list(ARMS.values())[number % len(ARMS)]
            levels = falling(1.0 - spread * (number % 97) / 97, floor, held)
            write_json(folder.evaluation_file, evaluation(levels, sequences=1024).to_json())
            result = to_json(self.result | {"config_hash": config.hash, "seed": config.seed})
            write_manifest(folder.path, result)
            folder.result_file.write_bytes(result)
        finally:
            os.fsync = fsync


def peak() -> int:
    """Return the largest memory that this process has had, in bytes; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def run_study(place: Path, arms: int, seeds: int) -> dict[str, Any]:
    """Run the study in a folder, with runs made by the stand-in where they are missing."""
    stand_in = StandIn(place / "source")
    latebloom.study.train_all = stand_in.train
    began = time.perf_counter()
    outcome = latebloom.study.run_study("scale", plan(arms, seeds), place / "study", "tiny", device="cpu")
    seconds = time.perf_counter() - began - stand_in.making
    return {
        "seconds": round(seconds, 1),
        "until_first": round(stand_in.began - began, 1),
        "slowest_update": round(stand_in.slowest, 3),
        "collecting": round(outcome.collecting, 1),
        "bytes": peak(),
    }


def study_case(runs: int) -> dict[str, Any]:
    """Measure a study, the same command when all runs are finished, and with a seed more."""
    arms, seeds = SHAPES[runs]
    found = {}
    with TemporaryDirectory() as place:
        for name, count in (("first", seeds), ("again", seeds), ("one more seed", seeds + 1)):
            words = [sys.executable, __file__, "--study", place, str(arms), str(count)]
            ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            found[name] = json.loads(ran.stdout.splitlines()[-1])
    return found


# What `latebloom report` does, and then the largest memory that the process has had, in bytes.
REPORT = """
import sys
from latebloom.cli import main
main(["report", *sys.argv[1:]])
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(line.split()[1]) * 1024)
"""


def report_case(runs: int) -> dict[str, Any]:
    """Measure `latebloom report` on a results file with curves, and how long the page takes to open in a browser."""
    arms, seeds = SHAPES[runs]
    with TemporaryDirectory() as place:
        file, out = Path(place) / "results.parquet", Path(place) / "report"
        write_results(file, study(arms=[f"arm-{k}" for k in range(arms)], seeds=seeds))
        began = time.perf_counter()
        words = [sys.executable, "-c", REPORT, str(file), "--out", str(out)]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        seconds, page, used = time.perf_counter() - began, out / "index.html", os.times()
        found = {"seconds": round(seconds, 1), "cpu_seconds": round(used.children_user + used.children_system, 1)}
        found |= {"bytes": int(ran.stdout.splitlines()[-1]), "page": page.stat().st_size}
        if CHROMIUM is not None:
            with Browser() as browser:
                began = time.perf_counter()
                browser.open(page)
                browser.wait_for("document.getElementById('count').textContent !== ''")
                found["opens"] = round(time.perf_counter() - began, 1)
        return found


def measure(name: str) -> dict[str, Any]:
    """Measure a case in a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"report of {runs}": partial(report_case, runs) for runs in SHAPES},
    "study of 10000": partial(study_case, 10_000),
}


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--study"]:
        print(json.dumps(run_study(Path(words[1]), int(words[2]), int(words[3]))))
        return
    if words[:1] == ["--one"]:
        print(json.dumps(CASES[words[1]]()))
        return
    rows = json.loads(RESULTS.read_text())["rows"] if words else {}
    for name in words or CASES:
        rows[name] = measure(name)
        print(f"{name}: {rows[name]}", flush=True)
        in_order = {name: rows[name] for name in CASES if name in rows}
        write_json(RESULTS, {"environment": describe_environment(0, "cpu"), "rows": in_order})


if __name__ == "__main__":
    main()
