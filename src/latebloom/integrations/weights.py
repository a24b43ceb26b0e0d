"""Weights of a checkpoint that Trainer does not restore, and how they are restored.

Transformers keeps some weights under another name or in another shape than the files of their family: the experts of
Jamba and Qwen3-Next are one tensor, and OLMo-Hybrid's norms have other names. `save_pretrained` writes the form of the
files, and `from_pretrained` converts it back. Trainer does not: it reads a checkpoint with
`load_state_dict(..., strict=False)`, which leaves a weight without an entry of its name as it is.

So a checkpoint holds a checksum of every weight. After a resume, the weights that differ are read by `from_pretrained`.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from latebloom.errors import ConfigError, warn_user


def checksums(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the type and the checksum of each weight."""
    return {name: f"{weight.dtype} {_checksum(weight)}" for name, weight in weights.items()}


def restore_weights(model: torch.nn.Module, saved: Mapping[str, str], folder: Path) -> None:
    """Restore the weights that differ from the saved checksums from the checkpoint in `folder`; raise if it fails.

    A weight of another type than the saved one is not compared.
    """
    weights = model.state_dict()
    differing = _differing(weights, saved)
    if not differing:
        return
    names = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
    if isinstance(model, PreTrainedModel) and (folder / "config.json").exists():
        floats = [weight.dtype for weight in weights.values() if weight.is_floating_point()]
        widest = max(floats, key=lambda dtype: dtype.itemsize)  # a cast to it and back is exact
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # it would report that these weights are of a delay, which is known here
        try:
            with torch.random.fork_rng():
                read = type(model).from_pretrained(folder, dtype=widest).state_dict()
        finally:
            logging.set_verbosity(verbosity)
        found = {name: read[name].to(weights[name].dtype) for name in differing if name in read}
        if len(found) == len(differing) and not _differing(found, saved):
            with torch.no_grad():
                for name, weight in found.items():
                    weights[name].copy_(weight)
            warn_user(
                f"delay: Trainer left {len(differing)} weights as they were ({names}), because the checkpoint has them "
                f"under other names; they were restored from {folder}"
            )
            return
    raise ConfigError(
        f"delay: {len(differing)} weights differ from those of the checkpoint after the resume ({names}), and {folder} "
        f"does not hold them; build the model with {type(model).__name__}.from_pretrained(checkpoint) and resume again"
    )


def _differing(weights: Mapping[str, Tensor], saved: Mapping[str, str]) -> list[str]:
    """Return the names of the weights that have the saved type and another checksum."""
    typed = {name: weight for name, weight in weights.items() if saved.get(name, "").startswith(f"{weight.dtype} ")}
    return [name for name, found in checksums(typed).items() if found != saved[name]]


def _checksum(weight: Tensor) -> str:
    plain = weight.detach().cpu().contiguous().reshape(-1)
    return f"{zlib.crc32(plain.view(torch.uint8).numpy().data):08x}"
