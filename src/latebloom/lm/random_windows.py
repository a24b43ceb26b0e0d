"""Stochastic windows: at every training step attention sees a random number of the last tokens, the nearest rival of
a delay. Tests use the whole context."""

from math import exp, log
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

SMALLEST = 16
"""Tokens of the smallest window."""


def draw_window(seed: int, step: int, context: int) -> int:
    """Return the window of a step, log-uniform from the smallest to the whole context; a pure function."""
    random = Random(f"{seed}/window/{step}")
    return round(exp(random.uniform(log(min(SMALLEST, context)), log(context))))


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Return what is added to the scores, (1, 1, T, T): 0 for a token itself and those before it within the window.

    It is not a boolean mask, which Transformers' eager attention would add to the scores as 0 and 1.
    """
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    is_seen = (distance >= 0) & (distance < window)
    return torch.zeros(1, 1, length, length, device=device).where(is_seen, -torch.inf)


class RandomWindows(TrainerCallback):
    """Draws a window at each step, and limits attention to it while the model trains."""

    def __init__(self, model: nn.Module, attention: tuple[str, ...], seed: int, context: int) -> None:
        self.seed, self.context, self.window = seed, context, context
        for path in attention:
            model.get_submodule(path).register_forward_pre_hook(self._limit, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.window = draw_window(self.seed, state.global_step, self.context)

    def _limit(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not module.training or self.window >= self.context:
            return given, named
        states = named["hidden_states"] if "hidden_states" in named else given[0]
        return given, named | {"attention_mask": window_mask(states.shape[1], self.window, states.device)}
