"""Models from local paths, for `inspect` and `lm evaluate`; nothing is downloaded or unpickled.

Unlike the other integrations, this file imports Transformers only if it is needed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from latebloom.config import KINDS, load_config
from latebloom.delay.marks import PREFIX
from latebloom.engine.checkpoint import fitting, latest_checkpoint, load_checkpoint
from latebloom.engine.folder import RunFolder, enclosing_run, is_language_run
from latebloom.engine.memory import memory_of
from latebloom.errors import ConfigError, first_line, unknown
from latebloom.models.match import count_parameters
from latebloom.models.sequence_model import SequenceModel, read_model_settings
from latebloom.models.settings import Model
from latebloom.reading import read_json_file

LARGEST = 2_000_000_000
"""Models with more parameters than this are inspected without their weights, unless the user says yes."""
MOST_LAYERS, MOST_LABELS, MOST_MODULES = 1_000, 1_000_000, 100_000
"""A configuration with more than these is not built: even without weights it would take minutes."""
RANDOM = "random, as initialized from the configuration"


def load_model(path: str | Path, *, allow_large: bool = False) -> tuple[nn.Module, str]:
    """Return the model at a path, and a description of where its weights come from.

    With `allow_large`, a model of any size is loaded, whatever memory it takes.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"inspect: there is no {path} on this machine; give a folder or a config.json")
    if path.is_dir() and not (path / "config.json").exists():
        checkpoint = path if (path / "state.json").exists() else latest_checkpoint(path)
        if checkpoint is not None:
            return _checkpoint_model(checkpoint)
        if is_language_run(path) and (path / "model" / "config.json").exists():
            return load_model(path / "model", allow_large=allow_large)
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        below = RunFolder(path).hint_below()
        raise ConfigError(f"inspect: {path} holds no model: there is no config.json in it{below}")
    try:
        data = read_json_file(file, follow=True)
    except (OSError, ValueError) as error:
        if path.is_file() and path.suffix != ".json":
            raise ConfigError(
                f"inspect: {path} is no configuration; give the folder of a run, of a checkpoint or of a Transformers "
                "model, or its config.json; pickles such as .pt and .bin files are never opened"
            ) from None
        hint = "" if path.is_dir() else "; give a folder or a config.json"
        raise ConfigError(f"inspect: {file} cannot be read as JSON ({first_line(error)}){hint}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"inspect: {file} is not the configuration of a model; it holds no settings by name")
    folder = path if path.is_dir() else None
    if str(data.get("kind")) in KINDS:  # a run of a study that the engine does not train
        if folder is not None and (folder / "model" / "config.json").exists():
            return load_model(folder / "model", allow_large=allow_large)
        raise ConfigError(
            f"inspect: {path} holds no finished model; `latebloom train --out {file.parent}` says how to continue it"
        )
    if data.get("library") == "latebloom" or ("task" in data and "model" in data):
        return _latebloom_model(data, file, folder, allow_large)
    if "model_type" not in data:
        raise ConfigError(
            f"inspect: {file} is not the configuration of a model; it has neither model_type, as Transformers writes, "
            "nor library: latebloom"
        )
    return _transformers_model(data, file, folder, allow_large)


def _latebloom_model(data: dict[str, Any], file: Path, folder: Path | None, allow_large: bool) -> tuple[nn.Module, str]:
    """Return a saved model or the model of a run; for an unfinished run, from its checkpoint or as initialized."""
    is_saved_model = data.get("library") == "latebloom"
    saved = folder if is_saved_model or folder is None else folder / "model"
    if folder is not None and not is_saved_model and RunFolder(folder).is_finished:
        run = RunFolder(folder)
        run.read_result(run.read_config(), "config.json", "model/config.json", "model/model.safetensors")
    if saved is not None and (saved / "model.safetensors").exists():
        return SequenceModel.from_pretrained(saved), f"those in {saved}"
    if not is_saved_model:
        newest = None if folder is None else latest_checkpoint(RunFolder(folder).checkpoints)
        if newest is not None:
            model, weights = _checkpoint_model(newest)
            return model, f"{weights}, the newest checkpoint; the run has no finished model"
        config = load_config(file)
        torch.manual_seed(config.seed)
        return _initialized(config.model, config.task.vocabulary_size, file, allow_large), RANDOM
    size = data.get("vocabulary_size")
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"inspect: {file}: vocabulary_size: {size!r} is not a number of tokens")
    torch.manual_seed(0)
    return _initialized(read_model_settings(data), size, file, allow_large), RANDOM


def _initialized(settings: Model, vocabulary_size: int, file: Path, allow_large: bool) -> SequenceModel:
    """Return a model with its first weights; raise if it is large, before anything is allocated."""
    if (layers := sum(map(len, settings.layout_blocks))) > MOST_LAYERS:
        raise ConfigError(
            f"inspect: {file} describes {layers} layers, which is not possible; it must be {MOST_LAYERS} or less"
        )
    count = count_parameters(settings, vocabulary_size)
    if count > _largest() and not allow_large:
        raise ConfigError(
            f"inspect: {file} describes a model of {count:,} parameters, which takes {4 * count / 2**30:,.0f} GiB; "
            "give --yes to build it"
        )
    return SequenceModel(settings, vocabulary_size)


