"""How to call a model once: with the user's example, with one that is known for its library, or with a guess."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.libraries import example_of
from latebloom.delay.undisturbed import undisturbed
from latebloom.errors import ConfigError

Example = Mapping[str, Any] | tuple[Any, ...] | Tensor
"""The arguments of one small forward pass: by name, by position, or the only one."""
LENGTH = 11
"""Tokens of a guessed example: more than short convolutions reach, and rarely the size of anything else."""


def call_with(model: nn.Module, example: Example) -> Callable[[], Any]:
    """Return a function that calls a model with an example; raise if the example does not fit."""
    positional = example if isinstance(example, tuple) else () if isinstance(example, Mapping) else (example,)
    named = example if isinstance(example, Mapping) else {}
    arguments = signature(model.forward)
    try:
        arguments.bind(*positional, **named)
    except TypeError as error:
        first = next(iter(arguments.parameters), "tokens")
        raise ConfigError(
            f"example: {error}; it must have the arguments of one small forward pass of {type(model).__name__}, such "
            f"as {{{first!r}: ...}}"
        ) from None
    return lambda: model(*positional, **named)


def wrapped(model: nn.Module) -> list[str]:
    """Return the paths of a model and of the models that it wraps: children with all of its parameters."""
    paths, path = [""], ""
    while True:
        module = model.get_submodule(path)
        size = len(list(module.parameters()))
        child = next((name for name, one in module.named_children() if len(list(one.parameters())) == size), None)
        if child is None or isinstance(module.get_submodule(child), nn.ModuleList | nn.ModuleDict):
            return paths
        path = f"{path}.{child}" if path else child
        paths.append(path)


def guess(model: nn.Module) -> Callable[[], Any] | None:
    """Return a function that calls a model with a small input that it accepts; None if none was found."""
    with torch.inference_mode(False):  # inputs made in inference mode have no gradients
        candidates = list(_candidates(model))
    for example in candidates:
        try:
            call = call_with(model, example)
            with undisturbed(model), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as of a reentrant checkpoint without gradients
                call()
        except Exception:  # models raise anything on inputs that they do not expect
            continue
        return call
    return None


def _candidates(model: nn.Module) -> Iterator[Example]:
    known = example_of(model)
    if known is not None:
        yield known
        return
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if embedding is not None:
        tokens = torch.arange(2 * LENGTH, device=device).view(2, LENGTH) % embedding.num_embeddings
        yield tokens
        yield (tokens, tokens)  # source and target
    for module in model.modules():
        width = getattr(module, "input_size", getattr(module, "in_features", None))
        if isinstance(width, int):
            yield torch.randn(2, LENGTH, width, generator=torch.Generator().manual_seed(0)).to(device)
            return
