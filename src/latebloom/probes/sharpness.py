"""How sharp attention is: entropy, the largest weight, and the weight on the item that is asked for, by length.

Shapes: B sequences, H heads, T tokens, R queries and K keys of a tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.evaluation.accuracy import evaluating
from latebloom.fields import at_least
from latebloom.probes.attention import Edit, Place, edited
from latebloom.probes.probe import NotMeasurable, Probe, Progress
from latebloom.probes.sources import find_source
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

MAJORITY = 0.5


@dataclass(frozen=True, kw_only=True)
class Sharpness(Probe):
    """Entropy of attention, its largest weight, and its weight on the item that is asked for, by length and head."""

    columns: ClassVar = (
        Column("length", "whole", "items of a sequence"),
        Column("layer", "whole", "number of the attention layer, from 0"),
        Column("head", "whole", "number of the head, from 0"),
        Column("entropy", "number", "of the weights at the query, in nats"),
        Column("largest", "number", "the largest weight at the query"),
        Column("right", "number", "the weight on the item that is asked for", optional=True),
        Column("sequences", "whole", "test sequences"),
    )
    chart: ClassVar = Chart(
        "heat", "Weight on the item that is asked for", "length", "right", ("layer", "head"), bounds=(0, 1),
        note="Rows are layer.head. A head that finds the key has a weight near 1 at every length; one whose weight "
        "falls with length is diluted by the other tokens. Without a recall answer this map is empty.",
    )  # fmt: skip

    name: Literal["sharpness"] = "sharpness"
    multiples: tuple[float, ...] = (1, 2, 4, 8, 16)
    """The probed lengths, in training lengths; those that the task does not allow are left out."""
    sequences: Annotated[int, at_least(2)] = 64
    """Test sequences per length."""

    def measure(self, subject: Subject, progress: Progress = lambda share: None) -> Table:
        if not subject.attention:
            raise NotMeasurable("sharpness: the model has no attention")
        rows = []
        lengths = subject.lengths(self.multiples)
        work = [subject.task.token_count(length) for length in lengths]
        for number, length in enumerate(lengths):
            rows += self._at(subject, length)
            progress(sum(work[: number + 1]) / sum(work))
        return Table.of(self.columns, rows)

    def _at(self, subject: Subject, length: int) -> list[dict]:
        watch = _Watch()
        with evaluating(subject.model), torch.inference_mode(), edited(subject, watch):
            for batch in subject.batches(length, self.sequences):
                source = find_source(subject.task, batch)
                last = torch.full((batch.shape[0],), batch.shape[1] - 1)
                watch.queries = (last if source is None else source.queries).contiguous().to(subject.device)
                watch.places = None if source is None else source.places.to(subject.device)
                watch.item = 1 if source is None else source.item
                subject.logits(batch.tokens, batch.positions[:, -1:])
        return [
            {"length": length, "layer": layer, "head": head, "sequences": self.sequences, **numbers}
            for layer in sorted(watch.sums)
            for head, numbers in enumerate(watch.means(layer))
        ]


class _Watch(Edit):
    """Sums what the weights at the queries are, by layer and head."""

    def __init__(self) -> None:
        self.queries: Tensor = torch.empty(0)
        self.places: Tensor | None = None
        self.item = 1
        self.sums: dict[int, Tensor] = {}
        """By layer: entropy, largest and right weight, number of sequences, and of those with a source (5, H)."""

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        rows = torch.searchsorted(place.queries, self.queries)
        here = (rows < len(place.queries)) & (self.queries >= place.queries[0])
        chosen = here.nonzero()[:, 0]
        at = weights[chosen, :, rows[chosen]].double()  # (B', H, K)
        shares = at / at.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        entropy = -(shares * shares.clamp_min(1e-30).log()).sum(dim=-1)
        right = torch.zeros_like(entropy)
        known = torch.zeros(len(chosen), dtype=torch.bool, device=at.device)
        if self.places is not None:
            ends = self.places[chosen][:, None]
            known = ends[:, 0] >= 0
            of_item = (place.keys <= ends) & (place.keys > ends - self.item) & known[:, None]
            right = (at * of_item[:, None]).sum(dim=-1)
        counts = [torch.full_like(entropy, 1.0), known[:, None].expand_as(entropy).double()]
        found = torch.stack([entropy, at.amax(dim=-1), right, *counts]).sum(dim=1)
        self.sums[place.layer] = self.sums.get(place.layer, 0) + found
        return weights

    def means(self, layer: int) -> list[dict[str, float | None]]:
        entropy, largest, right, count, known = self.sums[layer].cpu()
        return [
            {
                "entropy": float(entropy[head] / count[head]),
                "largest": float(largest[head] / count[head]),
                "right": float(right[head] / known[head]) if known[head] else None,
            }
            for head in range(len(count))
        ]


def majority_lost(table: Table) -> tuple[int, int, int | None] | None:
    """Return the head that finds the key best at the shortest length, and the length at which it loses its majority.

    The result is (layer, head, length); the length is None if the head keeps it. None if nothing is asked for.
    """
    rows = [row for row in table.records() if row["right"] is not None]
    if not rows:
        return None
    shortest = min(row["length"] for row in rows)
    best = max((row for row in rows if row["length"] == shortest), key=lambda row: row["right"])
    of_head = best_head_weights(table, best["layer"], best["head"])
    lost = next((length for length, weight in of_head if weight < MAJORITY), None)
    return best["layer"], best["head"], lost


def best_head_weights(table: Table, layer: int, head: int) -> Sequence[tuple[int, float]]:
    """Return the lengths and the weight of a head on the item that is asked for."""
    rows = table.records(layer=layer, head=head)
    return sorted((row["length"], row["right"]) for row in rows if row["right"] is not None)
