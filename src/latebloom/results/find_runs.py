"""Finished runs by their folders: single runs, folders of runs, and studies with the names of their arms."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from latebloom.engine.folder import RunFolder
from latebloom.errors import ResultsError
from latebloom.results.collect import StudyRun
from latebloom.results.file import RESULTS_FILE, read_results
from latebloom.results.gather import name_runs


def find_runs(paths: Sequence[Path]) -> list[StudyRun]:
    """Return the finished runs in these folders; those of a study have its names, and tuning runs are left out."""
    of_studies: dict[Path, StudyRun] = {}
    alone: dict[Path, Path] = {}
    for path in paths:
        is_study = (path / RESULTS_FILE).exists()
        found, folders = (_of_study(path), []) if is_study else ([], _alone(path))
        if not found and not folders:
            raise ResultsError(f"probe: {path} holds no finished run")
        of_studies |= {Path(os.path.abspath(run.folder)): run for run in found}
        alone |= {Path(os.path.abspath(folder)): folder for folder in folders}
    named = name_runs([folder for place, folder in alone.items() if place not in of_studies])
    return [*of_studies.values(), *_with_short_names(named)]


def _of_study(study: Path) -> list[StudyRun]:
    """Return the runs that the results file of a study names, and that are still there."""
    names = {record.config_hash: record for record in read_results([study / RESULTS_FILE]) if record.evaluation}
    found = []
    for folder in RunFolder(study).all_below():
        if "tuning" in folder.path.relative_to(study).parts[:1] or not folder.is_finished:
            continue
        config = folder.read_config()
        folder.read_result(config, "config.json")  # of one that was changed the results have no name
        # Two arms may have chosen the same settings; their runs are the same, and are probed once.
        if (record := names.pop(config.hash, None)) is not None:
            found.append(StudyRun(record.study, record.task, record.arm, config, folder.path, record.against))
    return found


def _alone(path: Path) -> list[Path]:
    """Return the folder of a run, or the folders of the runs in it, if they are finished."""
    folders = [RunFolder(path)] if RunFolder(path).config_file.exists() else []
    folders = folders or [RunFolder(below) for below in RunFolder(path).runs_below()]
    if not folders:
        RunFolder(path).read_config()  # raises, with a hint to the runs nearby
    return [folder.path for folder in folders if folder.is_finished]


def _with_short_names(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """Return runs with arms that are named after the folder of the run, or the one around seeds, if these differ."""
    short: dict[str, set[str]] = {}
    places = [run.folder.absolute() for run in runs]
    names = [place.parent.name if place.name.startswith("seed-") else place.name for place in places]
    for name, run in zip(names, runs, strict=True):
        short.setdefault(name, set()).add(run.arm)
    if any(len(arms) > 1 for arms in short.values()):
        return list(runs)
    return [replace(run, arm=name) for name, run in zip(names, runs, strict=True)]
