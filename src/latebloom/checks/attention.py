"""Checks of scores and positions.

Shapes: B = 2 sequences, H = 2 heads, T = 5 tokens, D = 16 width, E = 8 features per head.
"""

import torch
from torch import Tensor

from latebloom.checks.check import Fails, checks, require, skip
from latebloom.checks.layers import ATTENTION_WIDTH as D
from latebloom.checks.layers import B, H, T, build_seeded, numbers, require_close
from latebloom.errors import ConfigError
from latebloom.layers.attention import Positions, Scores, Tile, Visibility
from latebloom.layers.attention.scores import ScoreLayer
from latebloom.layers.attention.tiles import PLAIN, scores_of

LONGEST = 4096
"""Tokens up to which positions are tried."""


def layers_of(scores: Scores) -> list[ScoreLayer]:
    """Return the layer in training mode and in evaluation mode."""
    layers = []
    for training in (True, False):
        torch.manual_seed(0)
        layers.append(scores.build(D, H).double().train(training))
    return layers


def weights_of(layer: ScoreLayer) -> Tensor:
    q, k, _ = numbers(3, B, H, T, D // H)
    return layer.all_weights(q, k, numbers(B, T, D)).detach()


@checks(Scores)
def has_causal_weights(scores: Scores) -> None:
    """weights(scores, tile, x) are (B, H, T, T) for a whole sequence, and zero for later tokens"""
    for layer in layers_of(scores):
        weights = weights_of(layer)
        require(weights.shape == (B, H, T, T), f"they are {tuple(weights.shape)}")
        require(bool((weights.triu(1) == 0).all()), "a token has a weight for a later one")


@checks(Scores)
def has_declared_sums(scores: Scores) -> None:
    """the weights of each token add up to what row_sum declares"""
    if scores.row_sum is None:
        skip("it declares no row_sum")
    off = max(float((weights_of(layer).sum(dim=-1) - scores.row_sum).abs().max()) for layer in layers_of(scores))
    require(off < 1e-6, f"they are off from {scores.row_sum:g} by up to {off:.2g}; declare row_sum = None if they vary")


@checks(Scores)
def weighs_in_tiles(scores: Scores) -> None:
    """the weights of some queries equal their rows among the weights of all, as tests on long sequences need"""
    q, k, x = *numbers(3, B, H, T, D // H)[:2], numbers(B, T, D)
    for layer in layers_of(scores):
        expected = weights_of(layer)[..., 2:4, :4]
        tile = Tile(slice(2, 4), slice(0, 4), PLAIN.seen(2, 4, q))
        require_close(layer.weights(scores_of(q, k, tile, PLAIN), tile, x), expected, "weights of rows 2 and 3")


@checks(Scores)
def attends_by_its_weights(scores: Scores) -> None:
    """attend(q, k, v, x) equals the weights @ v, and so does attend_joint; with a window too"""
    x, (q, k, v) = numbers(B, T, D), numbers(3, B, H, T, D // H)
    flat = [part.transpose(1, 2).flatten(2) for part in (q, k, v)]
    for layer in layers_of(scores):
        expected = layer.all_weights(q, k, x) @ v
        require_close(layer.attend(q, k, v, x), expected, "attend and weights @ v")
        joint = layer.attend_joint(torch.cat(flat, dim=-1), None, H, x)
        require_close(joint, expected.transpose(1, 2).flatten(2), "attend_joint and weights @ v")
        shifted = layer.attend_joint(torch.cat([flat[0], flat[1] - 1, flat[2]], dim=-1), torch.ones_like(flat[1]), H, x)
        require_close(shifted, joint, "attend_joint with something added to the keys")
        narrow = Visibility(window=2)
        expected = layer.all_weights(q, k, x, narrow) @ v
        require_close(layer.attend(q, k, v, x, narrow), expected, "attend and weights @ v in a window")


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
