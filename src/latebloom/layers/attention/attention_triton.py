"""Causal softmax attention over short sequences: a program for each sequence and head, its scores on the chip.

Shapes: B sequences, H heads, T tokens, E features per head. Inputs may be strided in all but the last axis.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.order_triton import from_the_end
from latebloom.layers.product_triton import product


@triton.jit
def _weights(q, k, times, tokens, scale, TOKENS: tl.constexpr, PRECISION: tl.constexpr):
    scores = product(q, tl.trans(k), PRECISION) * scale
    seen = (times[None, :] <= times[:, None]) & (times[None, :] < tokens)
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _load(
    x, extra, sequence, head, times, tokens, heads, strides, real, column, E: tl.constexpr, HAS_EXTRA: tl.constexpr
):
    loaded = tl.load(x + sequence * strides[0] + head * strides[1] + times[:, None] * strides[2] + column, real, 0.0)
    if HAS_EXTRA:
        place = ((sequence * tokens + times[:, None]) * heads + head) * E + column
        loaded += tl.load(extra + place, real, 0.0)
    return loaded


@triton.jit
def _attention_forward_kernel(
    q, k, v, extra, mixed, heads, tokens, scale, q_strides, k_strides, v_strides,
    E: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, HAS_EXTRA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = from_the_end(0)
    sequence, head = (program // heads).to(tl.int64), program % heads
    times, features = tl.arange(0, TOKENS), tl.arange(0, FEATURES)
    real = (times[:, None] < tokens) & (features[None, :] < E)
    column = features[None, :]
    queries = _load(q, extra, sequence, head, times, tokens, heads, q_strides, real, column, E, False)
    keys = _load(k, extra, sequence, head, times, tokens, heads, k_strides, real, column, E, HAS_EXTRA)
    values = _load(v, extra, sequence, head, times, tokens, heads, v_strides, real, column, E, False)
    weights = _weights(queries, keys, times, tokens, scale, TOKENS, PRECISION)
    # Memory order (B, T, H, E): the heads of a token are adjacent, as the output projection reads them.
    place = ((sequence * tokens + times[:, None]) * heads + head) * E + column
    tl.store(mixed + place, product(weights, values, PRECISION), real)


@triton.jit
def _attention_backward_kernel(
    q, k, v, extra, d_mixed, d_q, d_k, d_v, heads, tokens, scale, q_strides, k_strides, v_strides, d_strides, d_token,
    E: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, HAS_EXTRA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = from_the_end(0)
    sequence, head = (program // heads).to(tl.int64), program % heads
    times, features = tl.arange(0, TOKENS), tl.arange(0, FEATURES)
    real = (times[:, None] < tokens) & (features[None, :] < E)
    column = features[None, :]
    queries = _load(q, extra, sequence, head, times, tokens, heads, q_strides, real, column, E, False)
    keys = _load(k, extra, sequence, head, times, tokens, heads, k_strides, real, column, E, HAS_EXTRA)
    values = _load(v, extra, sequence, head, times, tokens, heads, v_strides, real, column, E, False)
    slope = _load(d_mixed, extra, sequence, head, times, tokens, heads, d_strides, real, column, E, False)
    weights = _weights(queries, keys, times, tokens, scale, TOKENS, PRECISION)
    d_weights = product(slope, tl.trans(values), PRECISION)
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
    place = (sequence * tokens + times[:, None]) * d_token + head * E + column
    tl.store(d_v + place, product(tl.trans(weights), slope, PRECISION), real)
    tl.store(d_q + place, product(d_scores, keys, PRECISION), real)
    tl.store(d_k + place, product(tl.trans(d_scores), queries, PRECISION), real)


def _tiling(tokens: int, features: int, warps: int) -> dict[str, int]:
    """Return the tile sizes; `warps` is what was fastest on an H200 up to 32 tokens."""
    padded = max(16, triton.next_power_of_2(tokens))
    warps = {16: 1, 32: warps, 64: 4}.get(padded, 8)
    return {"E": features, "FEATURES": max(16, triton.next_power_of_2(features)), "TOKENS": padded, "num_warps": warps}


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def forward(q: Tensor, k: Tensor, v: Tensor, extra: Tensor | None, precision: str) -> Tensor:
    """Return the weighted values (B, H, T, E), in memory order (B, T, H, E); `extra` (B, T, H * E) is added to k."""
    q, k, v = _dense(q), _dense(k), _dense(v)
    sequences, heads, tokens, features = q.shape
    mixed = q.new_empty(sequences, tokens, heads, features).transpose(1, 2)
    _attention_forward_kernel[(sequences * heads,)](
        q, k, v, extra, mixed, heads, tokens, features**-0.5, q.stride()[:3], k.stride()[:3], v.stride()[:3],
        HAS_EXTRA=extra is not None, PRECISION=precision, **_tiling(tokens, features, 2 if features <= 16 else 1),
    )  # fmt: skip
    return mixed


def backward(
    q: Tensor, k: Tensor, v: Tensor, extra: Tensor | None, d_mixed: Tensor, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, each (B, H, T, E): views of one tensor (B, T, 3, H, E)."""
    q, k, v, d_mixed = _dense(q), _dense(k), _dense(v), _dense(d_mixed)
    sequences, heads, tokens, features = q.shape
    together = q.new_empty(sequences, tokens, 3, heads, features)
    d_q, d_k, d_v = together.unbind(2)
    _attention_backward_kernel[(sequences * heads,)](
        q, k, v, extra, d_mixed, d_q, d_k, d_v, heads, tokens, features**-0.5,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], d_mixed.stride()[:3], 3 * heads * features,
        HAS_EXTRA=extra is not None, PRECISION=precision, **_tiling(tokens, features, 1),
    )  # fmt: skip
    return d_q.transpose(1, 2), d_k.transpose(1, 2), d_v.transpose(1, 2)
