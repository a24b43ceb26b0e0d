"""Which part of a trained model carries which answer: accuracy with parts switched off or replaced, by length."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from latebloom.errors import ConfigError, first_line
from latebloom.evaluation.accuracy import evaluating
from latebloom.fields import at_least
from latebloom.probes import edits
from latebloom.probes.attention import Edit, edited, without_attention
from latebloom.probes.probe import NotMeasurable, Progress, StackedProbe
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

Change = Callable[[int], AbstractContextManager[None]]
"""Changes the model while the context lasts, for sequences of a length."""
INTACT, ATTENTION_OFF = "intact", "attention off"
STATES: tuple[edits.StateChange, ...] = ("reset", "frozen", "exchanged")


@dataclass(frozen=True, kw_only=True)
class Ablation(StackedProbe):
    """Accuracy of each answer with parts of attention or of the recurrence switched off or replaced, by length."""

    columns: ClassVar = (
        Column("part", "text", "what is changed: nothing, attention or recurrence"),
        Column("change", "text", "how it is changed"),
        Column("answer", "text", "name of the answer"),
        Column("length", "whole", "items of a sequence"),
        Column("accuracy", "number", "share of right answers"),
        Column("sequences", "whole", "test sequences"),
    )
    chart: ClassVar = Chart(
        "heat", "Accuracy by change", "length", "accuracy", ("change",), split="answer", bounds=(0, 1),
        note="The row intact is the model as it is. An answer that a change leaves alone does not need that part.",
    )  # fmt: skip

    name: Literal["ablation"] = "ablation"
    multiples: tuple[float, ...] = (1, 2, 4)
    """The probed lengths, in training lengths; those that the task does not allow are left out."""
    sequences: Annotated[int, at_least(2)] = 64
    """Test sequences per length."""
    heads: bool = True
    """Whether each head is switched off by itself too."""
    temperatures: tuple[float, ...] = (0.5, 2.0)
    """What the scores are divided by."""

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        subject = stack.first
        if not subject.attention and not subject.recurrences:
            raise NotMeasurable("ablation: the model has neither attention nor a recurrence that is known")
        tables: list[list[dict]] = [[] for _ in stack.subjects]
        lengths = subject.lengths(self.multiples)
        changes = list(self._changes(subject))
        for number, (part, label, change) in enumerate(changes):
            for length in lengths:
                with change(length):
                    found = stack.accuracy(length, self.sequences)
                about = {"part": part, "change": label, "length": length, "sequences": self.sequences}
                for rows, accuracies in zip(tables, found, strict=True):
                    rows += [about | {"answer": name, "accuracy": value} for name, value in accuracies.items()]
            progress((number + 1) / len(changes))
        return [Table.of(self.columns, rows) for rows in tables]

    def _changes(self, subject: Subject) -> Iterator[tuple[str, str, Change]]:
        yield "nothing", INTACT, lambda length: nullcontext()
        layers = range(len(subject.attention))
        if layers:
            yield "attention", ATTENTION_OFF, lambda length: without_attention(subject)
            if len(layers) > 1:
                for layer in layers:
                    yield "attention", f"layer {layer} off", lambda length, at=layer: without_attention(subject, [at])
            for label, edit in self._edits(subject):
                yield "attention", label, lambda length, edit=edit: edited(subject, edit)
        for kind in STATES if subject.recurrences else ():
            yield (
                "recurrence", f"state {kind}",
                lambda length, kind=kind: edits.changed_state(subject.recurrences, kind, middle(subject, length)),
            )  # fmt: skip

    def _edits(self, subject: Subject) -> Iterator[tuple[str, Edit]]:
        counts = _head_counts(subject)
        for layer, heads in enumerate(counts if self.heads else ()):
            for head in range(heads if heads > 1 or len(counts) > 1 else 0):
                yield f"head {layer}.{head} off", edits.HeadOff(layer, head)
        yield "scores uniform", edits.Uniform()
        yield "scores shuffled", edits.Shuffled()
        yield "scores cut to the training length", edits.Cut(subject.task.token_count(subject.training_length))
        if counts:
            yield "queries and keys of another sequence", edits.FromAnother("queries and keys")
            yield "values of another sequence", edits.FromAnother("values")
        yield "largest weight instead of softmax", edits.Hard()
        for temperature in self.temperatures:
            yield f"temperature {temperature:g}", edits.Temperature(temperature)


def middle(subject: Subject, length: int) -> int:
    """Return the number of tokens after which states are changed: in the middle of what the state answer tracks.

    It does not depend on the seed, so that models that are probed at once have the same.
    """
    batch = subject.task.batch(0, "test", 0, length=length, size=16)
    columns = batch.columns.get(subject.task.state_answer or "")
    if columns is None or columns.stop - columns.start < 3:
        return batch.shape[1] // 2
    return int(batch.positions[:, (columns.start + columns.stop) // 2].median())


def _head_counts(subject: Subject) -> list[int]:
    """Return the number of heads of each attention layer; empty if its values and outputs are not seen."""
    counts: dict[int, int] = {}

    class Count(Edit):
        def inputs(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
            counts[layer] = q.shape[-3]
            return q, k, v

    batch = subject.task.batch(subject.seed, "test", 0, length=subject.training_length, size=2, device=subject.device)
    try:
        with evaluating(subject.model), torch.inference_mode(), edited(subject, Count()):
            subject.logits(batch.tokens, batch.positions)
    except ConfigError as error:
        if "written with a softmax" not in first_line(error):
            raise
        return []
    return [counts[layer] for layer in sorted(counts)]
