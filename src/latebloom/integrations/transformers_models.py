"""What `latebloom.delay` needs to know of Transformers' models; see `delay.libraries`.

Nothing is imported from Transformers: a model says everything itself.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from latebloom.delay.marks import entry_for

MIXERS = ("Mixer", "MambaLayer", "DeltaNet", "ShortConv", "RecurrentBlock", "Rglru", "SSM")


def classify(model: nn.Module, name: str, module: nn.Module) -> str | None:
    """Match a class called ...Attention that is causal softmax and not in a layer of another type."""
    kind = type(module).__name__
    if kind.endswith(MIXERS):
        return f"{kind} is a recurrence or convolution"
    if not kind.endswith("Attention"):
        return None
    if getattr(module, "is_causal", None) is not True:
        return f"{kind} is not causal softmax attention (is_causal is {getattr(module, 'is_causal', 'absent')})"
    layer = _layer_type(model, name)
    is_attention = layer is None or layer.startswith("hybrid") or ("attention" in layer and layer != "linear_attention")
    return "" if is_attention else f"{kind} is in a layer of type {layer}"


def _layer_type(model: nn.Module, name: str) -> str | None:
    """Return the type of the layer that a module is in; the first number in its path is the layer."""
    configs = (getattr(module, "config", None) for module in model.modules())  # the model may be inside a wrapper
    types = next(filter(None, (getattr(config, "layer_types", None) for config in configs)), [])
    layer = next((int(part) for part in name.split(".") if part.isdecimal()), len(types))
    return types[layer] if layer < len(types) else None


def example_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of a pass over five tokens, for a language model or an encoder-decoder."""
    own: Any = getattr(model, "config", None)
    config = own.get_text_config() if hasattr(own, "get_text_config") else own  # for multimodal models
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int) or not hasattr(model, "get_input_embeddings"):
        return None
    device = next(model.parameters()).device
    tokens = torch.arange(1, 6, device=device)[None] % size
    target = {"decoder_input_ids": tokens[:, :4]} if getattr(own, "is_encoder_decoder", False) else {}
    return {"input_ids": tokens, **target, "use_cache": False}


class MarkedFiles:
    """Replaces the `save_pretrained` of a model: weights that are saved during the delay have an entry that says so.

    `from_pretrained` reports the name of an entry that it does not expect.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        model.save_pretrained = self.save  # type: ignore[assignment] (a method, as in the class)

    def remove(self) -> None:
        """Restore the method."""
        del self.model.save_pretrained

    def save(self, folder: str | Path, is_main_process: bool = True, state_dict: Any = None, **options: Any) -> Any:
        if entry := entry_for(self.model):
            state_dict = {**(self.model.state_dict() if state_dict is None else state_dict), **entry}
        kind: Any = type(self.model)
        return kind.save_pretrained(self.model, folder, is_main_process, state_dict, **options)


def mark_files(model: nn.Module) -> list[MarkedFiles]:
    """Mark what `save_pretrained` writes, of this model and of the models in it."""
    return [MarkedFiles(one) for one in model.modules() if _is_model(one)]


def _is_model(module: nn.Module) -> bool:
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)
