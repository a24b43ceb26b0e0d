"""Checks of a recurrence.

Shapes: B = 2 sequences, T = 5 tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from latebloom.checks.check import checks, require, skip
from latebloom.checks.tensors import check_capture, check_gradients, check_stacked, numbers, require_close
from latebloom.errors import ConfigError
from latebloom.layers.recurrence import Recurrence, RecurrentLayer

B, T = 2, 5


def width_of(recurrence: Recurrence) -> int:
    """Return a small width that the recurrence has a layer for."""
    for width in (8, 16, 32, 64):
        try:
            recurrence.check(width)
        except ConfigError:
            continue
        return width
    return 128


def build(recurrence: Recurrence) -> RecurrentLayer:
    torch.manual_seed(0)
    return recurrence.build(width_of(recurrence)).double()


def inputs(recurrence: Recurrence, seed: int = 0) -> Tensor:
    return numbers(B, T, width_of(recurrence), seed=seed)


def outputs(layer: Any, given: tuple[Tensor, ...]) -> Tensor:
    return layer(*given)[0]


@checks(Recurrence)
def has_shapes(recurrence: Recurrence) -> None:
    """forward(x) returns outputs of the shape of x, and a state"""
    x = inputs(recurrence)
    returned = build(recurrence)(x)
    require(isinstance(returned, tuple) and len(returned) == 2, f"it returns {type(returned).__name__}")
    require(returned[0].shape == x.shape, f"outputs are {tuple(returned[0].shape)} for inputs {tuple(x.shape)}")


@checks(Recurrence)
def declares_state_size(recurrence: Recurrence) -> None:
    """state_size(width) is how many numbers the state of a sequence has"""
    _, state = build(recurrence)(inputs(recurrence))
    found = sum(leaf.numel() for leaf in tree_leaves(state)) // B
    said = recurrence.state_size(width_of(recurrence))
    require(found == said, f"the state has {found} numbers per sequence, and state_size says {said}")


@checks(Recurrence)
def is_causal(recurrence: Recurrence) -> None:
    """an output does not depend on later tokens"""
    layer, x = build(recurrence), inputs(recurrence)
    before = layer(x)[0]
    for t in range(1, T):
        changed = x.clone()
        changed[:, t:] += 1.0
        difference = (layer(changed)[0] - before)[:, :t].abs().amax(dim=(0, 2))
        late = [i for i in range(t) if difference[i] > 1e-9]
        require(not late, f"the output at token {late[0] if late else 0} changes with token {t}")


@checks(Recurrence)
def continues_from_its_state(recurrence: Recurrence) -> None:
    """a sequence in pieces, with the state passed on, equals the whole sequence"""
    layer, x = build(recurrence), inputs(recurrence)
    whole, last = layer(x)
    pieces, state = [], None
    for piece in x.split([2, 1, T - 3], dim=1):
        out, state = layer(piece, state)
        pieces.append(out)
    require_close(torch.cat(pieces, dim=1), whole, "outputs in pieces and as a whole")
    require_close(state, last, "the last state in pieces and as a whole")


@checks(Recurrence)
def is_deterministic(recurrence: Recurrence) -> None:
    """it is deterministic: the same seed gives the same weights, and the same inputs the same outputs"""
    first, second, x = build(recurrence), build(recurrence), inputs(recurrence)
    for name, parameter in first.named_parameters():
        same = torch.equal(parameter, dict(second.named_parameters())[name])
        require(same, f"{name} differs between two layers that were built after torch.manual_seed(0)")
    require(torch.equal(first(x)[0], first(x)[0]), "two calls with the same inputs differ")


@checks(Recurrence)
def has_gradients(recurrence: Recurrence) -> None:
    """its gradients agree with finite differences in float64"""
    layer = build(recurrence)
    check_gradients(lambda x: layer(x)[0], layer, inputs(recurrence))


@checks(Recurrence)
def can_be_stacked(recurrence: Recurrence) -> None:
    """in a stack it computes what it computes alone"""
    width = width_of(recurrence)
    check_stacked(lambda: recurrence.build(width), recurrence.stacking, outputs, numbers(3, B, T, width))


@checks(Recurrence)
def takes_state_noise(recurrence: Recurrence) -> None:
    """state noise changes the state and the outputs"""
    if not recurrence.state_noise:
        skip("it does not declare state_noise, and runs with training.state_noise are refused")
    layer, x = build(recurrence), inputs(recurrence)
    quiet, state = layer(x)
    still, still_state = layer(x, noise=torch.zeros_like(x))
    require_close((still, still_state), (quiet, state), "noise of zero and no noise")
    loud, loud_state = layer(x, noise=0.5 * inputs(recurrence, seed=1))
    pairs = zip(tree_leaves(loud_state), tree_leaves(state), strict=True)
    require(any(not torch.equal(one, other) for one, other in pairs), "the state is the same with noise as without")
    require(not torch.equal(loud, quiet), "the outputs are the same with noise as without")


@checks(Recurrence)
def can_be_captured(recurrence: Recurrence) -> None:
    """its forward and backward pass can be captured as a CUDA graph"""
    width = width_of(recurrence)
    check_capture(lambda: recurrence.build(width), outputs, [numbers(B, T, width)])
