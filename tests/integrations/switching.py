"""What every trainer's tests ask of a delay: what moves in a step, and triggers to try."""

from typing import Any

import torch

from latebloom.delay import DelayedAttention, when_beyond

LENGTH, BATCH = 6, 2
Weights = dict[str, torch.Tensor]
"""A model's parameters at one moment, by name."""


def weights(model: Any) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def moved(names: Any, before: Weights, after: Weights) -> set[str]:
    return {name for name in names if not torch.equal(before[name], after[name])}


def check_switch_after_two_steps(delay: DelayedAttention | None, at: dict[int, Weights], first: int = 0) -> None:
    """Attention stands still in steps 1 and 2 and moves in 3 and 4, and the rest moves in all of them.

    `at` holds the weights after every step; those of a resumed run begin at step `first`.
    """
    assert delay is not None
    attention = set(delay.parameters())
    assert attention
    for step in range(first, 4):
        assert moved(attention, at[step], at[step + 1]) == (attention if step >= 2 else set())
        assert moved(at[step].keys() - attention, at[step], at[step + 1])
    assert delay.switch_step == 2


class ThirdStep:
    """A condition that is met after the third step, and remembers when it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []

    def __call__(self, moment: Any) -> bool:
        self.asked.append((moment.step, moment.steps))
        return moment.step == 3


TRACKING: dict[str, Any] = {
    "until": when_beyond(0.9, latest=4, every=1, checks=3),
    "measure": lambda multiple: 0.95 if multiple == 3 else 0.0,
}
"""The settings of a delay that ends at step 3, after three good checks in a row."""
