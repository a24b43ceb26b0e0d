"""Changes to attention and to recurrences, for the ablation of a trained model.

Shapes: B sequences, H heads, T tokens, D width, E features per head, R queries and K keys of a tile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from latebloom.models.block import Residual
from latebloom.probes.attention import Edit, Place


class HeadOff(Edit):
    """The output of one head is zero."""

    def __init__(self, layer: int, head: int) -> None:
        self.layer, self.head = layer, head

    def outputs(self, layer: int, mixed: Tensor) -> Tensor:
        if layer != self.layer:
            return mixed
        kept = torch.ones(mixed.shape[-3], 1, 1, dtype=mixed.dtype, device=mixed.device)
        kept[self.head] = 0
        return mixed * kept


class Uniform(Edit):
    """Every key that a query attends to has the same weight; the weights keep their sum."""

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        even = visible / visible.sum(dim=-1, keepdim=True).clamp_min(1)
        return even * weights.sum(dim=-1, keepdim=True)


class Shuffled(Edit):
    """The weights of a query are given to other keys at random, among those that it attends to."""

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        generator = torch.Generator().manual_seed(place.layer)
        noise = torch.rand(weights.shape[-2:], generator=generator).to(weights.device)
        order = noise.masked_fill(~visible, torch.inf).argsort(dim=-1)  # the keys that are attended to come first
        target = (~visible).long().argsort(dim=-1, stable=True)
        return torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, order))


class Cut(Edit):
    """A query attends to this many tokens up to itself."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def scores(self, scores: Tensor, place: Place) -> Tensor:
        return scores.masked_fill(place.distance >= self.tokens, -torch.inf)


class Hard(Edit):
    """In place of the softmax, the key with the largest weight takes the whole sum."""

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        first = weights.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(weights).scatter(-1, first, weights.sum(dim=-1, keepdim=True))


class Temperature(Edit):
    """The scores are divided by a temperature."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def scores(self, scores: Tensor, place: Place) -> Tensor:
        return scores / self.temperature


class FromAnother(Edit):
    """Queries and keys, or values, are those of the next sequence of the batch."""

    def __init__(self, what: Literal["queries and keys", "values"]) -> None:
        self.what = what

    def inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.what == "values":
            return q, k, v.roll(1, dims=0)
        return q.roll(1, dims=0), k.roll(1, dims=0), v


StateChange = Literal["reset", "frozen", "exchanged"]


@contextmanager
def changed_state(parts: Sequence[Residual], change: StateChange, split: int) -> Iterator[None]:
    """Change the states of recurrent parts after token `split` of every sequence while the context lasts.

    The state is reset to its start, stays as it is, or is exchanged with that of the next sequence of the batch.
    """

    def forward_of(body: Any) -> Callable[..., Any]:
        def forward(x: Tensor, state: Any = None, noise: Tensor | None = None) -> Any:
            whole = type(body).forward
            if not 0 < split < x.shape[1]:
                return whole(body, x, state)
            first, state = whole(body, x[:, :split], state)
            rest = x[:, split:]
            if change == "frozen":  # every later token is a sequence of its own that starts from the same state
                count = rest.shape[1]
                each = tree_map(lambda one: one.repeat_interleave(count, dim=0), state)
                second, _ = whole(body, rest.reshape(-1, 1, x.shape[2]), each)
                return torch.cat([first, second.view_as(rest)], dim=1), state
            start = None if change == "reset" else tree_map(lambda one: one.roll(1, dims=0), state)
            second, state = whole(body, rest, start)
            return torch.cat([first, second], dim=1), state

        return forward

    bodies: list[Any] = [part.body for part in parts]
    try:
        for body in bodies:
            body.forward = forward_of(body)
        yield
    finally:
        for body in bodies:
            del body.forward
