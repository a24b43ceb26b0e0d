"""From the folders of runs to records."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.manifest import manifest_digest
from latebloom.engine.pause import latest_pause
from latebloom.errors import CheckpointError, ResultsError
from latebloom.reading import parse_json, read_plain
from latebloom.results.file import RUN_NUMBERS, read_results
from latebloom.results.record import CurvePoint, RunRecord

MOST = 100
"""The largest number of points of a curve in the results file."""


@dataclass(frozen=True)
class StudyRun:
    """A run of a study: its names, its configuration and its folder."""

    study: str
    task: str
    arm: str
    config: RunConfig
    folder: Path
    against: tuple[str, ...] = ()
    """The baselines of its arm."""
    stated: str = ""
    """What the study states beforehand, as text."""


def collected_before(file: Path) -> dict[str, RunRecord]:
    """Return the finished runs in a results file by the digest of their manifest; none if the file cannot be read."""
    try:
        return {record.manifest: record for record in read_results([file]) if record.manifest is not None}
    except ResultsError:  # it is written anew
        return {}


def collect(run: StudyRun, failure: str | None = None, before: Mapping[str, RunRecord] | None = None) -> RunRecord:
    """Return the record of a run; one that is not finished has the test at its last pause, or the reason instead.

    The numbers of a run that was `collected_before` are not read again if its manifest is the same.
    """
    folder = RunFolder(run.folder)
    here = folder.read_environment() if folder.environment_file.exists() else {}
    # The package has no version if it is run from a copy of the source; the commit says more.
    versions = [f"{name} {here[name]}" for name in ("latebloom", "python", "torch") if here.get(name)]
    machine = (here.get("accelerator"), here.get("processor"), f"{here.get('cores')} cores", here.get("system"))
    record = RunRecord(
        study=run.study,
        task=run.task,
        arm=run.arm,
        seed=run.config.seed,
        against=run.against,
        stated=run.stated,
        training_length=run.config.training.length,
        config=json.dumps(run.config.to_json()),
        config_hash=run.config.hash,
        versions=", ".join(versions) if here else None,
        machine=", ".join(str(part) for part in machine if part) if here else None,
        commit=here.get("commit"),
        command=repeat_command(run.config, here.get("device")),
        evaluation=None,
        failure=failure or ("stopped before its end" if folder.config_file.exists() else "not started"),
    )
    if not folder.is_finished:
        pause = None if failure else latest_pause(folder)
        if pause is None:
            return record
        found = {"steps": pause.step, "switch_step": pause.switch_step, "seconds": pause.seconds}
        return replace(record, evaluation=pause.evaluation, failure=None, stacked=pause.stacked, **found)
    manifest = manifest_digest(folder.path)
    known = (before or {}).get(manifest or "")
    if known is not None and known.config_hash == record.config_hash:
        numbers = {name: getattr(known, name) for name in ("manifest", "curve", "evaluation", *RUN_NUMBERS)}
        return replace(record, failure=None, **numbers)
    found = folder.read_config()
    if found.hash != run.config.hash:
        raise CheckpointError(f"{run.folder} holds another run ({found.hash}) than the study says ({run.config.hash})")
    result = folder.read_result(found, "config.json", "environment.json", "metrics.jsonl", "evaluation.json")
    try:
        lines = read_plain(folder.metrics_file).decode(errors="replace").splitlines()
        curve = read_curve(lines, folder.metrics_file)
    except OSError as error:
        raise CheckpointError(f"{folder.metrics_file} cannot be read ({error.strerror})") from None
    numbers = {name: result.get(name) for name in RUN_NUMBERS}
    return replace(record, evaluation=folder.read_evaluation(), failure=None, manifest=manifest, curve=curve, **numbers)


def repeat_command(config: RunConfig, device: str | None) -> str:
    """Return a shell command that trains this run again and needs no files."""
    where = f" --device {device}" if device else ""
    return f"printf %s {shlex.quote(json.dumps(config.to_json()))} | latebloom train --config -{where}"


def read_curve(lines: Iterable[str], source: object) -> tuple[CurvePoint, ...]:
    """Read losses and held-out accuracies from the lines of a metrics.jsonl."""
    found: dict[tuple[str, int | None], list[CurvePoint]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            for point in _points(parse_json(line)):
                found.setdefault((point.measure, point.length), []).append(point)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{source} is damaged in line {number} ({type(error).__name__}: {error})") from None
    return tuple(point for points in found.values() for point in thin(points))


def thin(points: list[CurvePoint], most: int = MOST) -> list[CurvePoint]:
    """Return at most `most` points: each is the mean of neighbours, at the last of their steps."""
    size = -(-len(points) // most) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [group[-1]._replace(value=sum(point.value for point in group) / len(group)) for group in groups]


def _points(line: dict) -> Iterator[CurvePoint]:
    if "loss" in line:
        yield CurvePoint("loss", None, line["step"], float(line["loss"]))
    for length, values in line.get("check", {}).items():
        for name, value in values.items():
            measure = name if name == "accuracy" else f"accuracy_{name}"
            yield CurvePoint(measure, int(length), line["step"], float(value))
