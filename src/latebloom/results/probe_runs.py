"""Run probes on trained runs and keep their tables; what a folder holds already is not measured again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import TrainedRun
from latebloom.layers.precision import precision
from latebloom.probes.probe import NotMeasurable, Probe
from latebloom.probes.subject import Subject
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
    lines = [json.loads(line) for line in RunFolder(run.folder).metrics_file.read_text().splitlines()]
    config = trained.config
    model = trained.model.to(choose_device(device))
    return Subject(model, config.task, config.training.length, config.seed, recorded=lines)


def probe_runs(
    runs: Sequence[StudyRun],
    probes: Sequence[Probe],
    out: Path,
    *,
    device: str | None = None,
    report: Report = lambda what, share: None,
) -> ProbeResults:
    """Measure every run with every probe, and write a file for each probe after each run."""
    results = ProbeResults({probe.name: _kept(out, probe) for probe in probes})
    total = len(runs) * len(probes)
    for number, run in enumerate(runs):
        subject = None
        for place, probe in enumerate(probes):
            name, done = f"{run.arm}, seed {run.config.seed}", number * len(probes) + place
            own = {"study": run.study, "task": run.task, "arm": run.arm, "seed": run.config.seed}
            own |= {"training": "joint" if run.config.delay is None else "delayed"}
            own |= {"training_length": run.config.training.length, "config_hash": run.config.hash}
            settings = json.dumps(asdict(probe))
            kept = results.tables[probe.name]
            if any((one.config_hash, one.settings) == (run.config.hash, settings) for one in kept):
                continue
            subject = subject or subject_of(run, device)
            try:
                with precision(run.config.training.precision):
                    table = probe.measure(
                        subject, lambda share, n=name, p=probe, d=done: report(f"{n}: {p.name}", (d + share) / total)
                    )
            except NotMeasurable as reason:
                results.skipped.setdefault(probe.name, {}).setdefault(str(reason), []).append(name)
                continue
            kept.append(Probed(**own, settings=settings, table=table))
            write_probe(out / f"{probe.name}.parquet", probe.name, probe.columns, kept)
    report("done", 1.0)
    order = {run.config.hash: place for place, run in enumerate(runs)}
    for name, kept in results.tables.items():
        results.tables[name] = sorted(
            (one for one in kept if one.config_hash in order), key=lambda one: order[one.config_hash]
        )
    return results


def _kept(out: Path, probe: Probe) -> list[Probed]:
    """Return what was measured with the same settings before."""
    file = out / f"{probe.name}.parquet"
    if not file.exists():
        return []
    _, found = read_probe(file, {probe.name: probe.columns})
    return [one for one in found if one.settings == json.dumps(asdict(probe))]
