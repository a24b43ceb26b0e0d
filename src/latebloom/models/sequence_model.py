"""The whole model, from tokens to logits, and its files in the Hub's format: config.json and model.safetensors.

huggingface_hub's own mixin would have to be imported with the models, which run where only torch is installed. So this
module uses the Hub's file names, and imports huggingface_hub when it is needed.

Shapes: B sequences, T tokens, D width, A answers, V vocabulary.
"""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
from torch import Tensor, nn

from latebloom.delay.marks import mark_of, note_loading
from latebloom.errors import CheckpointError, ConfigError, first_line
from latebloom.layers.embedding import Embedding
from latebloom.layers.norm import Norm
from latebloom.layers.rows import rows_at
from latebloom.models.block import build_block
from latebloom.models.settings import Model
from latebloom.older_formats import migrate_model
from latebloom.plugins import imported, origins
from latebloom.reading import read_json_file, read_plain
from latebloom.validation import read_settings

PIECE = 1 << 12
"""Longer sequences are evaluated in pieces of this many tokens, if the model has no attention."""


class SequenceModel(nn.Module):
    """A causal sequence model: embedding -> blocks -> norm -> logits."""

    def __init__(self, settings: Model, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocabulary_size = vocabulary_size
        self.embedding = Embedding(vocabulary_size, settings.width)
        self.blocks = nn.Sequential(*(build_block(settings, block) for block in settings.layout_blocks))
        self.norm = Norm(settings.width)
        self.logits = nn.Linear(settings.width, vocabulary_size, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the logits (B, A, V) at the positions (B, A), or at every token (B, T, V) if there are none."""
        if positions is None:
            x = self.blocks(self.embedding(tokens))
        elif tokens.shape[1] > PIECE and not self.settings.has_attention and not torch.is_grad_enabled():
            x = self._features_in_pieces(tokens, positions)
        else:
            x = rows_at(positions, self.blocks(self.embedding(tokens)))
        return self.logits(self.norm(x))

    def _features_in_pieces(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the features (B, A, D) at the positions, in memory that does not grow with the number of tokens.

        Recurrences continue from piece to piece with their states, so this is what the whole sequence gives.
        """
        parts: list[Any] = [part for part in self.modules() if getattr(part, "role", None) == "recurrence"]
        found: Any = 0.0
        try:
            for part in parts:
                part.carries_state = True
            for number, piece in enumerate(tokens.split(PIECE, dim=1)):
                places = positions - number * PIECE
                is_here = (places >= 0) & (places < piece.shape[1])
                x = rows_at(places.clamp(0, piece.shape[1] - 1), self.blocks(self.embedding(piece)))
                found = torch.where(is_here[:, :, None], x, found)
        finally:
            for part in parts:
                part.carries_state, part.state = False, None
        return found

    def files(self) -> dict[str, bytes]:
        """Return the contents of config.json and model.safetensors."""
        from safetensors.torch import save

        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        config = {"library": "latebloom", "vocabulary_size": self.vocabulary_size, "model": asdict(self.settings)}
        if imports := origins(self.settings):
            config["imports"] = imports
        if mark := mark_of(self):
            config["delay"] = mark
        described = (json.dumps(config, indent=2) + "\n").encode()
        return {"config.json": described, "model.safetensors": save(weights, metadata={"format": "pt"})}

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write config.json and model.safetensors into the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            (folder / name).write_bytes(content)
        return folder

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path, *, revision: str | None = None) -> Self:
        """Load a model from a local folder, or from the Hub if there is no such folder."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = Path(name_or_folder)
        is_downloaded = not folder.is_dir()  # the Hub's cache consists of links
        if is_downloaded:
            folder = _download(str(name_or_folder), revision)
        try:
            config = read_json_file(folder / "config.json", follow=is_downloaded)
            model = cls(read_model_settings(config), int(config["vocabulary_size"]))
            model.load_state_dict(load(read_plain(folder / "model.safetensors", follow=is_downloaded)))
            if "delay" in config:
                note_loading(model, config["delay"])
        except FileNotFoundError as error:
            raise CheckpointError(f"{folder} holds no model: {Path(error.filename).name} is missing") from None
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError, ConfigError) as error:
            raise CheckpointError(f"{folder} is not a model of this library: {first_line(error)}") from error
        return model

    def push_to_hub(self, name: str, *, private: bool = False) -> str:
        """Upload the model to the Hub as `owner/name` and return its address."""
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(api.upload_folder(repo_id=name, folder_path=folder))


def read_model_settings(config: dict[str, Any]) -> Model:
    """Return the settings in the config.json of a saved model, of this version or an earlier one."""
    with imported(config.get("imports", [])):
        return read_settings(Model, migrate_model(config.get("model")), "model")


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["config.json", "model.safetensors"]))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(f"{name} is neither a folder nor a model on the Hub: {first_line(error)}") from error
