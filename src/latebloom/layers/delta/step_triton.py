"""One step of the delta rule inside a kernel: its inputs, their activations, and the next states of some heads.

Shapes: G heads, K key size, V value size. Queries and keys are (G, K), values (G, V), betas (G,), decays (G,) or
(G, K), and states (G, K, V).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), by a series for log(1 + z) that loses no digits where z is small."""
    z = tl.exp(-tl.abs(x))
    w = z / (2 + z)
    p = w * w
    series = 1.0 / 11 + p * (1.0 / 13 + p * (1.0 / 15 + p * (1.0 / 17)))
    series = 1 + p * (1.0 / 3 + p * (1.0 / 5 + p * (1.0 / 7 + p * (1.0 / 9 + p * series))))
    return tl.maximum(x, 0.0) + 2 * w * series


@triton.jit
def unit(x, RAW: tl.constexpr):
    """Return vectors divided by their lengths, and what they were multiplied by; without RAW the vectors."""
    inverse = 1.0
    if RAW:
        inverse = tl.rsqrt(tl.sum(x * x, 1) + 1e-6)
        x = x * inverse[:, None]
    return x, inverse


@triton.jit
def d_unit(d_y, y, inverse, RAW: tl.constexpr):
    """Return the gradient of what `unit` was given."""
    if RAW:
        d_y = inverse[:, None] * (d_y - y * tl.sum(y * d_y, 1)[:, None])
    return d_y


@triton.jit
def at_step(place, n, size):
    """Return a size, or 0 at other steps than the n-th of a token; masks are places below such sizes."""
    return tl.where(place == n, size, 0)


@triton.jit
def load(
    step, one, q, k, v, beta, decay, noise, q_row, k_row, v_row, beta_row, decay_row, k_head, v_head, beta_head,
    places, keys, columns, K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr,
    ERASES: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
):  # fmt: skip
    """Return the inputs of a step, or of a step past the end, where `one` is 0, inputs that change nothing."""
    t, n = step // STEPS, step % STEPS
    starts, ends = at_step(n, 0, one), at_step(n, STEPS - 1, one)
    q_places, k_places, v_places, beta_places, decay_places, noise_places = places
    key = tl.load(k + t * k_row + n * HEADS * k_head + k_places, keys < K * one, 0.0)
    value = tl.load(v + t * v_row + n * HEADS * v_head + v_places, columns < V * one, 0.0)
    query = tl.load(q + t * q_row + q_places, keys < K * ends, 0.0)
    strength = 1.0
    if ERASES:
        strength = tl.load(
            beta + t * beta_row + n * HEADS * beta_head + beta_places, tl.zeros_like(beta_places) < one, 0.0
        )
    extra = 0.0
    if NOISY:
        extra = tl.load(noise + t * HEADS * V + noise_places, columns < V * ends, 0.0)
    exponent = 0.0
    nothing: tl.constexpr = 1.0 if DECAY == "number" else 0.0
    if DECAY != "none":
        if CHANNELS:
            exponent = tl.load(decay + t * decay_row + decay_places, keys < K * starts, nothing)
        else:
            exponent = tl.load(decay + t * decay_row + decay_places, tl.zeros_like(decay_places) < starts, nothing)
    return key, value, query, strength, extra, exponent


@triton.jit
def activate(
    forgets, key, strength, exponent, rate, bias, RAW: tl.constexpr, ERASES: tl.constexpr, BETA: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    """Return a step's key, what it was multiplied by, the strength, and the decay with its logarithm and exponent."""
    key, inverse = unit(key, RAW)
    if ERASES and RAW:
        strength = BETA * tl.sigmoid(strength)
    factor = exponent
    logarithm = 0.0
    if DECAY == "softplus":
        exponent += bias
        logarithm = tl.where(forgets > 0, -rate * softplus(exponent), 0.0)
        factor = tl.exp(logarithm)
    elif DECAY == "log":
        factor = tl.exp(exponent)
    return key, inverse, strength, factor, logarithm, exponent


@triton.jit
def decayed(state, factor, CHANNELS: tl.constexpr, DECAY: tl.constexpr):
    """Return a state, or its gradient, multiplied by the decay."""
    if DECAY != "none":
        factor = factor[:, :, None] if CHANNELS else factor[:, None, None]
        state = factor * state
    return state


@triton.jit
def step_state(
    state, key, value, strength, extra, factor, RAW: tl.constexpr, ERASES: tl.constexpr, CHANNELS: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    """Return what the strength multiplies, what is written under the key, and the state."""
    state = decayed(state, factor, CHANNELS, DECAY)
    missing = value
    new = value
    if ERASES:
        stored = tl.sum(key[:, :, None] * state, 1)
        if RAW:
            missing = value - stored
            new = strength[:, None] * missing + extra
        else:
            missing = -stored
            new = value + strength[:, None] * missing
    return missing, new, state + key[:, :, None] * new[:, None, :]
