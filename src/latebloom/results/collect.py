"""From the folders of runs to records."""

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
    """A run of a study: its names, its configuration and its folder."""

    study: str
    task: str
    arm: str
    config: RunConfig
    folder: Path
    against: tuple[str, ...] = ()
    """The baselines of its arm."""

    @property
    def seed(self) -> int:
        return self.config.seed


def collect(run: StudyRun, failure: str | None = None) -> RunRecord:
    """Return the record of a run; one that is not finished has the reason instead of an evaluation."""
    folder = RunFolder(run.folder)
    file = folder.path / "environment.json"
    here = folder.read_json(file) if file.exists() else {}
    # The package has no version if it is run from a copy of the source; the commit says more.
    versions = [f"{name} {here[name]}" for name in ("latebloom", "python", "torch") if here.get(name)]
    machine = (here.get("accelerator"), here.get("processor"), f"{here.get('cores')} cores", here.get("system"))
    about: dict[str, Any] = {
        "study": run.study,
        "task": run.task,
        "arm": run.arm,
        "seed": run.seed,
        "against": run.against,
        "training_length": run.config.training.length,
        "config": json.dumps(run.config.to_json()),
        "config_hash": run.config.hash,
        "versions": ", ".join(versions) if here else None,
        "machine": ", ".join(str(part) for part in machine if part) if here else None,
        "commit": here.get("commit"),
        "command": repeat_command(run.config, here.get("device")),
    }
    if not folder.is_finished:
        reason = failure or ("stopped before its end" if folder.config_file.exists() else "not started")
        return RunRecord(**about, evaluation=None, failure=reason)
    found = folder.read_config()
    if found.hash != run.config.hash:
        raise CheckpointError(f"{run.folder} holds another run ({found.hash}) than the study says ({run.config.hash})")
    result = folder.read_json(folder.result_file)
    try:
        with open(folder.metrics_file) as lines:
            curve = read_curve(lines, folder.metrics_file)
    except OSError as error:
        raise CheckpointError(f"{folder.metrics_file} cannot be read ({error.strerror})") from None
    evaluation = Evaluation.from_json(folder.read_json(folder.evaluation_file))
    return RunRecord(**about, evaluation=evaluation, curve=curve, **{name: result.get(name) for name in RUN_NUMBERS})


def repeat_command(config: RunConfig, device: str | None) -> str:
    """Return a shell command that trains this run again and needs no files."""
    where = f" --device {device}" if device else ""
    return f"printf %s {shlex.quote(json.dumps(config.to_json()))} | latebloom train --config -{where}"
