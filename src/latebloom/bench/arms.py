"""What is compared: a run as it is, captured, stacked, and with an LSTM from a textbook."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.config import RunConfig
from latebloom.engine.stacked_trainer import StackedTrainer
from latebloom.engine.trainer import Trainer
from latebloom.layers.lstm import LSTMLayer
from latebloom.layers.lstm.operation import Weights, fused_lstm, lstm_loop
from latebloom.models.block import Residual
from latebloom.tasks.stream import Stream


class OneLength(Stream):
    """A stream whose batches all have one length, so that a step is always the same work."""

    def length(self, index: int) -> int:
        return self.training_length


def _fix_length(trainer: Trainer | StackedTrainer, config: RunConfig, length: int) -> Callable[[], Any]:
    trainer.stream = OneLength(config.task, config.seed, length)
    return trainer.advance


def single(config: RunConfig, length: int, device: torch.device, *, capture: bool) -> Callable[[], Any]:
    """One run, as it is or captured."""
    return _fix_length(Trainer(config, device, capture=capture), config, length)


def textbook(config: RunConfig, length: int, device: torch.device) -> Callable[[], Any]:
    """A run whose LSTM goes token by token in Python, as it is often written."""
    return _fix_length(textbook_trainer(config, device), config, length)


def textbook_trainer(config: RunConfig, device: torch.device) -> Trainer:
    trainer = Trainer(config, device, capture=False)
    for part in list(trainer.model.modules()):
        if isinstance(part, Residual) and isinstance(part.body, LSTMLayer):
            part.body = TextbookLSTM(part.body.cell)
    return trainer


class TextbookLSTM(nn.Module):
    """An LSTM by `lstm_loop`, with the parameters of one of torch's."""

    def __init__(self, cell: nn.LSTM) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        nothing = x.new_zeros(x.shape[0], x.shape[2])
        return lstm_loop(x, Weights(*self.cell.all_weights[0]), nothing, nothing)[0]


def stacked(config: RunConfig, length: int, device: torch.device, runs: int) -> Callable[[], Any]:
    """So many runs as one program."""
    trainer = StackedTrainer([replace(config, seed=seed) for seed in range(runs)], device)
    return _fix_length(trainer, config, length)


def library_lstms(width: int, models: int, batch: int, tokens: int, device: torch.device) -> Callable[[], Any]:
    """Forward and back through one `nn.LSTM` after the other."""
    cells = [nn.LSTM(width, width, batch_first=True).to(device) for _ in range(models)]
    inputs = [torch.randn(batch, tokens, width, device=device, requires_grad=True) for _ in cells]
    slope = torch.randn(batch, tokens, width, device=device)

    def both() -> None:
        for cell, x in zip(cells, inputs, strict=True):
            torch.autograd.grad(cell(x)[0], [x, *cell.parameters()], slope)

    return both


def fused_lstms(width: int, models: int, batch: int, tokens: int, device: torch.device) -> Callable[[], Any]:
    """The same through the fused kernels, all at once."""
    bound = width**-0.5

    def uniform(*shape: int) -> Tensor:
        return torch.empty(models, *shape, device=device).uniform_(-bound, bound).requires_grad_()

    weights = Weights(uniform(4 * width, width), uniform(4 * width, width), uniform(4 * width), uniform(4 * width))
    x = torch.randn(models, batch, tokens, width, device=device, requires_grad=True)
    slope = torch.randn_like(x)
    nothing = torch.zeros(models, batch, width, device=device)

    def both() -> None:
        outputs, _, _ = fused_lstm(x, weights, nothing, nothing)
        torch.autograd.grad(outputs, [x, *weights], slope)

    return both


def captured(step: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A step as one CUDA graph."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()

    def replay() -> Callable[[], Any]:
        graph.replay()
        return step  # what the graph reads must stay alive

    return replay