def _checkpoint_model(path: Path) -> tuple[nn.Module, str]:
    """Return the model of a checkpoint of a run."""
    run = enclosing_run(path)
    if run is None:
        raise ConfigError(
            f"inspect: {path} is a checkpoint outside the folder of its run, so its config.json is missing"
        )
    folder = RunFolder(run)
    config = folder.read_config()
    tensors, state = load_checkpoint(path, folder.hashes(config))
    with fitting(path, remedy=""):
        model = SequenceModel(config.model, config.task.vocabulary_size)
        model.load_state_dict(tensors["model"])
        return model, f"those in {path}, of step {state['step']} of {config.training.steps}"


def _transformers_model(
    data: dict[str, Any], file: Path, folder: Path | None, allow_large: bool
) -> tuple[nn.Module, str]:
    """Return a Transformers model."""
    if find_spec("transformers") is None:
        raise ConfigError(
            f"inspect: {file} describes a Transformers model ({data['model_type']}), and the package transformers is "
            "not installed"
        )
    transformers = quiet_transformers()
    kinds = transformers.CONFIG_MAPPING
    if data["model_type"] not in kinds:
        error = unknown(f"inspect: {file}: model_type", data["model_type"], kinds)
        raise ConfigError(
            f"{str(error).partition('choices: ')[0].rstrip('; ')}; this Transformers has {len(kinds.keys())}"
        )
    _check_layers(data, file)
    if folder is not None:
        _check_index(folder)
    try:
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(file, **local)  # reads infinity as Transformers writes it
        builder: Any = transformers.AutoModel
        if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            builder = transformers.AutoModelForCausalLM
        with torch.device("meta"), _counted_modules():
            outline = builder.from_config(config, dtype=torch.float32)
        count = sum(parameter.numel() for parameter in outline.parameters())
        if count > _largest() and not allow_large:
            return outline, f"none; with {count:,} parameters the model is inspected without them"
        if folder is not None and any(folder.glob("*.safetensors")):
            local |= {"config": config, "use_safetensors": True, "dtype": torch.float32}
            with _without_pickle():
                model, found = builder.from_pretrained(folder, output_loading_info=True, **local)
            missing = sorted(found["missing_keys"])
            exception = f", except {len(missing)} that are missing there ({missing[0]}, ...)" if missing else ""
            marks = [name for name in found["unexpected_keys"] if name.startswith(PREFIX)]
            return model, f"those in {folder}{exception}" + ", which were trained without attention" * bool(marks)
        torch.manual_seed(0)
        return builder.from_config(config, dtype=torch.float32), RANDOM
    except Exception as error:  # a wrong configuration may raise anything
        raise ConfigError(
            f"inspect: Transformers cannot build a {data['model_type']} from {file.parent} "
            f"({type(error).__name__}: {first_line(error)})"
        ) from None


def quiet_transformers() -> Any:
    """Import Transformers so that it downloads nothing and prints neither bars nor remarks about missing kernels."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, or fast kernels would be downloaded
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _largest() -> int:
    """Return the most parameters that are inspected with weights: the model and a copy take half of the memory."""
    return min(LARGEST, memory_of(torch.device("cpu")) // 16)


def _check_layers(data: dict[str, Any], file: Path) -> None:
    """Raise for a configuration of so many layers or labels that it could not even be outlined."""
    for name, value in data.items():
        if isinstance(value, dict) and name.endswith("config"):
            _check_layers(value, file)
        elif name.endswith(("layer", "layers", "depth", "depths", "labels")):
            most = MOST_LABELS if name.endswith("labels") else MOST_LAYERS
            if any(isinstance(one, int) and one > most for one in (value if isinstance(value, list) else [value])):
                raise ConfigError(f"inspect: {file}: {name}: {value} is not possible; it must be {most} or less")


@contextmanager
def _counted_modules() -> Iterator[None]:
    """Refuse to build very many modules while the context lasts, whichever setting asks for them."""
    begin, count = nn.Module.__init__, 0

    def begin_counted(self: nn.Module, *arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise ConfigError(f"it has more than {MOST_MODULES:,} modules")
        begin(self, *arguments, **options)

    nn.Module.__init__ = begin_counted
    try:
        yield
    finally:
        nn.Module.__init__ = begin


def _check_index(folder: Path) -> None:
    """Raise if an index names a file of weights that would be unpickled, or one in another folder."""
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = read_json_file(index, follow=True)["weight_map"].values()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"inspect: {index} is no index of weights ({first_line(error)})") from None
        for file in named:
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise ConfigError(
                    f"inspect: {index} names {file!r} as a file of weights; only safetensors files in the same folder "
                    "are read, because others would be unpickled"
                )


@contextmanager
def _without_pickle() -> Iterator[None]:
    """Refuse to unpickle while the context lasts, whatever a library is led to."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise ConfigError("a file of weights would be unpickled; only safetensors files are read")

    load, torch.load = torch.load, refuse
    try:
        yield
    finally:
        torch.load = load
