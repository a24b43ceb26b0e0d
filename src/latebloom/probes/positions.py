"""Whether heads follow positions or content: how much of a pattern is the same in every sequence.

The weights of a head are split into what distance alone explains, what the places of query and key explain (the mean
over sequences at the same two places), and the rest, which differs from sequence to sequence and so depends on content.
Each is a share of the squared deviations from equal weights.

Shapes: B sequences, H heads, T tokens, R queries and K keys of a tile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.layers.attention.positions import PositionLayer
from latebloom.models.sequence_model import SequenceModel
from latebloom.probes.attention import Place, Sums, summed
from latebloom.probes.probe import NotMeasurable, Progress, StackedProbe
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

KINDS = ("all", "by distance")
"""The kinds of sums of `_Watch`."""
FLAT = 1e-6
"""Weights whose mean squared deviation from equal ones is below this share of the equal weight have no pattern."""


@dataclass(frozen=True, kw_only=True)
class HeadPositions(StackedProbe):
    """How much of each head's pattern distance alone explains, and accuracy with positions shifted or randomised."""

    columns: ClassVar = (
        Column("length", "whole", "items of a sequence"),
        Column("layer", "whole", "number of the attention layer, from 0; -1 for the whole model"),
        Column("head", "whole", "number of the head, from 0; -1 for the whole model"),
        Column("measure", "text", "distance, place, content, mean distance, or an answer with changed positions"),
        Column("value", "number", "share explained, tokens, or accuracy", optional=True),
        Column("sequences", "whole", "test sequences"),
    )
    chart: ClassVar = Chart(
        "heat", "Pattern explained by distance", "length", "value", ("layer", "head"),
        where={"measure": ("distance",)}, bounds=(0, 1),
        note="Share of each head's pattern that distance alone explains; rows are layer.head. 1: the head attends by "
        "distance, whatever the tokens are. 0: distance says nothing of where it attends. Empty: the weights are "
        "equal, so there is no pattern.",
    )  # fmt: skip

    name: Literal["positions"] = "positions"
    multiples: tuple[float, ...] = (1, 2, 4)
    """The probed lengths, in training lengths; those that the task does not allow are left out."""
    sequences: Annotated[int, at_least(2)] = 64
    """Test sequences per length."""

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        if not stack.first.attention:
            raise NotMeasurable("positions: the model has no attention")
        tables: list[list[dict]] = [[] for _ in stack.subjects]
        lengths = stack.first.lengths(self.multiples)
        for number, length in enumerate(lengths):
            about = {"length": length, "sequences": self.sequences}
            for rows, patterns, moved in zip(
                tables, self._patterns(stack, length), self._moved(stack, length), strict=True
            ):
                rows += [about | row for row in (*patterns, *moved)]
            progress((number + 1) / len(lengths))
        return [Table.of(self.columns, rows) for rows in tables]

    def _patterns(self, stack: Stack, length: int) -> list[list[dict]]:
        sums = summed(stack, length, self.sequences, partial(_Watch, stack.task.token_count(length)))
        return [
            [
                {"layer": layer, "head": head, "measure": measure, "value": value}
                for layer in sorted({layer for layer, _ in sums})
                for head, numbers in enumerate(_shares(*(sums[layer, kind][model].cpu() for kind in KINDS)))
                for measure, value in numbers.items()
            ]
            for model in range(len(stack))
        ]

    def _moved(self, stack: Stack, length: int) -> list[list[dict]]:
        """Return the accuracies with positions shifted and randomised, if the model has positions that can be."""
        tables: list[list[dict]] = [[] for _ in stack.subjects]
        changes = [_changes(subject, stack.task.token_count(length)) for subject in stack.subjects]
        for change in changes[0]:
            times = torch.stack([positions[change] for positions in changes]).to(stack.device)
            found = stack.accuracy(length, self.sequences, partial(_given_positions, stack.first), times)
            for rows, accuracies in zip(tables, found, strict=True):
                rows += [
                    {"layer": -1, "head": -1, "measure": f"{name}, positions {change}", "value": value}
                    for name, value in accuracies.items()
                ]
        return tables


