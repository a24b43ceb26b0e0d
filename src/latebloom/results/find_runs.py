"""Finished runs by their folders: single runs, folders of runs, and studies with the names of their arms."""

import os
from collections.abc import Sequence
from pathlib import Path

from latebloom.engine.folder import RunFolder
from latebloom.errors import ResultsError
from latebloom.results.collect import StudyRun
from latebloom.results.file import RESULTS_FILE, read_results
from latebloom.results.gather import ALONE


def find_runs(paths: Sequence[Path]) -> list[StudyRun]:
    """Return the finished runs in these folders; those of a study have its names, and tuning runs are left out."""
    runs: dict[Path, StudyRun] = {}
    for path in paths:
        found = _of_study(path) if (path / RESULTS_FILE).exists() else _alone(path)
        if not found:
            raise ResultsError(f"probe: {path} holds no finished run")
        runs |= {Path(os.path.abspath(run.folder)): run for run in found}
    return list(runs.values())


def _of_study(study: Path) -> list[StudyRun]:
    """Return the runs that the results file of a study names, and that are still there."""
    names = {record.config_hash: record for record in read_results([study / RESULTS_FILE]) if record.evaluation}
    found = []
    for folder in RunFolder(study).all_below():
        if "tuning" in folder.path.relative_to(study).parts[:1] or not folder.is_finished:
            continue
        config = folder.read_config()
        folder.read_result(config, "config.json")  # of one that was changed the results have no name
        if (record := names.get(config.hash)) is not None:
            found.append(StudyRun(record.study, record.task, record.arm, config, folder.path, record.against))
    return found


def _alone(path: Path) -> list[StudyRun]:
    """Return a run, or the runs in a folder. An arm is named after the folder of its run, or the one around seeds."""
    folders = [RunFolder(path)] if RunFolder(path).config_file.exists() else []
    folders = folders or [RunFolder(below) for below in RunFolder(path).runs_below()]
    if not folders:
        RunFolder(path).read_config()  # raises, with a hint to the runs nearby
    found = []
    for folder in folders:
        if not folder.is_finished:
            continue
        config, place = folder.read_config(), folder.path.absolute()
        is_seed = place.name.startswith("seed-")
        arm = place.parent.name if is_seed else place.name
        found.append(StudyRun(ALONE, config.task.name, arm, config, folder.path))
    return found
