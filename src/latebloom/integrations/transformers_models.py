"""What `latebloom.delay` needs to know of Transformers' models; see `delay.libraries`.

Nothing is imported from Transformers: a model says everything itself.
"""

from typing import Any

import torch
from torch import nn

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
    is_attention = layer is None or layer == "hybrid" or ("attention" in layer and layer != "linear_attention")
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
