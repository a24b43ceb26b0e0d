"""Runs to report on, wherever they are: in results files, in the folders of studies, in folders of their own."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.errors import LatebloomError, ResultsError
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, read_results
from latebloom.results.record import RunRecord

ALONE = "runs"
"""What stands for the study of runs that belong to none."""


def gather(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs of results files and of studies' folders, and those whose own folders are given, which come last."""
    files: list[Path] = []
    folders: list[Path] = []
    for path in paths:
        of_study = [path / name for name in (RESULTS_FILE, TUNING_FILE) if (path / name).exists()]
        if not path.is_dir():
            files.append(path)
        elif RunFolder(path).config_file.exists():
            folders.append(path)
        elif below := RunFolder(path).runs_below():  # the folder of `train --seeds`
            folders += below
        elif of_study:
            files += of_study
        elif files_there := sorted(path.glob("*.parquet")):
            raise ResultsError(
                f"results: {path} is no study's folder; name the files in it to report on, such as {files_there[0]}"
            )
        else:
            raise ResultsError(
                f"results: {path} holds neither results nor runs; give a results file, the folder of a study or of a "
                "run, or one in which folders of runs stand"
            )
    return read_results(files) + _single(folders)


def _single(folders: Sequence[Path]) -> list[RunRecord]:
    """Runs of no study. Those that differ in nothing but the seed are one arm."""
    configs: dict[Path, RunConfig] = {}
    taken: dict[str, Path] = {}
    arms: dict[str, list[Path]] = {}
    for folder in map(_absolute, folders):
        config = RunFolder(folder).read_config()
        if folder in configs:
            raise ResultsError(f"results: the run {folder} is given twice, by itself or with the folder around it")
        if config.hash in taken:
            raise ResultsError(f"results: {taken[config.hash]} and {folder} hold the same run; give one of them")
        configs[folder] = config
        taken[config.hash] = folder
        arms.setdefault(_arm_of(folder), []).append(folder)
    names = _names(list(arms.values()))
    return [
        collect(StudyRun(ALONE, config.task.name, names[folder], config, folder)) for folder, config in configs.items()
    ]


def _arm_of(folder: Path) -> str:
    """What runs that differ in nothing but the seed share."""
    return replace(RunFolder(folder).read_config(), seed=0).hash


def _is_like(run: Path, other: Path) -> bool:
    """Whether two runs are of one arm; one that this version cannot read is of another."""
    try:
        return _arm_of(run) == _arm_of(other)
    except LatebloomError:
        return False


def _absolute(folder: Path) -> Path:
    """The folder by the name that it was given, links and all."""
    return Path(os.path.abspath(folder))


def _names(arms: list[list[Path]]) -> dict[Path, str]:
    """What the arm of each run is called: after the arm's folder, from where the folders of the arms part."""
    if not arms:
        return {}
    places = [_place(runs, {folder for other in arms if other is not runs for folder in other}) for runs in arms]
    above = os.path.commonpath([place.parent for place in places])
    return {
        folder: place.relative_to(above).as_posix() for runs, place in zip(arms, places, strict=True) for folder in runs
    }


def _place(runs: list[Path], others: set[Path]) -> Path:
    """The folder of an arm: that of its run; of several runs the one that holds them and none of another arm, or else
    that of the first."""
    parent = runs[0].parent
    is_theirs = len(runs) > 1 and parent not in others and all(run.parent == parent for run in runs)
    is_theirs = is_theirs and all(_is_like(runs[0], folder) for folder in RunFolder(parent).runs_below())
    return parent if is_theirs else runs[0]
