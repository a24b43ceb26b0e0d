"""The programs that are timed: one run, stacked runs, and LSTM layers by themselves, one of them in JAX.

Shapes: S stacked models, B sequences, T tokens, D width.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.bench.measure import Advance
from latebloom.config import RunConfig
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.layers.lstm import LSTMLayer
from latebloom.layers.lstm.operation import Weights, fused_lstm, lstm, lstm_loop
from latebloom.models.block import Residual
from latebloom.tasks.stream import Stream


class OneLength(Stream):
    """A stream whose batches all have one length, so that every step is the same work."""

    def length(self, index: int, longest: int | None = None) -> int:
        return self.training_length


def _fix_length(trainer: Trainer, config: RunConfig, length: int) -> Advance:
    trainer.stream = OneLength(config.task, config.seed, length)
    return trainer.advance


def single(config: RunConfig, length: int, device: torch.device, *, capture: bool) -> Advance:
    """Return the step of one run: captured in a CUDA graph as in a study, or eager with the ordinary module."""
    return _fix_length(Trainer([config], device, stacked=None if capture else False, capture=capture), config, length)


def stacked(config: RunConfig, length: int, device: torch.device, runs: int) -> Advance:
    """Return the step of a stack of runs."""
    trainer = Trainer([replace(config, seed=seed) for seed in range(runs)], device, stacked=True)
    return _fix_length(trainer, config, length)


def textbook(config: RunConfig, length: int, device: torch.device) -> Advance:
    """Return the step of one run whose LSTM is a Python loop over tokens."""
    return _fix_length(textbook_trainer(config, device), config, length)


def textbook_trainer(config: RunConfig, device: torch.device) -> Trainer:
    trainer = Trainer([config], device, stacked=False, capture=False)
    for part in list(trainer.backend.template.modules()):
        if isinstance(part, Residual) and isinstance(part.body, LSTMLayer):
            part.body = TextbookLSTM(part.body.cell)
    return trainer


class TextbookLSTM(nn.Module):
    """An LSTM by `lstm_loop`, with the parameters of an `nn.LSTM`."""

    def __init__(self, cell: nn.LSTM) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        zeros = x.new_zeros(x.shape[0], x.shape[2])
        return lstm_loop(x, Weights(*self.cell.all_weights[0]), zeros, zeros)[0]


def library_lstms(width: int, models: int, batch: int, tokens: int, device: torch.device) -> Advance:
    """Return the forward and backward pass of several `nn.LSTM`, one after the other."""
    cells = [nn.LSTM(width, width, batch_first=True).to(device) for _ in range(models)]
    inputs = [torch.randn(batch, tokens, width, device=device, requires_grad=True) for _ in cells]
    gradient = torch.randn(batch, tokens, width, device=device)

    def both() -> None:
        for cell, x in zip(cells, inputs, strict=True):
            torch.autograd.grad(cell(x)[0], [x, *cell.parameters()], gradient)

    return both


def fused_lstms(width: int, models: int, batch: int, tokens: int, device: torch.device) -> Advance:
    """Return the forward and backward pass of as many LSTMs by the fused kernels, all at once."""
    cells = [nn.LSTM(width, width).to(device).all_weights[0] for _ in range(models)]
    weights = Weights(*(torch.stack(each).detach().requires_grad_() for each in zip(*cells, strict=True)))
    x = torch.randn(models, batch, tokens, width, device=device, requires_grad=True)
    gradient, zeros = torch.randn_like(x), torch.zeros(models, batch, width, device=device)

    def both() -> None:
        outputs, _, _ = fused_lstm(x, weights, zeros, zeros)
        torch.autograd.grad(outputs, [x, *weights], gradient)

    return both


def captured(step: Advance, device: torch.device) -> Advance:
    """Return a step as one CUDA graph."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()

    def replay() -> Advance:
        graph.replay()
        return step  # keeps alive what the graph reads

    return replay


def check_peers() -> None:
    """Raise unless JAX, the only peer, is installed."""
    if find_spec("jax") is None:
        raise ConfigError("peers: none is installed; choices: JAX (pip install 'latebloom[peers]')")


def layer_inputs(width: int, batch: int = 64, tokens: int = 25) -> tuple[Tensor, Weights, Tensor]:
    """Return input (B, T, D), weights and the gradient of the outputs (B, T, D) of an LSTM layer."""
    weights = Weights(*(weight.detach() for weight in nn.LSTM(width, width).all_weights[0]))
    return torch.randn(batch, tokens, width), weights, torch.randn(batch, tokens, width)


def latebloom_lstm(x: Tensor, weights: Weights, gradient: Tensor) -> Callable[[], list[Any]]:
    """Return a function that computes the outputs and all gradients of the layer as a run has it."""
    inputs = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
    zeros = x.new_zeros(x.shape[0], x.shape[2])

    def both() -> list[Any]:
        outputs, _, _ = lstm(inputs[0], Weights(*inputs[1:]), zeros, zeros)
        return [outputs.detach(), *torch.autograd.grad(outputs, inputs, gradient)]

    return both


def jax_lstm(x: Tensor, weights: Weights, gradient: Tensor) -> Callable[[], list[Any]]:
    """Return the same in JAX, compiled as a whole by XLA."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    from latebloom.bench.jax_model import lstm as layer

    inputs, given = [jax.numpy.asarray(tensor.numpy()) for tensor in (x, *weights)], gradient.numpy()

    @jax.jit
    def both(inputs: Any, gradient: Any) -> Any:
        outputs, backward = jax.vjp(layer, *inputs)
        return [outputs, *backward(gradient)]

    return lambda: jax.block_until_ready(both(inputs, given))
