"""Saving and loading models in the Hub's format: config.json and model.safetensors.

huggingface_hub's own mixin would have to be imported with the models, which run where only torch is installed. So this
module uses the Hub's file names, and imports huggingface_hub when it is needed.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from latebloom.errors import CheckpointError, ConfigError
from latebloom.older_formats import migrate_model
from latebloom.plugins import imported, origins
from latebloom.validation import read_settings

if TYPE_CHECKING:
    from latebloom.models.settings import Model


class Shared(nn.Module):
    """Gives a model `save_pretrained`, `from_pretrained` and `push_to_hub`."""

    settings: "Model"
    vocabulary_size: int

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write config.json and model.safetensors into the folder."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = {
            "library": "latebloom",
            "vocabulary_size": self.vocabulary_size,
            "model": asdict(self.settings),
        }
        if imports := origins(self.settings):
            config["imports"] = imports
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return folder

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path, *, revision: str | None = None) -> Self:
        """Load a model from a local folder, or from the Hub if there is no such folder."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(name_or_folder)
        if not folder.is_dir():
            folder = _download(str(name_or_folder), revision)
        try:
            config = json.loads((folder / "config.json").read_text())
            model = cls(read_model_settings(config), int(config["vocabulary_size"]))
            model.load_state_dict(load_file(folder / "model.safetensors"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{folder} holds no model: {Path(error.filename).name} is missing") from None
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, ConfigError) as error:
            raise CheckpointError(f"{folder} is not a model of this library: {_first_line(error)}") from error
        return model

    def push_to_hub(self, name: str, *, private: bool = False) -> str:
        """Upload the model to the Hub as `owner/name` and return its address."""
        from tempfile import TemporaryDirectory

        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(api.upload_folder(repo_id=name, folder_path=folder))


def read_model_settings(config: dict[str, Any]) -> "Model":
    """Return the settings in the config.json of a saved model, of this version or an earlier one."""
    from latebloom.models.settings import Model

    with imported(config.get("imports", [])):
        return read_settings(Model, migrate_model(config.get("model")), "model")


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["config.json", "model.safetensors"]))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(f"{name} is neither a folder nor a model on the Hub: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
