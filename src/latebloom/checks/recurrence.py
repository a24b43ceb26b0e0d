"""Checks of a recurrence.

Shapes: B = 2 sequences, T = 5 tokens, D width.
"""

import torch
from torch.utils._pytree import tree_leaves

from latebloom.checks.check import checks, require, skip
from latebloom.checks.layers import B, T, build_seeded, inputs, require_close, width_of
from latebloom.layers.recurrence import Recurrence


@checks(Recurrence)
def has_shapes(recurrence: Recurrence) -> None:
    """forward(x) returns outputs of the shape of x, and a state"""
    x = inputs(recurrence)
    returned = build_seeded(recurrence)(x)
    require(isinstance(returned, tuple) and len(returned) == 2, f"it returns {type(returned).__name__}")
    require(returned[0].shape == x.shape, f"outputs are {tuple(returned[0].shape)} for inputs {tuple(x.shape)}")


@checks(Recurrence)
def declares_state_size(recurrence: Recurrence) -> None:
    """state_size(width) is how many numbers the state of a sequence has"""
    _, state = build_seeded(recurrence)(inputs(recurrence))
    found = sum(leaf.numel() for leaf in tree_leaves(state)) // B
    said = recurrence.state_size(width_of(recurrence))
    require(found == said, f"the state has {found} numbers per sequence, and state_size says {said}")


@checks(Recurrence)
def continues_from_its_state(recurrence: Recurrence) -> None:
    """a sequence in pieces, with the state passed on, equals the whole sequence"""
    layer, x = build_seeded(recurrence), inputs(recurrence)
    whole, last = layer(x)
    pieces, state = [], None
    for piece in x.split([2, 1, T - 3], dim=1):
        out, state = layer(piece, state)
        pieces.append(out)
    require_close(torch.cat(pieces, dim=1), whole, "outputs in pieces and as a whole")
    require_close(state, last, "the last state in pieces and as a whole")


@checks(Recurrence)
def takes_state_noise(recurrence: Recurrence) -> None:
    """state noise changes the state and the outputs"""
    if not recurrence.state_noise:
        skip("it does not declare state_noise, and runs with training.state_noise are refused")
    layer, x = build_seeded(recurrence), inputs(recurrence)
    quiet, state = layer(x)
    still, still_state = layer(x, noise=torch.zeros_like(x))
    require_close((still, still_state), (quiet, state), "noise of zero and no noise")
    loud, loud_state = layer(x, noise=0.5 * inputs(recurrence, seed=1))
    pairs = zip(tree_leaves(loud_state), tree_leaves(state), strict=True)
    require(any(not torch.equal(one, other) for one, other in pairs), "the state is the same with noise as without")
    require(not torch.equal(loud, quiet), "the outputs are the same with noise as without")
