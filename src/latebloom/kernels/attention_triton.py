"""Causal attention over short sequences: a program for each sequence and head, its scores on the chip.

Shapes: B sequences, H heads, T tokens, E features a head. Inputs may be strided in all but the last axis.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _weights(q, k, times, tokens, scale, TOKENS: tl.constexpr, PRECISION: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = (times[None, :] <= times[:, None]) & (times[None, :] < tokens)
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _forward_kernel(
    q, k, v, mixed, heads, tokens, scale,
    q_sequence, q_head, q_token, k_sequence, k_head, k_token, v_sequence, v_head, v_token,
    E: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    times, features = tl.arange(0, TOKENS), tl.arange(0, FEATURES)
    real = (times[:, None] < tokens) & (features[None, :] < E)
    column = features[None, :]
    queries = tl.load(q + sequence * q_sequence + head * q_head + times[:, None] * q_token + column, real, 0.0)
    keys = tl.load(k + sequence * k_sequence + head * k_head + times[:, None] * k_token + column, real, 0.0)
    values = tl.load(v + sequence * v_sequence + head * v_head + times[:, None] * v_token + column, real, 0.0)
    weights = _weights(queries, keys, times, tokens, scale, TOKENS, PRECISION)
    # Memory order (B, T, H, E): the heads of a token stand together, as the output projection wants them.
    place = ((sequence * tokens + times[:, None]) * heads + head) * E + column
    tl.store(mixed + place, tl.dot(weights, values, input_precision=PRECISION), real)


@triton.jit
def _backward_kernel(
    q, k, v, d_mixed, d_q, d_k, d_v, heads, tokens, scale,
    q_sequence, q_head, q_token, k_sequence, k_head, k_token, v_sequence, v_head, v_token,
    d_sequence, d_head, d_token,
    E: tl.constexpr, FEATURES: tl.constexpr, TOKENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    times, features = tl.arange(0, TOKENS), tl.arange(0, FEATURES)
    real = (times[:, None] < tokens) & (features[None, :] < E)
    column = features[None, :]
    queries = tl.load(q + sequence * q_sequence + head * q_head + times[:, None] * q_token + column, real, 0.0)
    keys = tl.load(k + sequence * k_sequence + head * k_head + times[:, None] * k_token + column, real, 0.0)
    values = tl.load(v + sequence * v_sequence + head * v_head + times[:, None] * v_token + column, real, 0.0)
    slope = tl.load(d_mixed + sequence * d_sequence + head * d_head + times[:, None] * d_token + column, real, 0.0)
    weights = _weights(queries, keys, times, tokens, scale, TOKENS, PRECISION)
    d_weights = tl.dot(slope, tl.trans(values), input_precision=PRECISION)
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
    place = ((sequence * tokens + times[:, None]) * heads + head) * E + column
    tl.store(d_v + place, tl.dot(tl.trans(weights), slope, input_precision=PRECISION), real)
    tl.store(d_q + place, tl.dot(d_scores, keys, input_precision=PRECISION), real)
    tl.store(d_k + place, tl.dot(tl.trans(d_scores), queries, input_precision=PRECISION), real)


def _tiling(tokens: int, features: int) -> dict[str, int]:
    padded = max(16, triton.next_power_of_2(tokens))
    warps = {16: 1, 32: 1, 64: 4}.get(padded, 8)
    return {"E": features, "FEATURES": max(16, triton.next_power_of_2(features)), "TOKENS": padded, "num_warps": warps}


def _new(like: Tensor) -> Tensor:
    """An empty tensor (B, H, T, E) in the memory order (B, T, H, E)."""
    sequences, heads, tokens, features = like.shape
    return like.new_empty(sequences, tokens, heads, features).transpose(1, 2)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def forward(q: Tensor, k: Tensor, v: Tensor, precision: str) -> Tensor:
    """What each token takes (B, H, T, E)."""
    q, k, v, mixed = _dense(q), _dense(k), _dense(v), _new(q)
    sequences, heads, tokens, features = q.shape
    _forward_kernel[(sequences * heads,)](
        q, k, v, mixed, heads, tokens, features**-0.5, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        PRECISION=precision, **_tiling(tokens, features),
    )  # fmt: skip
    return mixed


def backward(q: Tensor, k: Tensor, v: Tensor, d_mixed: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, each (B, H, T, E)."""
    q, k, v, d_mixed = _dense(q), _dense(k), _dense(v), _dense(d_mixed)
    d_q, d_k, d_v = _new(q), _new(q), _new(q)
    sequences, heads, tokens, features = q.shape
    _backward_kernel[(sequences * heads,)](
        q, k, v, d_mixed, d_q, d_k, d_v, heads, tokens, features**-0.5,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *d_mixed.stride()[:3],
        PRECISION=precision, **_tiling(tokens, features),
    )  # fmt: skip
    return d_q, d_k, d_v
