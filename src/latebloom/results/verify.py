"""Whether run folders, study folders and results files are as they were written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from latebloom.engine.checkpoint import complete_checkpoints, load_checkpoint
from latebloom.engine.files import remove_folder
from latebloom.engine.folder import RunFolder, is_language_run, is_run
from latebloom.engine.loop import run
from latebloom.engine.manifest import MANIFEST, damaged_files, manifest_digest
from latebloom.engine.pause import pause_steps, read_pause
from latebloom.errors import CheckpointError, LatebloomError, ResultsError
from latebloom.reading import find_link, is_unreadable, unreadable
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, has_digest, read_results
from latebloom.results.probes import FOLDER as PROBES
from latebloom.results.probes import is_probe_file, probe_files, read_probes
from latebloom.results.record import RunRecord


@dataclass(frozen=True)
class Verified:
    """What was found about one run or file."""

    path: Path
    problems: tuple[str, ...] = ()
    note: str = ""
    """What could not be checked."""


def verify(path: Path) -> Iterator[Verified]:
    """Yield what is found about a results file, a run, or every run and results file in a folder, with their probes."""
    if not path.is_dir():
        yield _verify_file(path, None)
        return
    if is_run(path) or RunFolder(path).config_file.exists():
        yield _verify_run(RunFolder(path))
        yield from (_verify_file(file, None) for file in probe_files(path))
        return
    runs = RunFolder(path).all_below()
    files = sorted(file for name in (RESULTS_FILE, TUNING_FILE) for file in path.rglob(name))
    if not runs and not files:
        if is_language_run(path):
            RunFolder(path).read_config()  # raises, with the command that reads it
        raise ResultsError(f"verify: {path} holds neither runs nor results")
    yield from map(_verify_run, runs)
    manifests = {folder.path: manifest_digest(folder.path) for folder in runs if folder.is_finished}
    for file in files:
        below = [folder.path for folder in runs if folder.path.is_relative_to(file.parent)]
        yield _verify_file(file, {manifests.get(folder) for folder in below} if below else None)
    for folder in sorted({path, *(file.parent for file in files), *(folder.path for folder in runs)}):
        yield from (_verify_file(file, None) for file in probe_files(folder))


def repair(path: Path) -> str | None:
    """Rebuild what can be rebuilt of a run from its checkpoints, and remove damaged ones that nothing needs; return
    what was done, or None if nothing could be."""
    folder = RunFolder(path)
    if not folder.config_file.exists():
        return None
    config, saved = folder.read_config(), complete_checkpoints(folder.checkpoints)
    try:
        hashes = folder.hashes(config)
    except CheckpointError:  # without them nothing can be said of a checkpoint
        return None
    whole = [one for one in saved if not _is_damaged(one, hashes)]
    is_sound = folder.is_finished and not damaged_files(path)
    if not whole and not is_sound:
        return None
    damaged = [one for one in saved if one not in whole]
    with folder.locked():
        for checkpoint in damaged:
            remove_folder(checkpoint)
    if is_sound or not folder.is_finished:
        return f"{path}: removed {', '.join(one.name for one in damaged)}, which was damaged" if damaged else None
    try:
        run(config, path)
    except CheckpointError:  # damaged beyond what a checkpoint holds
        return None
    return f"{path} was repaired from {whole[-1].name}"


def _verify_run(folder: RunFolder) -> Verified:
    if link := find_link(folder.path, levels=2):
        return Verified(folder.path, (link,))
    problems = []
    try:
        folder.read_config()
        saved = complete_checkpoints(folder.checkpoints)
        problems += [damage for one in saved if (damage := _damage(_check_checkpoint, folder, one))]
        problems += [damage for step in pause_steps(folder) if (damage := _damage(read_pause, folder, step))]
    except LatebloomError as error:
        problems.append(str(error))
    if not folder.is_finished:
        note = "it is not finished, so only its checkpoints could be checked"
        if pause_steps(folder):
            note = "it was paused by a round of tuning, so only its checkpoints and pauses could be checked"
        return Verified(folder.path, tuple(problems), note)
    try:
        problems += [f"{name} is missing or was changed" for name in damaged_files(folder.path)]
    except CheckpointError as error:
        problems.append(str(error))
    if not problems:
        try:
            folder.read_result(folder.read_config(), "result.json")
        except LatebloomError as error:
            problems.append(str(error))
    has_manifest = (folder.path / MANIFEST).exists()
    note = "" if has_manifest else "it was written by a version without digests, so changed files are not noticed"
    return Verified(folder.path, tuple(problems), note)


def _check_checkpoint(folder: RunFolder, checkpoint: Path) -> None:
    load_checkpoint(checkpoint, folder.hashes(folder.read_config()))


def _is_damaged(checkpoint: Path, hashes: list[str]) -> bool:
    """Return whether a checkpoint is refused; raise if it cannot be read now, because then it may be whole."""
    try:
        load_checkpoint(checkpoint, hashes)
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and is_unreadable(cause):
            raise CheckpointError(unreadable(checkpoint, cause)) from None
        return True
    return False


def _damage(check: Callable[..., object], *what: object) -> str:
    """Return why a checkpoint or a pause is refused; empty if it is sound."""
    try:
        check(*what)
    except CheckpointError as error:
        return str(error)
    return ""


def _verify_file(path: Path, manifests: set[str | None] | None) -> Verified:
    """Check a results file or one of a probe, and that it was made from the runs with these manifests if these are
    known."""
    records: list[RunRecord] = []
    try:
        if path.parent.name == PROBES or is_probe_file(path):
            read_probes([path])
        else:
            records = read_results([path])
    except ResultsError as error:
        return Verified(path, (str(error),))
    note = "" if has_digest(path) else "it was written by a version without digests, so a changed number is not noticed"
    made_from = {record.manifest for record in records} - {None}
    if manifests is not None and made_from - manifests:
        problem = (
            "it was made from other runs than are in the folder, or from these before they were changed or repaired; "
            "give the command of the study again to write it anew"
        )
        return Verified(path, (problem,))
    return Verified(path, (), note)
