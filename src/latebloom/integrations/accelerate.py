"""Delayed attention in a loop with Accelerate.

    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    delay = delayed_attention(accelerator, model, optimizer, until=at_step(6_000))

The switch is always between optimizer steps, also with gradient accumulation. `accelerator.save_state` saves the delay
in its own file, and `accelerator.load_state` raises if a checkpoint has none. What `save_state` and `save_model` write
during the delay is marked, see `delay.marks`.
"""

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate import Accelerator
from torch import nn

from latebloom.delay.hooks import DelayedAttention
from latebloom.delay.marks import entry_for
from latebloom.delay.optimizers import Optimizers
from latebloom.errors import ConfigError

_delays: WeakKeyDictionary[Accelerator, int] = WeakKeyDictionary()


def delayed_attention(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizers, **settings: Any
) -> DelayedAttention:
    """Return a `DelayedAttention` for a prepared model and optimizers; it is saved and loaded with the accelerator."""
    unwrapped, save_model = accelerator.unwrap_model(model), accelerator.save_model
    delay = DelayedAttention(unwrapped, optimizer, **settings)
    number = _delays.get(accelerator, 0)
    _delays[accelerator] = number + 1
    name = f"delayed_attention_{number}.pt"

    def save(models: list[nn.Module], weights: list[Any], folder: str) -> None:
        accelerator.save(delay.state_dict(), Path(folder) / name)
        for one, its_weights in zip(models, weights, strict=False):  # there are no weights if they are sharded
            its_weights.update(entry_for(one))

    def save_marked(saved: nn.Module, *positional: Any, **named: Any) -> None:
        inner = accelerator.unwrap_model(saved)
        handle = inner.register_state_dict_post_hook(lambda one, weights, *_: weights.update(entry_for(one)))
        try:
            save_model(saved, *positional, **named)
        finally:
            handle.remove()

    def load(models: list[nn.Module], folder: str) -> None:
        if not (Path(folder) / name).is_file():
            raise ConfigError(
                f"delay: the checkpoint {folder} was saved without the delay, so it is not known whether "
                "attention was enabled"
            )
        delay.load_state_dict(torch.load(Path(folder) / name, weights_only=True))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    accelerator.save_model = save_marked  # type: ignore[method-assign] (it has no hooks)
    return delay
