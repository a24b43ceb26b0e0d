"""State passing: sequences of a training batch that continue those of the batch before, arXiv 2507.02782.

A batch stays a pure function of its index. The trainer keeps the states of the recurrences after the last batch and the
state answer at its end, both part of a checkpoint. A sequence that continues another starts from these states, and its
state answers are shifted by that answer. Attention sees the tokens of its own sequence only.

Shapes: S runs, B sequences.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from latebloom.errors import ConfigError
from latebloom.models.block import Residual
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.random import fold, shares
from latebloom.tasks.task import Batch, Task

_PASSING = 0x9A55
"""Separates these random numbers from those of the data."""


class StatePassing:
    """The states (S, B, ...) after the last batch, and the state answers (S, B) at its end; zeros before the first."""

    def __init__(
        self, model: SequenceModel, parts: Sequence[Residual], task: Task, probability: float, runs: int, sequences: int
    ) -> None:
        assert task.state_answer is not None, "RunConfig refuses other tasks"
        assert task.carried_modulus is not None, "RunConfig refuses other tasks"
        self.parts, self.probability = parts, probability
        self.answer, self.modulus = task.state_answer, task.carried_modulus
        tokens = torch.arange(2 * sequences, device=next(model.parameters()).device).view(sequences, 2)
        tokens = tokens % task.vocabulary_size
        with torch.no_grad():
            first = _with_states(model, parts, tokens, [None] * len(parts))
            flat, self._structure = tree_flatten([part.state for part in parts])
            zeros = [torch.zeros_like(leaf) for leaf in flat]
            again = _with_states(model, parts, tokens, tree_unflatten(zeros, self._structure))
        _reset(parts)
        if not torch.allclose(first, again, rtol=1e-4, atol=1e-5):
            name = model.settings.recurrence.name
            raise ConfigError(
                f"training.state_passing: the recurrence {name} does not start from a state of zeros; set it to 0"
            )
        self.states = [leaf.new_zeros(runs, *leaf.shape) for leaf in flat]
        self.answers = torch.zeros(runs, sequences, dtype=torch.int64, device=tokens.device)

    @property
    def carried(self) -> list[Tensor]:
        """The tensors that a step reads, and that `keep` writes, each with the axis S."""
        return [self.answers, *self.states]

    def start(
        self, carried: Sequence[Tensor], batch: Batch, seed: int | Tensor, index: Tensor
    ) -> tuple[Batch, Tensor, list[Tensor]]:
        """Return the batch of one run with shifted answers, the state answers (B,) at its end, and its first states."""
        answers, *states = carried
        rows = torch.arange(batch.shape[0], device=index.device)
        continues = shares(fold(seed, _PASSING, index), rows, 0, 1)[:, 0] < self.probability
        states = [torch.where(continues.view(-1, *[1] * (leaf.dim() - 1)), leaf, 0.0) for leaf in states]
        columns = batch.columns[self.answer]
        before, own, after = batch.targets.tensor_split([columns.start, columns.stop], dim=1)
        own = (own + (continues * answers)[:, None]) % self.modulus
        return replace(batch, targets=torch.cat([before, own, after], dim=1)), own[:, -1], states

    @contextmanager
    def continuing(self, states: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Start the recurrences from these states; yield a list that then has their states after the last token."""
        last: list[Tensor] = []
        try:
            for part, state in zip(self.parts, tree_unflatten(list(states), self._structure), strict=True):
                part.carries_state, part.state = True, state
            yield last
            last += [leaf.detach() for leaf in tree_flatten([part.state for part in self.parts])[0]]
        finally:
            _reset(self.parts)

    def keep(self, carried: Sequence[Tensor]) -> None:
        """Keep what the batch of every run ended with, in place, so that a captured step reads it."""
        for kept, new in zip(self.carried, carried, strict=True):
            kept.copy_(new)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {str(number): tensor for number, tensor in enumerate(self.carried)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load the tensors that `tensors` returned."""
        self.keep([tensors[str(number)] for number in range(len(self.carried))])


def _with_states(model: SequenceModel, parts: Sequence[Residual], tokens: Tensor, states: Sequence[object]) -> Tensor:
    for part, state in zip(parts, states, strict=True):
        part.carries_state, part.state = True, state
    return model(tokens)


def _reset(parts: Sequence[Residual]) -> None:
    for part in parts:
        part.carries_state, part.state = False, None
