"""Runs to report on, wherever they are: in results files, in the folders of studies, in folders of their own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from latebloom.errors import ResultsError
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, read_results
from latebloom.results.record import RunRecord
from latebloom.training.folder import RunFolder

ALONE = "runs"
"""What stands for the study of runs that belong to none."""


def gather(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs of results files and of studies' folders, and those whose own folders are given, which come last."""
    files: list[Path] = []
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
        elif RunFolder(path).config_file.exists():
            folders.append(path)
        else:
            files += _of_study(path)
    return read_results(files) + _single(folders)


def _of_study(folder: Path) -> list[Path]:
    found = [folder / name for name in (RESULTS_FILE, TUNING_FILE) if (folder / name).exists()]
    if not found:
        raise ResultsError(f"results: {folder} is not the folder of a run, nor of a study that has results")
    return found


def _single(folders: Sequence[Path]) -> list[RunRecord]:
    """Runs of no study. Those that differ in nothing but the seed are one arm, called after the first of them."""
    arms: dict[str, str] = {}
    taken: dict[str, Path] = {}
    records = []
    for folder in folders:
        config = RunFolder(folder).read_config()
        if config.hash in taken:
            raise ResultsError(f"results: {taken[config.hash]} and {folder} hold the same run; give one of them")
        taken[config.hash] = folder
        arm = arms.setdefault(replace(config, seed=0).hash, str(folder))
        records.append(collect(StudyRun(ALONE, config.task.name, arm, config, folder)))
    return records
