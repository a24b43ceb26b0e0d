"""What a probe is given: a model, the task that it is probed on, and its training length.

Shapes: B sequences, T tokens, A scored queries, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.find import Found, Where, find_attention
from latebloom.errors import ConfigError, require
from latebloom.evaluation.accuracy import TOKENS_AT_ONCE, evaluating
from latebloom.models.block import Residual, residual_parts
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.task import Batch, Task


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
        reasons = self.found.passed_over.items()
        return [self.model.get_submodule(path) for path, reason in reasons if "attention, which" not in reason]

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the logits (B, A, V) at the positions (B, A)."""
        if self.is_own:
            return self.model(tokens, positions)
        output = self._call(tokens)
        return output.gather(1, positions[:, :, None].expand(-1, -1, output.shape[2]))

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

    def batches(self, length: int, sequences: int) -> Iterator[Batch]:
        """Yield test sequences in pieces of about equal size, so that memory does not grow with the length."""
        self.task.check_length(length)
        tokens = sequences * self.task.token_count(length)
        pieces = min(max(1, sequences // 2), -(-tokens // TOKENS_AT_ONCE.get(self.device.type, 1 << 14)))
        edges = [sequences * piece // pieces for piece in range(pieces + 1)]
        for first, last in pairwise(edges):
            size = last - first
            yield self.task.batch(self.seed, "test", 0, length=length, size=size, first_row=first, device=self.device)

    def accuracy(self, length: int, sequences: int) -> dict[str, float]:
        """Return the share of right answers by name."""
        right: dict[str, int] = {}
        total: dict[str, int] = {}
        with evaluating(self.model), torch.inference_mode():
            for batch in self.batches(length, sequences):
                scored = batch.scored()
                is_right = self.logits(scored.tokens, scored.positions).argmax(dim=-1) == scored.targets
                for name, columns in scored.columns.items():
                    right[name] = right.get(name, 0) + int(is_right[:, columns].sum())
                    total[name] = total.get(name, 0) + is_right[:, columns].numel()
        return {name: right[name] / total[name] for name in right}


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
