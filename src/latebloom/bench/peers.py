"""The same work in other libraries: the whole hybrid on a GPU, an LSTM layer on one core of a CPU.

Shapes: B sequences, T tokens, D width.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError
from latebloom.layers.lstm.operation import Weights, lstm

Build = Callable[[Tensor, Weights, Tensor], Callable[[], list[Any]]]
"""Takes input (B, T, D), weights and the gradient of the outputs (B, T, D); returns a function that computes the
outputs and the gradients of input and weights."""


def latebloom_lstm(x: Tensor, weights: Weights, gradient: Tensor) -> Callable[[], list[Any]]:
    """Return the layer as a run has it."""
    inputs = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
    zeros = x.new_zeros(x.shape[0], x.shape[2])

    def both() -> list[Any]:
        outputs, _, _ = lstm(inputs[0], Weights(*inputs[1:]), zeros, zeros)
        return [outputs.detach(), *torch.autograd.grad(outputs, inputs, gradient)]

    return both


def jax_lstm(x: Tensor, weights: Weights, gradient: Tensor) -> Callable[[], list[Any]]:
    """Return the layer in JAX, compiled as a whole by XLA."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    from latebloom.bench.jax_model import lstm as layer

    inputs, given = [jax.numpy.asarray(tensor.numpy()) for tensor in (x, *weights)], gradient.numpy()

    @jax.jit
    def both(inputs: Any, gradient: Any) -> Any:
        outputs, backward = jax.vjp(layer, *inputs)
        return [outputs, *backward(gradient)]

    return lambda: jax.block_until_ready(both(inputs, given))


PEERS: dict[str, tuple[str, Build]] = {"JAX": ("jax", jax_lstm)}
"""Each peer's module and its LSTM layer."""


def installed_peers() -> dict[str, Build]:
    """Return the peers that can be imported; raise if there are none."""
    found = {name: build for name, (module, build) in PEERS.items() if importlib.util.find_spec(module)}
    if not found:
        raise ConfigError(f"peers: none is installed; choices: {', '.join(PEERS)} (pip install 'latebloom[peers]')")
    return found


def layer_inputs(width: int, batch: int = 64, tokens: int = 25) -> tuple[Tensor, Weights, Tensor]:
    """Return the arguments that every peer is called with."""
    weights = Weights(*(weight.detach() for weight in nn.LSTM(width, width).all_weights[0]))
    return torch.randn(batch, tokens, width), weights, torch.randn(batch, tokens, width)
