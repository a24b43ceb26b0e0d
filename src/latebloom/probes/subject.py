"""What a probe is given: a model, the task that it is probed on, and its training length.

Shapes: B sequences, T tokens, A scored queries, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.find import Found, Where, find_attention
from latebloom.errors import ConfigError, require
from latebloom.layers.rows import rows_at
from latebloom.models.block import Residual, residual_parts
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.task import Task


@dataclass
class Subject:
    """A model and a task: a model of this package, or any module in which `DelayedAttention` finds attention."""

    model: nn.Module
    task: Task
    training_length: int
    seed: int = 0
    """The seed of the test sequences: that of the run, so that they were not trained on."""
    where: Where | Found | None = None
    """The attention of a model of another kind, if it is not to be found by itself."""
    example: Mapping[str, Any] | None = None
    """The arguments of a forward pass of such a model, if it is called neither as `model(tokens)` nor with
    `input_ids`."""
    recorded: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The lines of the run's metrics.jsonl."""

    def __post_init__(self) -> None:
        require(self.training_length >= 2, "training_length", self.training_length, "2 or more")
        size = self.vocabulary
        if size is not None and size < self.task.vocabulary_size:
            raise ConfigError(
                f"probe: {self.task.name} has {self.task.vocabulary_size} tokens, and {type(self.model).__name__} has "
                f"embeddings for {size}"
            )

    @property
    def is_own(self) -> bool:
        """Whether it is a model of this package, in which every part is known."""
        return isinstance(self.model, SequenceModel)

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def vocabulary(self) -> int | None:
        """The number of tokens that the model knows; None if it has no embedding."""
        return self.model.vocabulary_size if isinstance(self.model, SequenceModel) else vocabulary_of(self.model)

    @property
    def max_tokens(self) -> int | None:
        """The largest number of tokens that the positions of the model cover; None if there is no limit."""
        if isinstance(self.model, SequenceModel):
            settings = self.model.settings
            return settings.attention.positions.max_tokens if settings.has_attention else None
        return positions_of(self.model)

    @cached_property
    def found(self) -> Found:
        """The attention and the other mixers of a model of another kind."""
        if isinstance(self.where, Found):
            return self.where
        found = find_attention(self.model, self.example, where=self.where, leaves_out=False)
        if found is None:
            raise ConfigError(
                f"probe: no input for {type(self.model).__name__} could be guessed; give `example`, the arguments of "
                "one small forward pass"
            )
        return found

    @cached_property
    def attention(self) -> tuple[str, ...]:
        """The paths of the attention, in order."""
        if not self.is_own:
            return self.found.matched
        parts = {id(part) for part in residual_parts(self.model, "attention")}
        return tuple(path for path, module in self.model.named_modules() if id(module) in parts)

    @cached_property
    def recurrences(self) -> list[Residual]:
        """The recurrent parts of a model of this package, in order."""
        return residual_parts(self.model, "recurrence") if self.is_own else []

    @cached_property
    def mixers(self) -> list[Any]:
        """The modules that mix tokens without attention, in order: the recurrent parts, or what was found."""
        if self.is_own:
            return list(self.recurrences)
        return [self.model.get_submodule(path) for path in self.found.mixers]

    def logits(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the logits (B, A, V) at the positions (B, A), or at every token (B, T, V) if there are none."""
        if self.is_own:
            return self.model(tokens, positions)
        output = self._call(tokens)
        return output if positions is None else rows_at(positions, output)

    @cached_property
    def _call(self) -> Callable[[Tensor], Tensor]:
        from latebloom.probes.horizon import caller

        return caller(self.model, self.example)

    def lengths(self, multiples: Sequence[float]) -> list[int]:
        """Return these multiples of the training length, those that the task and the positions allow."""
        task, most = self.task, self.max_tokens
        found = sorted({max(task.shortest, round(multiple * self.training_length)) for multiple in multiples})
        allowed = [n for n in found if task.longest is None or n <= task.longest]
        allowed = [n for n in allowed if most is None or task.token_count(n) <= most]
        if not allowed:
            raise ConfigError(f"probe: {self.task.name} has no length of {found} that the model allows")
        return allowed


def vocabulary_of(model: nn.Module) -> int | None:
    """Return the number of tokens that a model of another kind has embeddings for; None if it has no embedding."""
    found: Any = getattr(model, "get_input_embeddings", lambda: None)()
    found = found or next((one for one in model.modules() if isinstance(one, nn.Embedding)), None)
    size = getattr(found, "num_embeddings", None)
    return size if isinstance(size, int) else None


def positions_of(model: nn.Module) -> int | None:
    """Return the number of positions that the configuration of a Transformers model names; None if it names none."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest >= 2 else None
