"""What attention does to the gradients of the recurrences: over training, or of a model as it is.

A run with `training.probe_every` measures it while it trains (engine/interference.py), and this probe reads what the
run has recorded. Of any other model it is measured once, on a batch of the task.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.engine.interference import (
    BEYOND,
    NUMBERS,
    TOTAL,
    Gradients,
    beyond_training,
    by_layer,
    compare,
    held_out_length,
    with_total,
)
from latebloom.evaluation.accuracy import evaluating
from latebloom.fields import at_least
from latebloom.probes.attention import without_attention
from latebloom.probes.probe import NotMeasurable, Progress, StackedProbe
from latebloom.probes.stack import Stack
from latebloom.probes.table import Chart, Column, Table
from latebloom.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class GradientInterference(StackedProbe):
    """Gradients of the recurrence with and without attention on the same batch, and beyond the training length."""

    columns: ClassVar = (
        Column("step", "whole", "training step; -1 for a model that was measured once"),
        Column("attention", "number", "the gate of attention in training: 0 during the delay"),
        Column("layer", "text", "number of the recurrent layer, or all"),
        Column("part", "text", "an answer of the task, or total"),
        Column("cosine", "number", "of the gradients with and without attention", optional=True),
        Column("norm_with", "number", "norm of the gradient with attention", optional=True),
        Column("norm_without", "number", "norm of the gradient without attention", optional=True),
        Column("opposite", "number", "share of parameters in which both have opposite signs", optional=True),
        Column("between", "number", "cosine of this part and the rest of the loss, with attention", optional=True),
        Column("held_out_with", "number", "cosine with the gradient of state tracking at 2x", optional=True),
        Column("held_out_without", "number", "the same for the gradient without attention", optional=True),
        Column("alone_with", "number", "cosine with that of the recurrence alone at 2x", optional=True),
        Column("alone_without", "number", "the same for the gradient without attention", optional=True),
    )
    chart: ClassVar = Chart(
        "lines", f"Does a step along the joint gradient help the recurrence alone at {BEYOND}x?", "step", "alone_with",
        where={"layer": ("all",), "part": (TOTAL,)}, level=0.0, smooth=True, value_title="cosine",
        note="Cosine of the recurrence's gradient with attention and the gradient of state tracking, with attention "
        f"bypassed, on held-out sequences of {BEYOND} times the training length. Below 0, a step along the joint "
        "gradient raises that loss.",
    )  # fmt: skip
    more: ClassVar = (
        Chart(
            "lines", f"The same for the whole model at {BEYOND}x", "step", "held_out_with",
            where={"layer": ("all",), "part": (TOTAL,)}, level=0.0, smooth=True, value_title="cosine",
            note="Cosine of the gradient with attention and that of state tracking in the whole model.",
        ),
        Chart(
            "lines", "The same for the gradient with attention bypassed", "step", "alone_without",
            where={"layer": ("all",), "part": (TOTAL,)}, level=0.0, smooth=True, value_title="cosine",
            note="Cosine of the gradient with attention bypassed and that of state tracking by the recurrence alone.",
        ),
        Chart(
            "lines", "Gradients of the recurrence with and without attention", "step", "cosine", split="part",
            where={"layer": ("all",)}, level=0.0, smooth=True,
            note="Cosine on the same batch, for each part of the loss. 1: attention changes nothing. Below 0: the "
            "updates conflict.",
        ),
        Chart(
            "lines", "Norm of the recurrence's gradient with attention", "step", "norm_with", split="part",
            where={"layer": ("all",)}, smooth=True, value_title="norm",
        ),
        Chart(
            "heat", "Cosine of the gradients with and without attention, by layer", "step", "cosine", ("layer",),
            split="part", bounds=(-1, 1), smooth=True,
        ),
    )  # fmt: skip

    name: Literal["interference"] = "interference"
    sequences: Annotated[int, at_least(1)] = 64
    """Sequences of a batch, for a model that is measured once."""

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        tables = [
            [row for line in subject.recorded if "interference" in line for row in _recorded(line)]
            for subject in stack.subjects
        ]
        if missing := [model for model, rows in enumerate(tables) if not rows]:
            measured = self._once(Stack([stack.subjects[model] for model in missing]), progress)
            for model, rows in zip(missing, measured, strict=True):
                tables[model] = rows
        progress(1.0)
        return [Table.of(self.columns, rows) for rows in tables]

    def _once(self, stack: Stack, progress: Progress) -> list[list[dict]]:
        subject = stack.first
        if not subject.attention:
            raise NotMeasurable("interference: the model has no attention")
        if not subject.mixers:
            raise NotMeasurable("interference: the model has no recurrence")
        task, length = stack.task, subject.training_length
        batch = stack.draw(length, self.sequences)
        forms: list[tuple[AbstractContextManager[Any], dict[str, Gradients]]] = [
            (nullcontext(), {}),
            (without_attention(subject), {}),
        ]
        for number, (form, found) in enumerate(forms):
            with form:
                for answer in task.answers:
                    others = [name for name in task.answers if name != answer]
                    found[answer] = gradients(stack, batch, lambda one, others=others: one.without(others))
            found |= with_total(found)
            progress((number + 1) / 3)
        held_out, longer = [], held_out_length(task, length)
        if longer is not None and (subject.max_tokens or 1 << 62) >= task.token_count(longer):
            long = stack.draw(longer, self.sequences, split="validation")
            beyond = partial(beyond_training, task, training_length=length)
            held_out.append(gradients(stack, long, beyond))
            with without_attention(subject):
                held_out.append(gradients(stack, long, beyond))
        names, numbers = compare(forms[0][1], forms[1][1], held_out)
        tables = []
        for model in numbers.tolist():
            named = zip(names, model, strict=True)
            rows = [[*name, *(None if isnan(n) else n for n in row)] for name, row in named]
            tables.append(list(_recorded({"step": -1, "interference": {"attention": 1.0, "rows": rows}})))
        return tables


def gradients(stack: Stack, batch: Batch, chosen: Callable[[Batch], Batch] = lambda one: one) -> Gradients:
    """Return the gradient of the loss of each model, averaged per answer, in the parameters of the recurrences.

    `batch` has a part for each model, and `chosen` returns what is supervised in the part of one.
    """
    subject = stack.first
    names = {id(parameter): name for name, parameter in subject.model.named_parameters()}
    named = {
        str(layer): [names[id(p)] for p in module.parameters() if p.requires_grad]
        for layer, module in enumerate(subject.mixers)
    }
    wanted = [stack.parameters[name] for parameters in named.values() for name in parameters]

    def loss(model: Any, batch: Batch) -> Tensor:
        batch = chosen(batch)
        logits = model(batch.tokens, batch.positions)
        parts = [
            F.cross_entropy(logits[:, part].flatten(0, 1), batch.targets[:, part].flatten())
            for part in batch.columns.values()
        ]
        return torch.stack(parts).sum()

    # What a model draws at random in training is left out. A module of another kind stays in its mode, because cuDNN
    # has no backward pass in evaluation mode.
    with torch.enable_grad(), evaluating(subject.model) if subject.is_own else nullcontext():
        found = torch.autograd.grad(
            stack.each_batch(loss, batch).sum(), wanted, allow_unused=True, materialize_grads=True
        )
    parts = iter(one.reshape(len(stack), -1) for one in found)
    return by_layer({layer: [next(parts) for _ in parameters] for layer, parameters in named.items()})


def _recorded(line: Any) -> list[dict]:
    measured = line["interference"]
    names = ("layer", "part", *NUMBERS)
    return [
        {"step": line["step"], "attention": float(measured["attention"]), **dict(zip(names, row, strict=True))}
        for row in measured["rows"]
    ]


def cosines(table: Table, column: str) -> list[float]:
    """Return the cosines of the whole loss and all layers at each measurement, without those during a delay.

    During a delay attention does not take part in training.
    """
    found = [row[column] for row in table.records(layer="all", part=TOTAL) if row["attention"] > 0]
    return [value for value in found if value is not None]


def conflicts(table: Table, column: str) -> float | None:
    """Return the share of measurements in which a cosine is below zero; None without any."""
    known = cosines(table, column)
    return sum(value < 0 for value in known) / len(known) if known else None


def mean_cosine(table: Table, column: str) -> float | None:
    """Return the mean of a cosine over the measurements; None without any."""
    known = cosines(table, column)
    return sum(known) / len(known) if known else None
