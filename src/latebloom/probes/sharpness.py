"""How sharp attention is: entropy, the largest weight, and the weight on the item that is asked for, by length.

Shapes: B sequences, H heads, T tokens, R queries and K keys of a tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.probes.attention import Place, Sums, summed
from latebloom.probes.probe import NotMeasurable, Progress, StackedProbe
from latebloom.probes.sources import find_source
from latebloom.probes.stack import Stack, part_of
from latebloom.probes.table import Chart, Column, Table
from latebloom.tasks.task import Batch

MAJORITY = 0.5


@dataclass(frozen=True, kw_only=True)
class Sharpness(StackedProbe):
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

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        if not stack.first.attention:
            raise NotMeasurable("sharpness: the model has no attention")
        tables: list[list[dict]] = [[] for _ in stack.subjects]
        lengths = stack.first.lengths(self.multiples)
        work = [stack.task.token_count(length) for length in lengths]
        for number, length in enumerate(lengths):
            sums = self._sums(stack, length)
            about = {"length": length, "sequences": self.sequences}
            for model, rows in enumerate(tables):
                rows += [
                    about | {"layer": layer, "head": head, **numbers}
                    for layer in sorted(sums)
                    for head, numbers in enumerate(_means(sums[layer][model]))
                ]
            progress(sum(work[: number + 1]) / sum(work))
        return [Table.of(self.columns, rows) for rows in tables]

    def _sums(self, stack: Stack, length: int) -> dict[int, Tensor]:
        """Return the sums of `_Watch` over all sequences, (S, 5, H) by layer."""

        def sources(batch: Batch) -> tuple[Tensor, Tensor]:
            by_seed: dict[int, tuple[Tensor, Tensor]] = {}  # the oracle is plain Python, and runs share seeds
            for model, subject in enumerate(stack.subjects):
                if subject.seed not in by_seed:
                    by_seed[subject.seed] = find_source(stack.task, part_of(batch, model))
            queries, places = zip(*(by_seed[subject.seed] for subject in stack.subjects), strict=True)
            return torch.stack(queries).to(stack.device), torch.stack(places).to(stack.device)

        item = getattr(stack.task, "key_tokens", 0) + 1
        return summed(stack, length, self.sequences, partial(_Watch, item), sources)


class _Watch(Sums):
    """Sums what the weights at the queries (B,) are.

    By layer: entropy, largest and right weight, number of sequences, and of those with a source (5, H). `places` (B,)
    has the last token of the item that is asked for, which has `item` tokens; -1 where it is not known.
    """

    def __init__(self, item: int, queries: Tensor, places: Tensor) -> None:
        super().__init__()
        self.queries, self.places, self.item = queries, places, item

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        rows = self.queries - place.queries[0]
        here = (rows >= 0) & (rows < len(place.queries))  # the others are in another tile
        rows = rows.clamp(0, len(place.queries) - 1)[:, None, None, None]
        at = weights.gather(2, rows.expand(-1, weights.shape[1], 1, weights.shape[3]))[:, :, 0].double()  # (B, H, K)
        shares = at / at.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        entropy = -(shares * shares.clamp_min(1e-30).log()).sum(dim=-1)
        ends, known = self.places[:, None], self.places >= 0
        of_item = (place.keys <= ends) & (place.keys > ends - self.item) & known[:, None]
        right = (at * of_item[:, None]).sum(dim=-1)
        counts = [torch.full_like(entropy, 1.0), known[:, None].expand_as(entropy).double()]
        found = torch.stack([entropy, at.amax(dim=-1), right, *counts]) * here[:, None]
        self.add(place.layer, found.sum(dim=1))
        return weights


def _means(sums: Tensor) -> list[dict[str, float | None]]:
    """Return the means of each head from the sums (5, H) of `_Watch`."""
    return [
        {"entropy": entropy / count, "largest": largest / count, "right": right / known if known else None}
        for entropy, largest, right, count, known in sums.T.tolist()
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
