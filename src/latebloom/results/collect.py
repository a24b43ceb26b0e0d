"""From the folders of a study's runs to records."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.errors import CheckpointError
from latebloom.evaluation.result import Evaluation
from latebloom.results.curve import read_curve
from latebloom.results.file import RUN_NUMBERS
from latebloom.results.record import RunRecord


@dataclass(frozen=True)
class StudyRun:
    """A run's place in a study: its names, what it is, and where it is."""

    study: str
    task: str
    arm: str
    config: RunConfig
    folder: Path
    against: tuple[str, ...] = ()
    """The arms that its arm is held against."""

    @property
    def seed(self) -> int:
        return self.config.seed


def collect(run: StudyRun, failure: str | None = None) -> RunRecord:
    """What a run's folder holds; one that is not finished becomes a record of its failure."""
    folder = RunFolder(run.folder)
    names: dict[str, Any] = {"study": run.study, "task": run.task, "arm": run.arm, "seed": run.seed}
    about: dict[str, Any] = {
        "against": run.against,
        "training_length": run.config.training.length,
        "config": json.dumps(run.config.to_json()),
        "config_hash": run.config.hash,
    }
    here = _environment(folder)
    about |= {
        "versions": _versions(here) if here else None,
        "machine": _machine(here) if here else None,
        "commit": here.get("commit"),
        "command": repeat_command(run.config, here.get("device")),
    }
    if not folder.is_finished:
        reason = failure or ("stopped before its end" if folder.config_file.exists() else "not started")
        return RunRecord(**names, **about, evaluation=None, failure=reason)
    found = folder.read_config()
    if found.hash != run.config.hash:
        raise CheckpointError(f"{run.folder} holds another run ({found.hash}) than the study says ({run.config.hash})")
    result = folder.read_json(folder.result_file)
    try:
        with open(folder.metrics_file) as lines:
            curve = read_curve(lines, folder.metrics_file)
    except OSError as error:
        raise CheckpointError(f"{folder.metrics_file} cannot be read ({error.strerror})") from None
    return RunRecord(
        **names,
        **about,
        evaluation=Evaluation.from_json(folder.read_json(folder.evaluation_file)),
        curve=curve,
        **{name: result.get(name) for name in RUN_NUMBERS},
    )


def repeat_command(config: RunConfig, device: str | None) -> str:
    """A line for the shell that trains this very run, whatever files are at hand."""
    where = f" --device {device}" if device else ""
    return f"printf %s {shlex.quote(json.dumps(config.to_json()))} | latebloom train --config -{where}"


def _environment(folder: RunFolder) -> dict[str, Any]:
    file = folder.path / "environment.json"
    return folder.read_json(file) if file.exists() else {}


def _versions(here: dict[str, Any]) -> str:
    # run from a copy of the source, the package is not installed and has no version; the commit says more
    return ", ".join(f"{name} {here[name]}" for name in ("latebloom", "python", "torch") if here.get(name))


def _machine(here: dict[str, Any]) -> str:
    return ", ".join(
        str(part)
        for part in (here.get("accelerator"), here.get("processor"), f"{here.get('cores')} cores", here.get("system"))
        if part
    )
