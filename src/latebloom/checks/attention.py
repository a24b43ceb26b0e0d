"""Checks of scores and positions.

Shapes: B = 2 sequences, H = 2 heads, T = 5 tokens, D = 16 width, E = 8 features per head.
"""

import torch
from torch import Tensor

from latebloom.checks.check import Fails, checks, require, skip
from latebloom.checks.layers import ATTENTION_WIDTH as D
from latebloom.checks.layers import B, H, T, build_seeded, numbers, require_close
from latebloom.errors import ConfigError
from latebloom.layers.attention import Positions, Scores
from latebloom.layers.attention.scores import ScoreLayer

LONGEST = 4096
"""Tokens up to which positions are tried."""


def layer_of(scores: Scores) -> ScoreLayer:
    torch.manual_seed(0)
    return scores.build(D, H).double()


def weights_of(scores: Scores) -> Tensor:
    q, k, _ = numbers(3, B, H, T, D // H)
    return layer_of(scores).weights(q, k, numbers(B, T, D)).detach()


@checks(Scores)
def has_causal_weights(scores: Scores) -> None:
    """weights(q, k, x) are (B, H, T, T), and zero for later tokens"""
    weights = weights_of(scores)
    require(weights.shape == (B, H, T, T), f"they are {tuple(weights.shape)}")
    require(bool((weights.triu(1) == 0).all()), "a token has a weight for a later one")


@checks(Scores)
def has_declared_sums(scores: Scores) -> None:
    """the weights of each token add up to what row_sum declares"""
    if scores.row_sum is None:
        skip("it declares no row_sum")
    off = float((weights_of(scores).sum(dim=-1) - scores.row_sum).abs().max())
    require(off < 1e-6, f"they are off from {scores.row_sum:g} by up to {off:.2g}; declare row_sum = None if they vary")


@checks(Scores)
def attends_by_its_weights(scores: Scores) -> None:
    """attend(q, k, v, x) equals weights(q, k, x) @ v, and so does attend_joint"""
    layer, x = layer_of(scores), numbers(B, T, D)
    q, k, v = numbers(3, B, H, T, D // H)
    expected = layer.weights(q, k, x) @ v
    require_close(layer.attend(q, k, v, x), expected, "attend and weights @ v")
    flat = [part.transpose(1, 2).flatten(2) for part in (q, k, v)]
    joint = layer.attend_joint(torch.cat(flat, dim=-1), None, H, x)
    require_close(joint, expected.transpose(1, 2).flatten(2), "attend_joint and weights @ v")
    shifted = layer.attend_joint(torch.cat([flat[0], flat[1] - 1, flat[2]], dim=-1), torch.ones_like(flat[1]), H, x)
    require_close(shifted, joint, "attend_joint with something added to the keys")


@checks(Positions)
def covers_its_tokens(positions: Positions) -> None:
    """it covers max_tokens tokens, and refuses more with a ConfigError"""
    layer = build_seeded(positions)
    longest = min(LONGEST, positions.max_tokens or LONGEST)
    layer(numbers(1, longest, D))
    if positions.max_tokens is None or positions.max_tokens > LONGEST:
        return
    try:
        layer(numbers(1, longest + 1, D))
    except ConfigError:
        return
    raise Fails(f"it declares {longest} tokens and takes {longest + 1}")
