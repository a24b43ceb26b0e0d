"""DAT in torchtitan: a function that its Trainer calls once the model and the optimizers are built.

    spec = dataclasses.replace(spec, post_optimizer_build_fn=delayed_attention(until=at_step(6_000)))

Nothing is imported from torchtitan.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from latebloom.delay import DelayedAttention, Trigger
from latebloom.errors import ConfigError

KEY = "delayed_attention"


def delayed_attention(*, until: Trigger, **options: Any) -> Callable[..., DelayedAttention]:
    """Return a `post_optimizer_build_fn` for a model spec; `options` are those of `DelayedAttention`.

    The state of the delay is saved and loaded with that of the optimizers.
    """

    def begin(optimizers: Any, model_parts: Sequence[nn.Module], parallel_dims: Any = None) -> DelayedAttention:
        if len(model_parts) != 1:
            raise ConfigError(
                f"delay: this model has {len(model_parts)} pipeline stages; a delay works without pipeline parallelism"
            )
        delay = DelayedAttention(model_parts[0], list(optimizers.optimizers), until=until, **options)
        save, load = optimizers.state_dict, optimizers.load_state_dict

        def state_dict() -> dict[str, Any]:
            state = delay.state_dict()
            save()  # before the first step, it steps the optimizers to create their state
            delay.load_state_dict(state)
            # A checkpoint is loaded into existing tensors, so it must have the same ones on either side of the switch.
            _create_missing_state(optimizers.optimizers, delay.parameters().values())
            return save() | {KEY: json.dumps(state)}

        def load_state_dict(state: dict[str, Any]) -> None:
            load({name: value for name, value in state.items() if name != KEY})
            delay.load_state_dict(json.loads(state[KEY]))

        optimizers.state_dict, optimizers.load_state_dict = state_dict, load_state_dict
        return delay

    return begin


def _create_missing_state(optimizers: Iterable[torch.optim.Optimizer], parameters: Iterable[nn.Parameter]) -> None:
    """Create the state of parameters that were not stepped: zeros, in the form of that of another parameter."""
    held = list(parameters)
    for optimizer in optimizers:
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        other, form = next(iter(optimizer.state.items()), (None, {}))
        for parameter in held:
            if other is not None and id(parameter) in trained and not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    name: torch.zeros_like(parameter if value.shape == other.shape else value)
                    for name, value in form.items()
                }
