"""Run probes on trained runs and keep their tables; what a folder holds already is not measured again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from latebloom.config import OtherRun
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import TrainedRun
from latebloom.errors import CheckpointError, ConfigError, require
from latebloom.layers.precision import precision
from latebloom.probes.probe import NotMeasurable, Probe, Progress, StackedProbe
from latebloom.probes.stack import MOST_MODELS, Stack, can_share_stack
from latebloom.probes.subject import Subject
from latebloom.probes.table import Table
from latebloom.reading import parse_json, read_plain
from latebloom.results.collect import StudyRun
from latebloom.results.probes import Probed, read_probe, write_probe

Report = Callable[[str, float], None]
"""Is called with what is being measured and the share of all work that is done."""


@dataclass
class ProbeResults:
    """The tables of some probes for some runs."""

    tables: dict[str, list[Probed]] = field(default_factory=dict)
    """By probe."""
    skipped: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Why a probe was not measured: by probe and reason, the names of the runs."""


def subject_of(run: StudyRun, device: str | None = None) -> Subject:
    """Return a finished run as the subject of probes."""
    trained = TrainedRun.load(run.folder)
    file = RunFolder(run.folder).metrics_file
    try:
        lines = [parse_json(line) for line in read_plain(file).decode().splitlines()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); remove {run.folder} and train the run again") from None
    config = trained.config
    model = trained.model.to(choose_device(device))
    return Subject(model, config.task, config.training.length, config.seed, recorded=lines)


def probe_runs(
    runs: Sequence[StudyRun],
    probes: Sequence[Probe],
    out: Path,
    *,
    device: str | None = None,
    at_once: int | None = None,
    report: Report = lambda what, share: None,
) -> ProbeResults:
    """Measure every run with every probe, and write a file for each probe after each stack of runs.

    Up to `at_once` runs of one shape are a stack; by default many on a GPU, and one on a CPU.
    """
    require(at_once is None or at_once >= 1, "at_once", at_once, "1 or more")
    if other := next((run for run in runs if isinstance(run.config, OtherRun)), None):
        raise ConfigError(f"probe: {other.folder} holds a language model; `latebloom lm evaluate` measures those")
    results = ProbeResults({probe.name: _kept(out, probe) for probe in probes})
    most = at_once or MOST_MODELS.get(choose_device(device).type, 1)
    total, done = max(1, len(runs) * len(probes)), 0
    for group in _groups(runs, most):
        subjects: dict[str, Subject] = {}
        for probe in probes:
            kept, settings = results.tables[probe.name], json.dumps(asdict(probe))
            known = {one.config_hash for one in kept if one.settings == settings}
            missing = [run for run in group if run.config.hash not in known]
            subjects = subjects or {run.config.hash: subject_of(run, device) for run in group if missing}
            names = _named(missing)

            def progress(
                share: float, names: str = names, probe: Probe = probe, first: int = done, count: int = len(group)
            ) -> None:
                report(f"{names}: {probe.name}", (first + share * count) / total)

            try:
                with precision(group[0].config.training.precision):
                    tables = measure(probe, [subjects[run.config.hash] for run in missing], progress)
            except NotMeasurable as reason:
                skipped = results.skipped.setdefault(probe.name, {}).setdefault(str(reason), [])
                skipped += [_named([run]) for run in missing]
                missing, tables = [], []
            kept += [
                Probed(**_names_of(run), settings=settings, table=table)
                for run, table in zip(missing, tables, strict=True)
            ]
            if tables:
                write_probe(out / f"{probe.name}.parquet", probe.name, probe.columns, kept)
            done += len(group)
    report("done", 1.0)
    order = {run.config.hash: place for place, run in enumerate(runs)}
    for name, kept in results.tables.items():
        results.tables[name] = sorted(
            (one for one in kept if one.config_hash in order), key=lambda one: order[one.config_hash]
        )
    return results


def measure(probe: Probe, subjects: Sequence[Subject], progress: Progress = lambda share: None) -> list[Table]:
    """Return the table of each subject: at once where that is possible, in halves if memory does not suffice."""
    if len(subjects) < 2 or not isinstance(probe, StackedProbe) or not _can_be_stack(subjects):
        count = len(subjects)
        return [
            probe.measure(subject, lambda share, place=place: progress((place + share) / count))
            for place, subject in enumerate(subjects)
        ]
    try:
        return probe.measure_stack(Stack(subjects), progress)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    half = len(subjects) // 2
    first = measure(probe, subjects[:half], lambda share: progress(share / 2))
    return first + measure(probe, subjects[half:], lambda share: progress((1 + share) / 2))


def _can_be_stack(subjects: Sequence[Subject]) -> bool:
    return all(can_share_stack(subjects[0], other) for other in subjects[1:])


def _groups(runs: Sequence[StudyRun], most: int) -> list[list[StudyRun]]:
    """Return the runs in groups of one shape, in their order."""
    shapes: dict[str, list[StudyRun]] = {}
    for run in runs:
        config, written = run.config, run.config.to_json()
        shape = [written["model"], written["task"], config.training.length, config.training.precision]
        shapes.setdefault(json.dumps(shape), []).append(run)
    return [group[first : first + most] for group in shapes.values() for first in range(0, len(group), most)]


def _named(runs: Sequence[StudyRun]) -> str:
    return f"{runs[0].arm}, seed {runs[0].config.seed}" if len(runs) == 1 else f"{len(runs)} runs"


def _names_of(run: StudyRun) -> dict[str, Any]:
    config = run.config
    return {
        "study": run.study, "task": run.task, "arm": run.arm, "seed": config.seed,
        "training": "joint" if config.delay is None else "delayed",
        "training_length": config.training.length, "config_hash": config.hash,
    }  # fmt: skip


def _kept(out: Path, probe: Probe) -> list[Probed]:
    """Return what was measured with the same settings before."""
    file = out / f"{probe.name}.parquet"
    if not file.exists():
        return []
    _, found = read_probe(file, {probe.name: probe.columns})
    return [one for one in found if one.settings == json.dumps(asdict(probe))]
