"""Call a model without side effects: its modes, weights, buffers, other state and random numbers are restored."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.visible import eager

LARGEST = 200_000_000
"""Parameters of the largest model of which a copy is kept during the passes."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode; restore modes, weights, buffers, other state and random numbers afterwards."""
    attributes = {module: dict(vars(module)) for module in model.modules()}
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    # Few models change their weights in a forward pass, such as an embedding with `max_norm`.
    size = sum(parameter.numel() for parameter in model.parameters())
    weights = {p: p.detach().clone() for p in model.parameters()} if size <= LARGEST else {}
    try:
        with torch.random.fork_rng(), torch.inference_mode(False), torch.enable_grad(), _unsharded(model), eager():
            model.eval()
            for parameter in frozen:
                parameter.requires_grad_()
            with _without_zeros(model):
                yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, kept in attributes.items():  # its mode, and a state that it keeps beside its buffers
            for name in [name for name, value in vars(module).items() if isinstance(value, Tensor)]:
                del module.__dict__[name]
            module.__dict__.update(kept)
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.data.copy_(buffers[name])
        for parameter, weight in weights.items():
            parameter.data.copy_(weight)


def train_except_torch(model: nn.Module) -> None:
    """Set training mode, except in torch's own modules, where dropout and batch statistics would disturb."""
    model.train()
    for module in model.modules():
        if type(module).__module__.startswith("torch."):
            module.training = False


@contextmanager
def _without_zeros(model: nn.Module) -> Iterator[None]:
    """Draw weights that are zero at random; a projection that begins at zero would hide what depends on it."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    zeros = [(weight, weight.detach().clone()) for weight in weights if not weight.any()]
    try:
        for weight, _ in zeros:
            nn.init.normal_(weight, std=0.02)
        yield
    finally:
        for weight, value in zeros:
            weight.data.copy_(value)


@contextmanager
def _unsharded(model: nn.Module) -> Iterator[None]:
    """Keep the parameters of a model that FSDP2 has sharded whole, so that gradients can be asked for at any point."""
    sharded = _sharded_modules(model)
    groups = [group for module in sharded if (group := module._get_fsdp_state()._fsdp_param_group) is not None]
    kept = [(group.post_forward_mesh_info, group.reshard_after_backward) for group in groups]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)
    try:
        yield
    finally:
        for group, (forward, backward) in zip(groups, kept, strict=True):
            group.post_forward_mesh_info, group.reshard_after_backward = forward, backward
        reshard(model)


def reshard(model: nn.Module) -> None:
    """Divide the weights of a model again that FSDP2 has left whole after a pass without a backward pass.

    With torch 2.13 a training step on such weights goes wrong without an error.
    """
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> list[Any]:
    """Return the modules that FSDP2 has sharded; none without it."""
    return [module for module in model.modules() if hasattr(module, "set_reshard_after_backward")]
