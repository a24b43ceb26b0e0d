"""Interference, measured while training: what attention does to the gradients of the recurrences.

On one batch of training data, the gradient of the recurrences' parameters is computed twice: with attention, and with
attention bypassed. Both are compared with the gradient of state tracking on held-out sequences of twice the training
length, in the whole model and in the recurrence alone; a step along a gradient that points away from it raises that
loss. Nothing of the run changes: no parameter, no optimizer state, no gradient and no random number of it is touched.

Shapes: S runs, P parameters of the recurrences in one row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from latebloom.config import RunConfig
from latebloom.engine.backend import Backend
from latebloom.engine.capture import Captured, side_by_side
from latebloom.engine.draws import attention_draws
from latebloom.engine.loss import answer_losses
from latebloom.evaluation.accuracy import evaluating
from latebloom.models.block import residual_parts
from latebloom.tasks.task import Batch, Task

SEQUENCES, HELD_OUT_SEQUENCES = 16, 8
"""Sequences of the batch of training data, and of the longer held-out batch."""
BEYOND = 2
"""The length of the held-out batch, in training lengths."""
ALL, TOTAL = "all", "total"
"""The names of all layers together, and of the whole loss."""
NUMBERS = (
    *("cosine", "norm_with", "norm_without", "opposite", "between"),
    *("held_out_with", "held_out_without", "alone_with", "alone_without"),
)
"""What is measured of each layer and part of the loss; see `compare`."""

Gradients = dict[str, Tensor]
"""The gradient (S, P) of each layer by name, and of all layers together."""


class Interference:
    """Measures the interference of the runs of a trainer."""

    def __init__(
        self, configs: Sequence[RunConfig], backend: Backend, seeds: Tensor, index: Tensor, captured: Captured
    ) -> None:
        """`index` is the number of the next batch, and `captured` runs the measurement as a CUDA graph."""
        self.shared, self.backend, self.seeds, self.index, self.captured = configs[0], backend, seeds, index, captured
        self.device = seeds.device
        numbers = {config.seed for config in configs}
        self._seed = numbers.pop() if len(numbers) == 1 else None
        self._attention = residual_parts(backend.template, "attention")
        self._layers = _layers(backend.template)
        task, length = self.shared.task, self.shared.training.length
        self._longer = held_out_length(task, length)
        sizes = torch.tensor([float(supervised(task, length, answer)) for answer in task.answers])
        per_token = torch.tensor([[config.training.weigh == "positions"] for config in configs])
        self._weights = torch.where(per_token, sizes / sizes.sum(), torch.ones_like(sizes)).to(self.device)
        """(S, answers): the part of each answer in the loss, which is averaged per answer or per token."""
        self._numbers = torch.empty(0)
        self._names: list[tuple[str, str]] = []

    def measure(self, gates: Sequence[float]) -> list[dict[str, Any]]:
        """Return the interference of every run as plain data for its metrics; `gates` are those of attention."""
        self.captured.run("interference", self._measure)
        return [
            {
                "attention": gate,
                "rows": [[*name, *map(_finite, row)] for name, row in zip(self._names, rows, strict=True)],
            }
            for gate, rows in zip(gates, self._numbers.tolist(), strict=True)
        ]

    def _measure(self) -> None:
        """Write the numbers of all runs into a tensor that stays in place; never waits for the device."""
        try:
            # A measurement is six or more small passes, none of which fills a GPU.
            with_attention, without, longer = side_by_side(
                self.device, [partial(self._by_answer, 1.0), partial(self._by_answer, 0.0), self._beyond]
            )
        finally:
            self._set_gate(1.0)
        self._names, numbers = compare(with_attention, without, longer)
        if self._numbers.shape != numbers.shape:
            self._numbers = torch.empty_like(numbers)
        self._numbers.copy_(numbers)

    def _by_answer(self, gate: float) -> Any:
        """Return the gradients of every answer on the batch of training data, and of the whole loss."""
        answers = zip(self.shared.task.answers, self._weights.T, strict=True)
        return with_total(
            {
                answer: self._gradients(partial(self._training_loss, answer=answer, gate=gate), weight)
                for answer, weight in answers
            }
        )

    def _beyond(self) -> Any:
        """Return the gradients of state tracking on the held-out batch, in the whole model and without attention."""
        if self._longer is None:
            return []
        one = torch.ones_like(self._weights[:, 0])
        with evaluating(self.backend.template):
            return [self._gradients(partial(self._held_out_loss, gate=gate), one) for gate in (1.0, 0.0)]

    def _set_gate(self, gate: float | Tensor) -> None:
        for part in self._attention:
            part.gate = gate

    def _gradients(self, loss: Callable[..., Tensor], weights: Tensor) -> Gradients:
        """Return the gradient of a loss, with the weights (S,) of the runs, in the parameters of the recurrences."""
        named = [name for names in self._layers.values() for name in names]
        tensors = [self.backend.parameters[name] for name in named]
        losses = self.backend.each(loss, self.seeds)
        found = torch.autograd.grad((losses * weights).sum(), tensors, allow_unused=True, materialize_grads=True)
        by_name = dict(zip(named, (one.reshape(len(self.seeds), -1) for one in found), strict=True))
        return by_layer({layer: [by_name[name] for name in names] for layer, names in self._layers.items()})

    def _training_loss(self, model: Any, seed: Tensor | int, answer: str, gate: float) -> Tensor:
        task, training = self.shared.task, self.shared.training
        seed = seed if self._seed is None else self._seed
        batch = task.batch(seed, "train", self.index, length=training.length, size=SEQUENCES, device=self.device)
        batch = batch.without(name for name in task.answers if name != answer)
        self._set_gate(gate)
        parts, settings = self._attention if gate else [], self.shared.model.attention
        with attention_draws(parts, settings, seed, self.index, batch.shape[1], training.steps):
            return answer_losses(model, batch)[answer]

    def _held_out_loss(self, model: Any, seed: Tensor | int, gate: float) -> Tensor:
        assert self._longer is not None
        task, size = self.shared.task, HELD_OUT_SEQUENCES
        seed = seed if self._seed is None else self._seed
        batch = task.batch(seed, "validation", self.index, length=self._longer, size=size, device=self.device)
        self._set_gate(gate)
        (found,) = answer_losses(model, beyond_training(task, batch, self.shared.training.length)).values()
        return found


def with_total(by_answer: dict[str, Gradients]) -> dict[str, Gradients]:
    """Add the gradient of the whole loss, with no answer withheld, to those of its parts."""
    layers = next(iter(by_answer.values()))
    return by_answer | {
        TOTAL: {layer: torch.stack([found[layer] for found in by_answer.values()]).sum(dim=0) for layer in layers}
    }


def by_layer(gradients: Mapping[str, Sequence[Tensor]]) -> Gradients:
    """Join the gradients (S, P) of the parameters of each layer, and of all of them."""
    joined = {layer: torch.cat(list(parts), dim=1) for layer, parts in gradients.items()}
    return {ALL: torch.cat(list(joined.values()), dim=1)} | (joined if len(joined) > 1 else {})


def compare(
    with_attention: Mapping[str, Gradients], without: Mapping[str, Gradients], held_out: Sequence[Gradients]
) -> tuple[list[tuple[str, str]], Tensor]:
    """Compare gradients by layer and by part of the loss.

    Return the layer and the part of each row, and the numbers (S, rows, 9), which are those of `NUMBERS`: the cosine of
    the gradients with and without attention, their norms, the share of parameters with opposite signs, the cosine of a
    part with the rest of the loss, and the cosines of both gradients with each of the `held_out` ones: those of state
    tracking beyond the training length in the whole model, and in the recurrence alone. A negative cosine with these
    means that a step along the gradient raises the loss there. Where there is nothing to compare, a number is NaN.
    """
    names, rows = [], []
    for layer in with_attention[TOTAL]:
        for part in with_attention:
            a, b = with_attention[part][layer], without[part][layer]
            rest = with_attention[TOTAL][layer] - a
            missing = torch.full(a.shape[:1], torch.nan, dtype=torch.double, device=a.device)
            beyond = [_cosine(own, one[layer]) for one in held_out for own in (a, b)]
            names.append((layer, part))
            rows.append(
                torch.stack(
                    [
                        _cosine(a, b),
                        a.double().norm(dim=1),
                        b.double().norm(dim=1),
                        (a * b < 0).double().mean(dim=1),
                        missing if part == TOTAL or len(with_attention) == 2 else _cosine(a, rest),
                        *(beyond or [missing] * 4),
                    ],
                    dim=1,
                )
            )
    return names, torch.stack(rows, dim=1)


def held_out_length(task: Task, training_length: int) -> int | None:
    """Return the length of the held-out batch; None if the task has no state to track, or no such length."""
    longer = BEYOND * training_length
    is_possible = task.state_answer is not None and (task.longest is None or longer <= task.longest)
    return longer if is_possible else None


def beyond_training(task: Task, batch: Batch, training_length: int) -> Batch:
    """Return a longer batch with the state answer alone, at the items that training sequences do not have."""
    assert task.state_answer is not None
    batch = batch.without(name for name in task.answers if name != task.state_answer)
    first = min(supervised(task, training_length, task.state_answer), batch.targets.shape[1] - 1)
    columns = {task.state_answer: slice(0, batch.targets.shape[1] - first)}
    return replace(batch, positions=batch.positions[:, first:], targets=batch.targets[:, first:], columns=columns)


@cache
def supervised(task: Task, length: int, answer: str) -> int:
    """Return at how many positions of a sequence an answer is supervised."""
    columns = task.batch(0, "train", 0, length=length, size=1).columns[answer]
    return columns.stop - columns.start


def _layers(template: Any) -> dict[str, list[str]]:
    """Return the names of the parameters of each recurrent part, by its number."""
    names = {id(parameter): name for name, parameter in template.named_parameters()}
    parts = residual_parts(template, "recurrence")
    return {str(number): [names[id(p)] for p in part.parameters()] for number, part in enumerate(parts)}


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.double(), b.double()
    return (a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))


def _finite(number: float) -> float | None:
    return number if abs(number) < float("inf") else None
