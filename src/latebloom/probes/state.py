"""Whether the running state can be read from a recurrence, and whether it stays where it was on long sequences.

A linear classifier is trained on states of short sequences and tested on long ones. Two controls show what the
classifier finds by itself: labels that were shuffled, and the same model with random weights. The drift says how far
the states of one class have moved from where they were on short sequences, and the spread how far apart they are;
both as a share of the distance between classes. A recurrence that corrects its state keeps both; in one that does not,
errors add up with every token.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from latebloom.fields import at_least
from latebloom.models.sequence_model import SequenceModel
from latebloom.probes.classifier import Classes, Clusters, fit
from latebloom.probes.features import read_features
from latebloom.probes.probe import NotMeasurable, Progress, StackedProbe
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

OTHER = 1 << 40
"""What is added to a seed for other sequences of the same length."""


@dataclass(frozen=True, kw_only=True)
class State(StackedProbe):
    """Whether a linear classifier reads the running state from each layer, at lengths beyond its training."""

    columns: ClassVar = (
        Column("feature", "text", "state (of the recurrence) or stream (what the layers after it read)"),
        Column("layer", "whole", "number of the recurrent layer, from 0"),
        Column("control", "text", "none, shuffled labels, or random weights"),
        Column("length", "whole", "items of a sequence"),
        Column("accuracy", "number", "of the linear classifier"),
        Column("drift", "number", "how far classes moved, in distances between classes"),
        Column("spread", "number", "how wide a class is, in distances between classes"),
        Column("samples", "whole", "states that were tested"),
    )
    chart: ClassVar = Chart(
        "lines", "The running state, read from the recurrence by a linear classifier", "length", "accuracy",
        where={"feature": ("best",), "control": ("none",)}, bounds=(0, 1), log=True,
        note="The layer from which the state is read best at the training length. The classifier was trained at the "
        "training length; it is tested on the last items of longer sequences.",
    )  # fmt: skip
    more: ClassVar = (
        Chart(
            "lines", "Drift of the classes of states", "length", "drift", log=True,
            where={"feature": ("best",), "control": ("none",)},
            note="How far the states of a class have moved from where they were at the training length, as a share of "
            "the distance between classes. It grows where errors add up.",
        ),
        Chart(
            "lines", "Accuracy of the classifier with each control", "length", "accuracy", split="control", log=True,
            where={"feature": ("best",)}, bounds=(0, 1),
            note="Shuffled labels and random weights show what a classifier finds where there is nothing to find.",
        ),
    )  # fmt: skip

    name: Literal["state"] = "state"
    multiples: tuple[float, ...] = (1, 2, 4, 8)
    """The probed lengths, in training lengths; those that the task does not allow are left out."""
    sequences: Annotated[int, at_least(8)] = 64
    """Test sequences per length; the classifier is trained on four times as many."""
    positions: Annotated[int, at_least(1)] = 8
    """Tokens of a sequence at which the state is read."""

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        if stack.task.state_answer is None:
            raise NotMeasurable(f"state: {stack.task.name} has no state to track")
        if not stack.first.mixers:
            raise NotMeasurable("state: the model has no recurrence")
        lengths = stack.first.lengths(self.multiples)
        total = sum(stack.task.token_count(length) for length in lengths) * 2
        done = 0.0

        def advance(length: int) -> None:
            nonlocal done
            done += stack.task.token_count(length) / total
            progress(min(1.0, done))

        tables = self._rows(stack, lengths, "none", advance)
        if not tables[0]:
            raise NotMeasurable("state: no part outside attention returns a tensor of (sequences, tokens, features)")
        if stack.first.is_own:
            random = Stack([_with_random_weights(subject) for subject in stack.subjects])
            for rows, control in zip(tables, self._rows(random, lengths, "random weights", advance), strict=True):
                rows += control
        progress(1.0)
        return [Table.of(self.columns, rows + _best(rows)) for rows in tables]

    def _rows(self, stack: Stack, lengths: list[int], control: str, advance: Callable[[int], None]) -> list[list[dict]]:
        """Return the rows of each model."""
        shortest = lengths[0]
        train, labels = read_features(stack, shortest, 4 * self.sequences, self.positions, late=False)
        classes = Classes.of(labels)
        labels, _ = classes.numbers(labels)
        order = torch.randperm(labels.shape[1], generator=torch.Generator().manual_seed(0)).to(labels.device)
        centre = {key: (x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True) + 1e-6) for key, x in train.items()}
        scaled = {key: (x - centre[key][0]) / centre[key][1] for key, x in train.items()}
        trained_on = {control: labels} | ({"shuffled labels": labels[:, order]} if control == "none" else {})
        readers = {
            (key, name): fit(x, targets, classes.exists)
            for key, x in scaled.items()
            for name, targets in trained_on.items()
        }
        clusters = {key: Clusters.of(x, labels, classes.exists) for key, x in scaled.items()}
        tables: list[list[dict]] = [[] for _ in stack.subjects]
        for length in lengths:
            # The test sequences of the shortest length are other ones than those the classifier was trained on.
            is_short = length == shortest
            test, states = read_features(
                stack, length, self.sequences, self.positions, late=not is_short, seed_shift=OTHER * is_short
            )
            states, known = classes.numbers(states)
            samples = known.sum(dim=1)
            for key, x in test.items():
                x = (x - centre[key][0]) / centre[key][1]
                drift, spread = clusters[key].moved(x, states, known)
                for name in trained_on:
                    right = ((readers[key, name](x) == states) & known).sum(dim=1).double() / samples
                    for model, rows in enumerate(tables):
                        about = {"feature": key[0], "layer": key[1], "length": length, "control": name}
                        numbers = {"accuracy": right[model], "drift": drift[model], "spread": spread[model]}
                        rows.append(
                            about
                            | {column: float(value) for column, value in numbers.items()}
                            | {"samples": int(samples[model])}
                        )
            advance(length)
        return tables


def _best(rows: list[dict]) -> list[dict]:
    """Return the rows of the layer whose state is read best at the shortest length, as layer -1."""
    shortest = min(row["length"] for row in rows)
    kinds = {row["feature"] for row in rows}
    feature = "state" if "state" in kinds else "stream"
    chosen = max(
        (row for row in rows if (row["length"], row["control"], row["feature"]) == (shortest, "none", feature)),
        key=lambda row: row["accuracy"],
    )
    same = [row for row in rows if (row["feature"], row["layer"]) == (feature, chosen["layer"])]
    return [row | {"feature": "best", "layer": -1} for row in same]


def _with_random_weights(subject: Subject) -> Subject:
    """Return the same model with the weights that training would start from."""
    model: Any = subject.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed + 1)
        fresh = SequenceModel(model.settings, model.vocabulary_size).to(subject.device)
    return replace(subject, model=fresh)
