"""The same layer in other libraries that pip can install, for comparison: an LSTM, forward and back, on one core.

Shapes: B sequences, T tokens, D width.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from latebloom.errors import ConfigError
from latebloom.layers.lstm.operation import Weights, lstm

Build = Callable[[Tensor, Weights, Tensor], Callable[[], list[Any]]]
"""Input (B, T, D), weights and the outputs' gradient (B, T, D) -> a call that does the layer's work once and returns
outputs and the gradients of input and weights."""


def latebloom_lstm(x: Tensor, weights: Weights, slope: Tensor) -> Callable[[], list[Any]]:
    """The layer as a run has it."""
    inputs = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
    nothing = x.new_zeros(x.shape[0], x.shape[2])

    def once() -> list[Any]:
        outputs, _, _ = lstm(inputs[0], Weights(*inputs[1:]), nothing, nothing)
        return [outputs.detach(), *torch.autograd.grad(outputs, inputs, slope)]

    return once


def jax_lstm(x: Tensor, weights: Weights, slope: Tensor) -> Callable[[], list[Any]]:
    """JAX: a scan over tokens, compiled as a whole by XLA."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax import numpy as jnp

    inputs = [jnp.asarray(tensor.numpy()) for tensor in (x, *weights)]
    nothing = jnp.zeros((x.shape[0], x.shape[2]))

    def layer(x: Any, of_input: Any, of_hidden: Any, input_bias: Any, hidden_bias: Any) -> Any:
        shares = jnp.swapaxes(x @ of_input.T, 0, 1) + input_bias + hidden_bias  # all tokens at once, tokens in front

        def token(state: Any, share: Any) -> Any:
            hidden, memory = state
            admit, keep, candidate, reveal = jnp.split(share + hidden @ of_hidden.T, 4, axis=-1)
            memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(admit) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(reveal) * jnp.tanh(memory)
            return (hidden, memory), hidden

        _, outputs = jax.lax.scan(token, (nothing, nothing), shares)
        return jnp.swapaxes(outputs, 0, 1)

    @jax.jit
    def both(inputs: Any, slope: Any) -> Any:
        outputs, back = jax.vjp(layer, *inputs)
        return [outputs, *back(slope)]

    given = jnp.asarray(slope.numpy())
    return lambda: jax.block_until_ready(both(inputs, given))


PEERS: dict[str, tuple[str, Build]] = {"JAX": ("jax", jax_lstm)}
"""Each peer's module and its layer."""


def installed_peers() -> dict[str, Build]:
    """The peers that can be imported; none is an error, since somebody asked for them."""
    found = {name: build for name, (module, build) in PEERS.items() if importlib.util.find_spec(module)}
    if not found:
        raise ConfigError(f"peers: none is installed; choices: {', '.join(PEERS)} (pip install 'latebloom[peers]')")
    return found


def layer_inputs(width: int, batch: int = 64, tokens: int = 25) -> tuple[Tensor, Weights, Tensor]:
    """What every peer is given."""
    draw = torch.Generator().manual_seed(0)
    bound = width**-0.5

    def uniform(*shape: int) -> Tensor:
        return (2 * torch.rand(*shape, generator=draw) - 1) * bound

    weights = Weights(uniform(4 * width, width), uniform(4 * width, width), uniform(4 * width), uniform(4 * width))
    x, slope = (torch.randn(batch, tokens, width, generator=draw) for _ in range(2))
    return x, weights, slope
