"""Accuracy by length on held-out sequences.

Shapes: S models, B sequences, T tokens, A scored queries, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from latebloom.evaluation.interval import binomial_interval
from latebloom.tasks.task import Split, Task

TOKENS_AT_ONCE = {"cpu": 1 << 14, "cuda": 1 << 18}
"""Sequences are evaluated in pieces of about this many tokens, so that memory does not grow with the length."""
STACK_FACTOR = {"cpu": 1, "cuda": 8}
"""A stack evaluates this many times the tokens that one model would at once, so that every model has enough."""


@dataclass(frozen=True)
class Count:
    """The number of right answers on sequences of one length."""

    length: int
    sequences: int
    correct: int
    """Sequences with every answer right."""
    answers: dict[str, int]
    """Right queries of each named answer."""
    queries: dict[str, int] = field(default_factory=dict)
    """Scored queries per sequence, of the answers that have several."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.sequences

    def accuracy_of(self, answer: str) -> float:
        """Return the share of right queries of an answer."""
        return self.answers[answer] / (self.sequences * self.queries.get(answer, 1))

    def interval_of(self, answer: str) -> tuple[float, float]:
        """Return the 95% interval of `accuracy_of`.

        Queries of one sequence are right or wrong together more often than by chance, so a sequence counts as one
        observation, however many queries it has.
        """
        right, several = self.answers[answer], self.queries.get(answer, 1)
        low, _ = binomial_interval(right // several, self.sequences)
        _, high = binomial_interval(-(-right // several), self.sequences)
        return low, high

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of `accuracy`."""
        return binomial_interval(self.correct, self.sequences)


def apply_to_one(model: Callable[..., Any], function: Callable[..., Any], *per_model: Tensor) -> Any:
    """Call `function(model, *arguments)`; arguments and results have a leading axis of one model."""
    return tree_map(lambda part: part[None], function(model, *(argument[0] for argument in per_model)))


def apply_to_each(
    template: nn.Module,
    parameters: Mapping[str, Tensor],
    function: Callable[..., Any],
    *per_model: Tensor,
    randomness: Literal["error", "same"] = "error",
) -> Any:
    """Call `function(model, *arguments)` for S models at once; parameters, arguments and results have an axis S.

    `template` is the module that is called with the parameters. `randomness` says whether the function may draw from
    torch's generators, the same numbers for every model.
    """

    def apply(parameters: dict[str, Tensor], *arguments: Any) -> Any:
        return function(lambda *inputs: functional_call(template, parameters, inputs), *arguments)

    return vmap(apply, randomness=randomness)(dict(parameters), *per_model)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode while the context lasts."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def count_correct(
    each: Callable[..., Any],
    task: Task,
    length: int,
    *,
    sequences: int,
    seeds: Tensor,
    split: Split = "test",
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[Count]:
    """Count the right answers of each of S models, on `sequences` sequences of its seed (S,).

    `each(function, *arguments)` calls `function(model, *arguments)` for every model, such as
    `partial(apply_to_one, model)`. `progress` is called with the number of sequences that are done.
    """
    task.check_length(length)
    kind, models = torch.device(device).type, seeds.shape[0]
    budget = TOKENS_AT_ONCE.get(kind, 1 << 14) * (STACK_FACTOR.get(kind, 1) if models > 1 else 1)
    at_once = max(1, budget // (task.token_count(length) * models))
    found: list[Tensor] = []
    queries: dict[str, int] = {}
    with torch.inference_mode():
        for first in range(0, sequences, at_once):
            size = min(at_once, sequences - first)

            def compare(model: Any, seed: Tensor, first: int = first, size: int = size) -> Tensor:
                batch = task.batch(seed, split, 0, length=length, size=size, first_row=first, device=device).scored()
                queries.update({name: part.stop - part.start for name, part in batch.columns.items()})
                right = model(batch.tokens, batch.positions).argmax(dim=-1) == batch.targets
                return torch.stack([right[:, part].sum(dim=1) for part in batch.columns.values()], dim=1)

            found.append(each(compare, seeds))
            if progress is not None:
                progress(first + size)
    right = torch.cat(found, dim=1).cpu()  # (S, sequences, named answers)
    whole = (right == torch.tensor(list(queries.values()))).all(dim=2).sum(dim=1).tolist()
    several = {name: count for name, count in queries.items() if count > 1}
    return [
        Count(length, sequences, correct, dict(zip(queries, row, strict=True)), several)
        for correct, row in zip(whole, right.sum(dim=1).tolist(), strict=True)
    ]