class _Watch(Sums):
    """Sums the squared deviations of the weights from equal ones, and what places and distances explain of them.

    By layer, `all` has the deviations, what places explain, weighted distances, weights, and the squares of equal
    weights (5, H); `by distance` has the sum of deviations and their number at each distance (2, H, T).
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        seen = visible.sum(dim=-1, keepdim=True).clamp_min(1)
        total = weights.sum(dim=-1, keepdim=True)
        even = torch.where(visible, total / seen, 0.0)
        # The first query sees only itself, so its weights cannot deviate.
        deviation = (weights - even).double()
        mean = deviation.mean(dim=0)  # (H, R, K)
        distance = place.distance.clamp_min(0)
        whole, between = deviation.square().sum(dim=(0, 2, 3)), mean.square().sum(dim=(1, 2)) * len(weights)
        if len(weights) > 1:  # a mean of few sequences has some of their content in it
            between = between - (whole - between) / (len(weights) - 1)
        found = torch.stack(
            [
                whole,
                between,
                (weights.double() * distance).sum(dim=(0, 2, 3)),
                weights.double().sum(dim=(0, 2, 3)),
                even.double().square().sum(dim=(0, 2, 3)),
            ]
        )
        self.add((place.layer, KINDS[0]), found)
        flat = distance.flatten().expand(weights.shape[1], -1)
        counted = visible.expand_as(weights).double().sum(dim=0)
        parts = [
            weights.new_zeros(weights.shape[1], self.tokens, dtype=torch.double).scatter_add(1, flat, part.flatten(1))
            for part in (mean * len(weights), counted)
        ]
        self.add((place.layer, KINDS[1]), torch.stack(parts))
        return weights


def _shares(sums: Tensor, distances: Tensor) -> list[dict[str, float | None]]:
    """Return what explains the pattern of each head, from the sums of `_Watch`."""
    whole, by_place, distance, weight, even = sums
    deviations, counts = distances
    by_distance = (deviations.square() / counts.clamp_min(1)).sum(dim=1)
    rows = []
    for head in range(len(whole)):
        has_pattern = bool(whole[head] > FLAT * even[head])
        place = min(1.0, max(0.0, float(by_place[head] / whole[head]))) if has_pattern else None
        rows.append(
            {
                "distance": float(by_distance[head] / whole[head]) if has_pattern else None,
                "place": place,
                "content": None if place is None else 1.0 - place,
                "mean distance": float(distance[head] / weight[head].clamp_min(1e-30)),
            }
        )
    return rows


def _changes(subject: Subject, tokens: int) -> dict[str, Tensor]:
    """Return other positions (T,) for the tokens by name; empty if the model's positions cannot be given."""
    if not isinstance(subject.model, SequenceModel):
        return {}
    layer: PositionLayer = subject.model.get_submodule(subject.attention[0]).body.positions  # type: ignore[assignment]
    takes_times = layer.acts_on_queries_keys or type(layer).inputs is not PositionLayer.inputs
    bound = subject.max_tokens or 2 * tokens
    if not takes_times or bound < 2 * tokens:
        return {}
    generator = torch.Generator().manual_seed(subject.seed)
    drawn = torch.randperm(2 * tokens, generator=generator)[:tokens].sort().values
    return {"shifted": torch.arange(tokens, 2 * tokens), "randomised": drawn}


@contextmanager
def _given_positions(subject: Subject, times: Tensor) -> Iterator[None]:
    parts: list[Any] = [subject.model.get_submodule(path) for path in subject.attention]
    try:
        for part in parts:
            part.drawn = {"times": times}
        yield
    finally:
        for part in parts:
            part.drawn = {}
