"""The runs to report on: from results files, folders of studies, and folders of runs."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.errors import LatebloomError, ResultsError
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, read_results
from latebloom.results.record import RunRecord

ALONE = "runs"
"""The study name of runs that belong to no study."""


def gather(paths: Sequence[Path]) -> list[RunRecord]:
    """Return the runs of results files and studies, followed by those of run folders."""
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
                f"results: {path} is not the folder of a study; name the files in it to report on, such as "
                f"{files_there[0]}"
            )
        elif (path / "study.json").exists():
            raise ResultsError(_describe_begun(path))
        else:
            raise ResultsError(
                f"results: {path} holds neither results nor runs; give a results file, the folder of a study or of a "
                "run, or a folder that contains folders of runs"
            )
    return read_results(files) + _single(folders)


def _describe_begun(study: Path) -> str:
    """Return what there is of a study that was killed before it wrote results, and the command that continues it."""
    runs = [RunFolder(file.parent) for file in sorted(study.rglob("seed-*/config.json"))]
    finished = sum(run.is_finished for run in runs)
    found = f"results: {study} is a study without results yet: {len(runs)} runs began and {finished} finished"
    for run in runs:
        words = run.read_environment("command")["command"][1:] if run.environment_file.exists() else []
        if words[:1] in (["study"], ["demo"], ["train"]):  # in a script or on a cluster the words are other ones
            return f"{found}; continue with: latebloom {shlex.join(words)}"
    return f"{found}; continue with the command that began it"


def _single(folders: Sequence[Path]) -> list[RunRecord]:
    """Return the records of runs that belong to no study."""
    places = [Path(os.path.abspath(folder)) for folder in folders]  # links are kept
    if twice := [place for place, count in Counter(places).items() if count > 1]:
        raise ResultsError(f"results: the run {twice[0]} is given twice, by itself or with the folder around it")
    return [collect(run) for run in name_runs(places)]


def name_runs(folders: Sequence[Path]) -> list[StudyRun]:
    """Return the runs in folders outside of studies, with the names of their arms. Runs that differ only in the seed
    are one arm, and an arm is named after its folder, from where the folders of the arms differ."""
    configs: dict[Path, RunConfig] = {}
    taken: dict[str, Path] = {}
    arms: dict[str, list[Path]] = {}
    for folder in folders:
        config = RunFolder(folder).read_config()
        if config.hash in taken:
            raise ResultsError(f"results: {taken[config.hash]} and {folder} hold the same run; give one of them")
        taken[config.hash] = folder
        place = Path(os.path.abspath(folder))
        configs[place] = config
        arms.setdefault(_without_seed(config), []).append(place)
    if not arms:
        return []
    one_arm = cache(_holds_one_arm)
    places = {run: place for runs in arms.values() for place in [_place(runs, configs, one_arm)] for run in runs}
    above = os.path.commonpath([place.parent for place in places.values()])
    return [
        StudyRun(ALONE, config.task.name, places[run].relative_to(above).as_posix(), config, folder)
        for folder, (run, config) in zip(folders, configs.items(), strict=True)
    ]


def _without_seed(config: RunConfig) -> str:
    """Return what runs that differ only in the seed share."""
    return replace(config, seed=0).hash


def _place(runs: list[Path], configs: Mapping[Path, RunConfig], holds_one_arm: Callable[[Path], bool]) -> Path:
    """Return the folder of an arm: the parent of its runs if it contains no run of another arm, or else the first."""
    parent = runs[0].parent
    is_shared = len(runs) > 1 and all(run.parent == parent for run in runs) and parent not in configs
    return parent if is_shared and holds_one_arm(parent) else runs[0]


def _holds_one_arm(folder: Path) -> bool:
    """Return whether the runs in a folder differ in the seed at most."""
    try:
        return len({_without_seed(RunFolder(run).read_config()) for run in RunFolder(folder).runs_below()}) == 1
    except LatebloomError:  # a run that this version cannot read
        return False
