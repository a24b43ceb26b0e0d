"""The folder of one run.

config.json        the configuration
environment.json   versions, machine, commit, seed
metrics.jsonl      losses, learning rates, held-out accuracy, interference and the switch, one line each
checkpoints/       the newest two checkpoints
model/             the trained model, for `from_pretrained`
evaluation.json    accuracy by length
pause-N.json       accuracy by length at a pause, if there was one; it has a digest of its own
times.json         seconds of set-up, training steps, checks, evaluation and checkpoints
manifest.json      a digest of configuration, environment, metrics, model, evaluation and result, to detect damage
result.json        written last: a run with it is finished
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig, load_config
from latebloom.differences import MOST_NAMED, describe_differences
from latebloom.engine.checkpoint import complete_checkpoints, fitting, load_newest
from latebloom.engine.environment import describe_environment
from latebloom.engine.extension import extension_obstacle, is_extension
from latebloom.engine.files import make_folder, remove_incomplete, to_json, write_file, write_json
from latebloom.engine.lock import Lock, locked
from latebloom.engine.manifest import FILES, FROM_CHECKPOINT, MANIFEST, damaged_files, write_manifest
from latebloom.errors import CheckpointError, ConfigError, Note, UnreadableError, catch_write_errors, unreadable
from latebloom.evaluation.result import Evaluation
from latebloom.reading import find_link, is_unreadable, read_json_file

IN_USE = "is in use: another process is training there"


class RunFolder:
    """Paths, configuration and lock of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.evaluation_file = self.path / "evaluation.json"
        self.result_file = self.path / "result.json"
        self._lock: Lock | None = None

    @property
    def is_finished(self) -> bool:
        try:
            os.lstat(self.result_file)  # a link in its place is refused where the result is read
        except OSError as error:
            if is_unreadable(error):
                raise unreadable(self.result_file, error) from None
            return False
        return True

    @property
    def is_new(self) -> bool:
        """Whether the folder has no configuration yet."""
        try:
            return not self.config_file.exists()
        except OSError as error:
            raise unreadable(self.config_file, error) from None

    def check_effects(self, config: RunConfig) -> None:
        """Raise if a run begins here with a setting that has no effect, unless its study began with it."""
        try:
            if self.is_new:
                config.check_effects()
        except ConfigError:
            if not any(os.path.exists(parent / "study.json") for parent in self.path.absolute().parents):
                raise

    def read_config(self) -> RunConfig:
        """Return the configuration of the run; raise if there is none, with a hint to the runs nearby."""
        if not _describes_run(self.config_file):
            enclosing = enclosing_run(self.path)
            if enclosing is not None:
                raise CheckpointError(f"{self.path} is inside a run; give the run's folder, {enclosing}")
            if self.config_file.exists():
                raise CheckpointError(f"{self.path} holds no run: its config.json is damaged or not from a run")
            if is_language_run(self.path):
                raise CheckpointError(
                    f"{self.path} is a run of `latebloom lm train` or a corpus, which this command does not read; "
                    f"a run is evaluated with: latebloom lm evaluate {self.path}"
                )
            if self.is_finished and is_run(self.path):
                raise CheckpointError(
                    f"{self.path} is damaged: its config.json is missing; put it back, or remove {self.path} and train "
                    "the run again"
                )
            raise CheckpointError(f"{self.path} holds no run: there is no config.json in it{self.hint_below()}")
        try:
            return load_config(self.config_file)
        except ConfigError as error:
            place = "" if str(self.config_file) in str(error) else f"{self.config_file}: "
            raise ConfigError(f"{place}{error}") from None

    def require_same_settings(self, config: RunConfig) -> None:
        """Raise if the folder holds a run with other settings, and list them."""
        if self.config_file.exists() and (found := self.read_config()).hash != config.hash:
            raise CheckpointError(
                f"out: {self.path} holds a run with other settings "
                f"({describe_differences(found.to_json(), config.to_json())}); "
                "choose another folder, or leave these settings out to continue that run"
            )

    def runs_below(self, levels: int = 1) -> list[Path]:
        """Return the folders of the runs that are this many levels below, damaged ones too."""
        return [folder for folder in sorted(self.path.glob("*/" * levels)) if is_run(folder)]

    def all_below(self) -> list["RunFolder"]:
        """Return the runs at any depth, damaged ones too."""
        found = {file.parent for name in ("config.json", "environment.json") for file in self.path.rglob(name)}
        return [RunFolder(folder) for folder in sorted(found) if is_run(folder)]

    def hint_below(self) -> str:
        """Return "; the runs below it are ..." with the nearest ones, or nothing; a study has three levels."""
        below = next((names for levels in (1, 2, 3) if (names := [str(run) for run in self.runs_below(levels)])), [])
        rest = f" and {len(below) - MOST_NAMED} more" if len(below) > MOST_NAMED else ""
        return f"; the runs below it are {', '.join(below[:MOST_NAMED])}{rest}" if below else ""

    def write_result(self, model: Mapping[str, bytes], evaluation: Evaluation, result: dict[str, Any]) -> None:
        """Write the files of a model, the evaluation, the manifest and, last, the result."""
        self.check_owned()
        if not _describes_run(self.config_file) or self.read_config().hash != result["config_hash"]:
            raise CheckpointError(
                f"{self.config_file} was removed or replaced while the run was training; the run stops; put it back, "
                "or remove it and give the command that began the run"
            )
        make_folder(self.model)
        for name, content in model.items():
            write_file(self.model / name, content)
        write_json(self.evaluation_file, evaluation.to_json())
        content = to_json(result)
        write_manifest(self.path, content)
        write_file(self.result_file, content)

    def read_result(self, config: RunConfig, *files: str) -> dict[str, Any]:
        """Return the result of a finished run with this configuration; raise if it is that of another one, or if it or
        one of the files was changed after the run finished."""
        self._refuse_links()
        if damaged := damaged_files(self.path, (*files, "result.json") if files else FILES):
            cure = f"restore it from the last checkpoint with: latebloom train --out {self.path}"
            raise CheckpointError(
                f"{self.path} is damaged: {damaged[0]} is missing or was changed after the run had finished; "
                f"{cure if self._can_restore(damaged) else f'remove {self.path} and train the run again'}"
            )
        result = read_json(self.result_file, "switch_step", "switch_reason")
        if not config.matches(result.get("config_hash", config.hash)):
            raise CheckpointError(f"{self.path} holds the result of another run than its config.json describes")
        return result

    def _reopen_if_damaged(self) -> None:
        """Make a finished run unfinished if its model or results are damaged and a checkpoint can restore them."""
        damaged = damaged_files(self.path)
        if damaged and self._can_restore(damaged):
            names = " and ".join(damaged)
            told = f"{self.path}: {names} was damaged and is restored from the last checkpoint"
            warnings.warn(told, Note, stacklevel=6)
            self.result_file.unlink(missing_ok=True)

    def _can_restore(self, damaged: list[str]) -> bool:
        saved = complete_checkpoints(self.checkpoints)
        if not saved or not {*damaged} <= {*FROM_CHECKPOINT, MANIFEST}:
            return False
        try:
            load_newest(saved, self.hashes(self.read_config()))
        except UnreadableError:
            raise
        except CheckpointError:
            return False
        return True

    def read_evaluation(self) -> Evaluation:
        """Return the evaluation at the end of training."""
        data = read_json(self.evaluation_file, "training_length", "lengths", "chance", "chance_of")
        try:
            return Evaluation.from_json(data)
        except CheckpointError as error:
            raise CheckpointError(f"{self.evaluation_file} is damaged: {error}") from None

    @contextmanager
    def opened(self, config: RunConfig, device: str, *, extend: bool = False) -> Iterator[None]:
        """Lock the folder for this run and this process while the context lasts.

        With `extend`, the configuration may extend the run in the folder (see `extension`).
        """
        if find_spec("safetensors") is None:
            raise ConfigError("out: saving a run needs the package safetensors, which is not installed")
        self._refuse_links()
        with locked(self.path, f"{self.path} {IN_USE}") as self._lock, catch_write_errors(self.path):
            self._claim(config, device, extend)
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process while the context lasts, and change nothing in it."""
        self._refuse_links()
        with locked(self.path, f"{self.path} {IN_USE}"):
            yield

    def check_owned(self) -> None:
        """Raise if the folder was moved, removed or replaced, or taken by another process, since it was opened."""
        if self._lock is not None:
            self._lock.check("the run was training there")
        for place in (self.checkpoints, self.model):
            if place.is_symlink():
                raise CheckpointError(f"{place} was replaced by a link while the run was training; the run stops")

    def _refuse_links(self) -> None:
        if link := find_link(self.path, levels=2):
            raise CheckpointError(
                f"{link}; the folder of a run holds plain files and folders only, because what is written there must "
                f"stay there; remove it, or choose another folder than {self.path}"
            )

    def _claim(self, config: RunConfig, device: str, extend: bool) -> None:
        """Write configuration and environment, or record that the run is continued or extended."""
        here = describe_environment(config.seed, device)
        make_folder(self.checkpoints)
        for place in (self.path, self.checkpoints, self.model):  # what a killed process left
            remove_incomplete(place)
        if self.is_new:
            if (self.path / "study.json").exists():
                raise CheckpointError(
                    f"out: {self.path} is the folder of several runs; choose another folder for one run"
                )
            if self.is_finished:
                self.read_config()  # raises: it is the folder of a run that lost its configuration
            if saved := complete_checkpoints(self.checkpoints):
                load_newest(saved, config.hashes)  # raises if they are of another run
            write_json(self.environment_file, here | {"resumed": []})
            write_json(self.config_file, config.to_json())
            return
        is_extended = extend and self.can_extend(config)
        if not is_extended:
            self.require_same_settings(config)
            if self.is_finished:
                self._reopen_if_damaged()
            if self.is_finished:
                return
        environment = self.read_environment("resumed")
        environment["resumed"].append(here)
        if is_extended:
            found = self.read_config()
            earlier = {"hashes": list(found.hashes), "steps": found.training.steps}
            environment.setdefault("extended", []).append(earlier)
            self.result_file.unlink(missing_ok=True)  # first: if the process is killed now, the run is unfinished
        write_json(self.environment_file, environment)
        if is_extended:
            write_json(self.config_file, config.to_json())

    def can_extend(self, config: RunConfig) -> bool:
        """Return whether the run in the folder can be continued with other settings.

        Raise if only `FREE` settings differ but the checkpoint does not allow it.
        """
        found = self.read_config()
        if found.hash == config.hash or not is_extension(found, config):
            return False
        above = [folder for folder in list(self.path.absolute().parents)[:3] if (folder / "study.json").exists()]
        if above:  # a study compares runs of equal settings
            raise CheckpointError(
                f"out: {self.path} is one of the runs in {above[0]}, so it cannot be extended alone; "
                "choose another folder with --out"
            )
        saved, done, switch_step = complete_checkpoints(self.checkpoints), 0, None
        if saved:
            newest, _, state = load_newest(saved, self.hashes(found))
            with fitting(newest):
                done, switch_step = int(state["step"]), state["trainer"]["runs"][0]["switch_step"]
        elif self.is_finished:
            raise CheckpointError(
                f"out: {self.path} was trained in a stack and has no checkpoint of its own, so it cannot be extended; "
                "choose another folder with --out"
            )
        if obstacle := extension_obstacle(found, config, done, switch_step):
            raise CheckpointError(f"{obstacle}; choose another folder with --out")
        return True

    def hashes(self, config: RunConfig) -> list[str]:
        """Return the hashes that checkpoints of the run may have: of its configuration, and before it was extended."""
        extended = self.read_environment().get("extended", []) if self.environment_file.exists() else []
        return [*config.hashes, *(hash for entry in extended for hash in entry["hashes"])]

    def read_environment(self, *needed: str) -> dict[str, Any]:
        """Return versions, machine, command and history of the run; raise if one of them has the wrong form."""
        data = read_json(self.environment_file, *needed)
        extended, resumed = data.get("extended", []), data.get("resumed", [])
        is_sound = isinstance(resumed, list) and isinstance(extended, list) and _are_texts(data.get("command", []))
        if not is_sound or not all(isinstance(one, dict) and _are_texts(one.get("hashes")) for one in extended):
            raise CheckpointError(
                f"{self.environment_file} is damaged: command, resumed or extended has a form that no run has written; "
                f"remove {self.path} and train the run again"
            )
        return data


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def read_json(file: Path, *needed: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise if it is damaged or has not all of the `needed` names."""
    try:
        data = read_json_file(file)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise unreadable(file, error) from None
        raise CheckpointError(f"{file} cannot be read ({error})") from None
    missing = [name for name in needed if not isinstance(data, dict) or name not in data]
    if missing or not isinstance(data, dict):
        raise CheckpointError(f"{file} is damaged: there is no {', '.join(missing) or 'setting'} in it")
    return data


def enclosing_run(path: Path) -> Path | None:
    """Return the folder of the run that contains a path, or None."""
    for parent in Path(os.path.abspath(path)).parents:
        with suppress(UnreadableError):  # a folder above may belong to somebody else
            if not _describes_run(parent / "config.json"):
                continue
            return Path(os.path.relpath(parent)) if not path.is_absolute() else parent
    return None


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run; its config.json may be damaged, unreadable, or missing if the run is
    finished."""
    own = folder / "config.json", folder / "result.json"
    has_rest = (folder / "environment.json").exists() and any(map(os.path.lexists, own))
    try:
        return _describes_run(own[0]) or (has_rest and not is_language_run(folder))
    except UnreadableError:  # who reads the run says so
        return has_rest


def is_language_run(folder: Path) -> bool:
    """Return whether a folder is that of a run of `latebloom lm train`, which has other files."""
    return (folder / "settings.json").exists() and not (folder / "config.json").exists()


def _describes_run(file: Path) -> bool:
    """Return whether a config.json belongs to a run, and not to a model or another program."""
    try:
        data = read_json_file(file)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise unreadable(file, error) from None
        return False
    return isinstance(data, dict) and {"task", "training"} <= data.keys()
