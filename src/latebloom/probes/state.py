"""Whether the running state can be read from a recurrence, and whether it stays where it was on long sequences.

A linear classifier is trained on states of short sequences and tested on long ones. Two controls show what the
classifier finds by itself: labels that were shuffled, and the same model with random weights. The drift says how far
the states of one class have moved from where they were on short sequences, and the spread how far apart they are;
both as a share of the distance between classes. A recurrence that corrects its state keeps both; in one that does not,
errors add up with every token.

Shapes: N samples, F features, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.fields import at_least
from latebloom.models.sequence_model import SequenceModel
from latebloom.probes.features import read_features
from latebloom.probes.probe import NotMeasurable, Probe, Progress
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

DECAY, ITERATIONS = 1e-3, 60


@dataclass(frozen=True, kw_only=True)
class State(Probe):
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

    def measure(self, subject: Subject, progress: Progress = lambda share: None) -> Table:
        if subject.task.state_answer is None:
            raise NotMeasurable(f"state: {subject.task.name} has no state to track")
        if not subject.mixers:
            raise NotMeasurable("state: the model has no recurrence")
        rows: list[dict] = []
        lengths = subject.lengths(self.multiples)
        total = sum(subject.task.token_count(length) for length in lengths) * 2
        done = 0.0

        def advance(length: int) -> None:
            nonlocal done
            done += subject.task.token_count(length) / total
            progress(min(1.0, done))

        rows += self._rows(subject, lengths, "none", advance)
        if not rows:
            raise NotMeasurable("state: no part outside attention returns a tensor of (sequences, tokens, features)")
        if isinstance(subject.model, SequenceModel):
            rows += self._rows(_with_random_weights(subject), lengths, "random weights", advance)
        progress(1.0)
        return Table.of(self.columns, rows + _best(rows))

    def _rows(self, subject: Subject, lengths: list[int], control: str, advance: Callable[[int], None]) -> list[dict]:
        shortest = lengths[0]
        train, labels = read_features(subject, shortest, 4 * self.sequences, self.positions, late=False)
        classes, labels = labels.unique(return_inverse=True)
        shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)]
        centre = {key: (x.mean(dim=0), x.std(dim=0) + 1e-6) for key, x in train.items()}
        scaled = {key: (x - centre[key][0]) / centre[key][1] for key, x in train.items()}
        readers = {key: fit(x, labels, len(classes)) for key, x in scaled.items()}
        fooled = {key: fit(x, shuffled, len(classes)) for key, x in scaled.items()} if control == "none" else {}
        clusters = {key: _clusters(x, labels, len(classes)) for key, x in scaled.items()}
        rows = []
        # The test sequences of the shortest length are other ones than those the classifier was trained on.
        for length in lengths:
            held_out = subject if length != shortest else _with_other_sequences(subject)
            test, states = read_features(held_out, length, self.sequences, self.positions, late=length != shortest)
            known = torch.isin(states, classes)
            states = torch.searchsorted(classes, states[known])
            for (feature, layer), x in test.items():
                x = (x[known] - centre[feature, layer][0]) / centre[feature, layer][1]
                drift, spread = _moved(x, states, len(classes), *clusters[feature, layer])
                about = {"feature": feature, "layer": layer, "length": length, "samples": len(states)}
                about |= {"drift": drift, "spread": spread}
                for named, reader in ((control, readers), ("shuffled labels", fooled)):
                    if reader:
                        right = (reader[feature, layer](x).argmax(dim=1) == states).double().mean()
                        rows.append(about | {"control": named, "accuracy": float(right)})
            advance(length)
        return rows


def fit(x: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Return a linear classifier (multinomial logistic regression with weight decay), trained to its minimum."""
    with torch.inference_mode(False), torch.enable_grad():
        x, labels = x.clone(), labels.clone()
        weight = torch.zeros(x.shape[1], classes, device=x.device, requires_grad=True)
        bias = torch.zeros(classes, device=x.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(x @ weight + bias, labels) + DECAY * weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)
    fixed, shift = weight.detach(), bias.detach()
    return lambda features: features @ fixed + shift


def _clusters(x: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, float]:
    """Return the mean (C, F) of each class, and the mean distance between them."""
    means = _class_means(x, labels, classes)
    pairs = torch.pdist(means)
    return means, float(pairs.mean().clamp_min(1e-12)) if len(pairs) else 1.0


def _class_means(x: Tensor, labels: Tensor, classes: int) -> Tensor:
    sums = x.new_zeros(classes, x.shape[1]).index_add(0, labels, x)
    return sums / labels.bincount(minlength=classes).clamp_min(1)[:, None]


def _moved(x: Tensor, labels: Tensor, classes: int, means: Tensor, distance: float) -> tuple[float, float]:
    """Return how far the classes moved from their means, and how wide they are, in distances between classes."""
    now = _class_means(x, labels, classes)
    there = labels.unique()
    drift = (now - means)[there].norm(dim=1).mean() / distance
    spread = (x - now[labels]).square().sum(dim=1).mean().sqrt() / distance
    return float(drift), float(spread)


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


def _with_other_sequences(subject: Subject) -> Subject:
    return replace(subject, seed=subject.seed + (1 << 40))


def _with_random_weights(subject: Subject) -> Subject:
    """Return the same model with the weights that training would start from."""
    model: Any = subject.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed + 1)
        fresh = SequenceModel(model.settings, model.vocabulary_size).to(subject.device)
    return replace(subject, model=fresh)
