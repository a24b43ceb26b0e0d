"""Models of one shape that are probed at once: a function of one model is applied to all of them.

A single model, of this package or another, is a stack of one, and is called as it stands. Several models of this
package are one module that is called with stacked parameters by `vmap`; hooks, gates and edits are set on that module.

Shapes: S models, B sequences, T tokens, A supervised positions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from latebloom.evaluation.accuracy import STACK_FACTOR, TOKENS_AT_ONCE, apply_to_each, apply_to_one, evaluating
from latebloom.layers.lstm.operation import ignore_copied_weights
from latebloom.models.block import Residual
from latebloom.probes.subject import Subject
from latebloom.tasks.task import Batch, Split, Task

TOKENS = TOKENS_AT_ONCE["cpu"]
"""A model is given about this many tokens at once on every device, so that the pieces, over which some probes average,
are the same everywhere; memory does not grow with the length."""
MOST_MODELS = {"cuda": TOKENS_AT_ONCE["cuda"] * STACK_FACTOR["cuda"] // TOKENS}
"""How many models are probed at once if the caller does not say; on other devices one after the other."""


class Stack:
    """Subjects whose models have the same shape, on the same task and training length; the seeds may differ."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = tuple(subjects)
        self.first = self.subjects[0]
        """The subject whose module is called for all."""
        self.task, self.device = self.first.task, self.first.device
        self.parameters: dict[str, Tensor] = dict(self.first.model.named_parameters())
        """The parameters by name, with a leading axis S if there are several models."""
        if len(self) > 1:
            for other in self.subjects[1:]:
                if not can_share_stack(self.first, other):
                    raise ValueError("these subjects cannot be probed at once")
            if self.device.type == "cuda":
                ignore_copied_weights()
            rows = [dict(subject.model.named_parameters()) for subject in self.subjects]
            self.parameters = {
                name: torch.stack([row[name].detach() for row in rows]).requires_grad_() for name in self.parameters
            }

    def __len__(self) -> int:
        return len(self.subjects)

    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        """Call `function(model, *arguments)` for every model; arguments and results have a leading axis S.

        `model(tokens, positions)` returns logits, as `Subject.logits` does.
        """
        if len(self) == 1:
            # The module is found inside `logits`, because a module of another kind is not called with positions.
            return apply_to_one(self.first.logits, function, *per_model)
        return apply_to_each(self.first.model, self.parameters, function, *per_model, randomness="same")

    def each_batch(self, function: Callable[..., Any], batch: Batch, *per_model: Tensor) -> Any:
        """Call `function(model, batch, *arguments)` for every model with its own part of the batch."""

        def apply(model: Any, tokens: Tensor, positions: Tensor, targets: Tensor, *arguments: Any) -> Any:
            return function(model, replace(batch, tokens=tokens, positions=positions, targets=targets), *arguments)

        return self.each(apply, batch.tokens, batch.positions, batch.targets, *per_model)

    def draw(
        self, length: int, size: int, *, split: Split = "test", first_row: int = 0, task: Task | None = None,
        seed_shift: int = 0,
    ) -> Batch:  # fmt: skip
        """Return a batch for each model, of its own seed: every tensor has a leading axis S."""
        task = task or self.task
        drawn: list[Batch] = []

        def tensors(seed: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
            batch = task.batch(seed, split, 0, length=length, size=size, first_row=first_row, device=self.device)
            drawn.append(batch)
            return batch.tokens, batch.positions, batch.targets

        seeds = [subject.seed + seed_shift for subject in self.subjects]
        if len(seeds) == 1:
            tokens, positions, targets = (part[None] for part in tensors(seeds[0]))
        else:
            tokens, positions, targets = vmap(tensors)(torch.tensor(seeds, device=self.device))
        return replace(drawn[0], tokens=tokens, positions=positions, targets=targets)

    def batches(self, length: int, sequences: int, *, task: Task | None = None, seed_shift: int = 0) -> Iterator[Batch]:
        """Yield test sequences in pieces of about equal size; every tensor has a leading axis S."""
        drawn = task or self.task
        drawn.check_length(length)
        pieces = min(max(1, sequences // 2), -(-sequences * drawn.token_count(length) // TOKENS))
        edges = [sequences * piece // pieces for piece in range(pieces + 1)]
        for first, last in pairwise(edges):
            yield self.draw(length, last - first, first_row=first, task=task, seed_shift=seed_shift)

    def accuracy(
        self,
        length: int,
        sequences: int,
        changed: Callable[..., AbstractContextManager[None]] = nullcontext,
        *per_model: Tensor,
    ) -> list[dict[str, float]]:
        """Return the share of right answers by name, for each model.

        The models are called within `changed(*arguments)`, where the arguments are those of one model.
        """

        def count(model: Any, batch: Batch, *arguments: Tensor) -> dict[str, Tensor]:
            scored = batch.scored()
            with changed(*arguments):
                is_right = model(scored.tokens, scored.positions).argmax(dim=-1) == scored.targets
            return {name: is_right[:, columns].sum() for name, columns in scored.columns.items()}

        right: dict[str, Any] = {}
        total: dict[str, int] = {}
        with evaluating(self.first.model), torch.inference_mode():
            for batch in self.batches(length, sequences):
                for name, found in self.each_batch(count, batch, *per_model).items():
                    right[name] = right.get(name, 0) + found
                for name, columns in part_of(batch, 0).scored().columns.items():
                    total[name] = total.get(name, 0) + batch.tokens.shape[1] * (columns.stop - columns.start)
        counts = {name: found.tolist() for name, found in right.items()}
        return [{name: counts[name][model] / total[name] for name in counts} for model in range(len(self))]


def part_of(batch: Batch, model: int) -> Batch:
    """Return the batch of one model from one whose tensors have a leading axis S."""
    tensors = {name: getattr(batch, name)[model] for name in ("tokens", "positions", "targets")}
    return replace(batch, **tensors)


def can_share_stack(one: Subject, other: Subject) -> bool:
    """Return whether two subjects can be probed at once.

    Components that are called once for each model in a stack are not: what a probe sees in them belongs to one model.
    """
    if not (one.is_own and other.is_own) or one.task.stacking == "none":
        return False
    a: Any = one.model
    b: Any = other.model
    same = (a.settings, a.vocabulary_size, one.task, one.training_length, one.device)
    if same != (b.settings, b.vocabulary_size, other.task, other.training_length, other.device):
        return False
    if any(part.stacking != "vmap" for part in a.modules() if isinstance(part, Residual)):
        return False
    # The module that is called has its own buffers.
    return all(torch.equal(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True))
