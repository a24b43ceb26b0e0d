"""Whether run folders, study folders and results files are as they were written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from latebloom.engine.checkpoint import complete_checkpoints, load_checkpoint
from latebloom.engine.files import remove_folder
from latebloom.engine.folder import RunFolder, is_run
from latebloom.engine.loop import run
from latebloom.engine.manifest import MANIFEST, damaged_files, manifest_digest
from latebloom.engine.pause import pause_steps, read_pause
from latebloom.errors import CheckpointError, LatebloomError, ResultsError, UnreadableError
from latebloom.reading import find_link
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, has_digest, read_results
from latebloom.results.probes import FOLDER as PROBES
from latebloom.results.probes import is_probe_file, probe_files, read_probes


@dataclass(frozen=True)
class Verified:
    """What was found about one run or file."""

    path: Path
    problems: tuple[str, ...] = ()
    """What is damaged."""
    unreadable: tuple[str, ...] = ()
    """What cannot be read now, and may be whole."""
    note: str = ""
    """What could not be checked."""

    @property
    def is_sound(self) -> bool:
        return not self.problems and not self.unreadable


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
        raise ResultsError(f"verify: {path} holds neither runs nor results")
    yield from map(_verify_run, runs)
    for file in files:
        below = [folder.path for folder in runs if folder.path.is_relative_to(file.parent)]
        yield _verify_file(file, below or None)
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
    whole = [one for one in saved if _is_whole(one, hashes)]
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


class Refused:
    """What was refused while a run or a file was checked."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unreadable: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except UnreadableError as error:
            self.unreadable.append(str(error))
        except LatebloomError as error:
            self.problems.append(str(error))

    def verified(self, path: Path, note: str = "") -> Verified:
        return Verified(path, tuple(self.problems), tuple(dict.fromkeys(self.unreadable)), note)


def _verify_run(folder: RunFolder) -> Verified:
    if link := find_link(folder.path, levels=2):
        return Verified(folder.path, (link,))
    found, is_finished = Refused(), False
    with found.noted():
        is_finished = folder.is_finished
    with found.noted():
        hashes = folder.hashes(folder.read_config())
        for checkpoint in complete_checkpoints(folder.checkpoints):
            with found.noted():
                load_checkpoint(checkpoint, hashes)
        for step in pause_steps(folder):
            with found.noted():
                read_pause(folder, step)
    if not is_finished:
        note = "it is not finished, so only its checkpoints could be checked"
        if pause_steps(folder):
            note = "it was paused by a round of tuning, so only its checkpoints and pauses could be checked"
        return found.verified(folder.path, "" if found.unreadable else note)
    with found.noted():
        found.problems += [f"{name} is missing or was changed" for name in damaged_files(folder.path)]
    if not found.problems:
        with found.noted():
            folder.read_result(folder.read_config(), "result.json")
    has_manifest = (folder.path / MANIFEST).exists()
    note = "" if has_manifest else "it was written by a version without digests, so changed files are not noticed"
    return found.verified(folder.path, note)


def _is_whole(checkpoint: Path, hashes: list[str]) -> bool:
    """Return whether a checkpoint is whole; raise if it cannot be read now, because then it may be."""
    try:
        load_checkpoint(checkpoint, hashes)
    except UnreadableError:
        raise
    except CheckpointError:
        return False
    return True


def _verify_file(path: Path, runs: Sequence[Path] | None) -> Verified:
    """Check a results file or one of a probe, and that it was made from these runs if they are known."""
    found, note = Refused(), ""
    with found.noted():
        if path.parent.name == PROBES or is_probe_file(path):
            read_probes([path])
        else:
            made_from = {record.manifest for record in read_results([path])} - {None}
            if runs is not None and made_from - {manifest_digest(run) for run in runs}:
                found.problems.append(
                    "it was made from other runs than are in the folder, or from these before they were changed or "
                    "repaired; give the command of the study again to write it anew"
                )
        if not has_digest(path):
            note = "it was written by a version without digests, so a changed number is not noticed"
    return found.verified(path, "" if found.problems else note)
