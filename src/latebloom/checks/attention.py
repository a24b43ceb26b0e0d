"""Checks of scores and positions, alone and within attention.

Shapes: B = 2 sequences, H = 2 heads, T = 5 tokens, D = 16 width, E = 8 features per head.
"""

import torch
from torch import Tensor, nn

from latebloom.checks.check import Fails, checks, require, skip
from latebloom.checks.tensors import check_capture, check_gradients, check_stacked, numbers, require_close
from latebloom.errors import ConfigError
from latebloom.layers.attention import NoPositions, Positions, Scores, SelfAttention, Softmax
from latebloom.layers.attention.scores import ScoreLayer

B, H, T, D = 2, 2, 5, 16
LONGEST = 4096
"""Tokens up to which positions are tried."""


def attention_of(component: Scores | Positions) -> SelfAttention:
    positions = component if isinstance(component, Positions) else NoPositions()
    scores = component if isinstance(component, Scores) else Softmax()
    return SelfAttention(D, H, positions=positions, scores=scores)


def build(component: Scores | Positions) -> SelfAttention:
    torch.manual_seed(0)
    return attention_of(component).double()


def layer_of(scores: Scores) -> ScoreLayer:
    torch.manual_seed(0)
    return scores.build(D, H).double()


def queries_keys_values() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = numbers(3, B, H, T, D // H)
    return q, k, v


def call(layer: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
    return layer(*given)


@checks(Scores)
def has_causal_weights(scores: Scores) -> None:
    """weights(q, k, x) are (B, H, T, T), and zero for later tokens"""
    q, k, _ = queries_keys_values()
    weights = layer_of(scores).weights(q, k, numbers(B, T, D))
    require(weights.shape == (B, H, T, T), f"they are {tuple(weights.shape)}")
    require(bool((weights.triu(1) == 0).all()), "a token has a weight for a later one")


@checks(Scores)
def has_declared_sums(scores: Scores) -> None:
    """the weights of each token add up to what row_sum declares"""
    if scores.row_sum is None:
        skip("it declares no row_sum")
    q, k, _ = queries_keys_values()
    sums = layer_of(scores).weights(q, k, numbers(B, T, D)).detach().sum(dim=-1)
    off = float((sums - scores.row_sum).abs().max())
    require(off < 1e-6, f"they are off from {scores.row_sum:g} by up to {off:.2g}; declare row_sum = None if they vary")


@checks(Scores)
def attends_by_its_weights(scores: Scores) -> None:
    """attend(q, k, v, x) equals weights(q, k, x) @ v, and so does attend_joint"""
    layer, x = layer_of(scores), numbers(B, T, D)
    q, k, v = queries_keys_values()
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
    layer = build(positions)
    longest = min(LONGEST, positions.max_tokens or LONGEST)
    layer(numbers(1, longest, D))
    if positions.max_tokens is None or positions.max_tokens > LONGEST:
        return
    try:
        layer(numbers(1, longest + 1, D))
    except ConfigError:
        return
    raise Fails(f"it declares {longest} tokens and takes {longest + 1}")


def _both(function):
    return checks(Positions)(checks(Scores)(function))


@_both
def is_causal(component: Scores | Positions) -> None:
    """attention with it is causal"""
    layer, x = build(component), numbers(B, T, D)
    before = layer(x)
    for t in range(1, T):
        changed = x.clone()
        changed[:, t:] += 1.0
        difference = float((layer(changed) - before)[:, :t].detach().abs().max())
        require(difference < 1e-9, f"an output before token {t} changes with it, by {difference:.2g}")


@_both
def is_deterministic(component: Scores | Positions) -> None:
    """it is deterministic"""
    x = numbers(B, T, D)
    require(torch.equal(build(component)(x), build(component)(x)), "two layers from the same seed differ")


@_both
def has_gradients(component: Scores | Positions) -> None:
    """its gradients agree with finite differences in float64"""
    layer = build(component)
    check_gradients(layer, layer, numbers(B, T, D))


@_both
def can_be_stacked(component: Scores | Positions) -> None:
    """in a stack it computes what it computes alone"""
    stacking = component.stacking
    if isinstance(component, Scores) and stacking == "loop":  # attention itself loops over its scores
        stacking = "vmap"
    check_stacked(lambda: attention_of(component), stacking, call, numbers(3, B, T, D))


@_both
def can_be_captured(component: Scores | Positions) -> None:
    """its forward and backward pass can be captured as a CUDA graph"""
    check_capture(lambda: attention_of(component), call, [numbers(B, T, D)])
