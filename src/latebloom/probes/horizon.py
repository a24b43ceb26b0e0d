"""The memory horizon: the distance over which a token influences the outputs of a model without its attention.

Two sequences differ only in their first token, and the outputs are compared at every later position. During delayed
attention training the recurrence learns alone, and it cannot learn to carry a token over more than this distance.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.delay.find import Found, Where, find_attention
from latebloom.delay.hooks import DelayedAttention
from latebloom.delay.triggers import at_step
from latebloom.errors import ConfigError, require
from latebloom.evaluation.accuracy import evaluating
from latebloom.fields import at_least
from latebloom.probes.attention import without_attention
from latebloom.probes.probe import Progress, StackedProbe
from latebloom.probes.stack import Stack
from latebloom.probes.subject import positions_of, vocabulary_of
from latebloom.probes.table import Chart, Column, Table

LEAST_INFLUENCE = 1e-6
"""A smaller relative change of the outputs is the rounding of float32, and counts as none."""


@dataclass(frozen=True)
class Horizon:
    """The influence of a token by distance, with attention disabled."""

    curve: tuple[float, ...]
    """The relative change of the outputs at distance 0, 1, ..."""
    threshold: float
    """The smallest influence that counts, as a share of that at distance 0."""
    sequences: int
    """The number of random sequences that the curve is averaged over."""

    @property
    def tokens(self) -> int:
        """The largest distance at which the influence counts."""
        floor = self.threshold * self.curve[0]
        return max((distance for distance, value in enumerate(self.curve) if value > 0.0 and value >= floor), default=0)

    @property
    def is_open(self) -> bool:
        """Whether the influence counts up to the last position, so that the horizon may be longer."""
        return self.tokens == len(self.curve) - 1

    def __str__(self) -> str:
        last = len(self.curve) - 1
        strongest = max(self.curve[1:], default=0.0) / max(self.curve[0], 1e-30)
        if self.tokens == 0:
            reach = f"at no later position (at most {strongest:.0e} of its influence on its own position)"
        else:
            reach = f"{self.tokens} token{'s' * (self.tokens > 1)} later"
            reach = f"{reach}, the largest tested distance" if self.is_open else f"up to {reach}, of {last} tested"
        return (
            f"With attention disabled, a token influences the outputs {reach}; counted from {self.threshold:g} of the "
            "influence on its own position."
        )


@dataclass(frozen=True, kw_only=True)
class MemoryHorizon(StackedProbe):
    """How much a token changes the outputs at distance k, for the recurrence alone and for the whole model."""

    columns: ClassVar = (
        Column("model", "text", "recurrence (attention left out) or whole"),
        Column("distance", "whole", "tokens between the changed token and the output"),
        Column("influence", "number", "relative change of the output, as a share of that at distance 0"),
    )
    chart: ClassVar = Chart(
        "lines", "Influence of a token on later outputs", "distance", "influence", split="model", log=True,
        note="As a share of its influence on its own position. A recurrence that tracks state lets the first token "
        "matter to the end; one that forgets does not.",
    )  # fmt: skip

    name: Literal["horizon"] = "horizon"
    tokens: Annotated[int, at_least(2)] = 128
    """The largest distance, plus one."""
    sequences: Annotated[int, at_least(1)] = 16
    """Random sequences that the influence is averaged over."""

    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        first, tables = stack.first, [list[dict]() for _ in stack.subjects]
        tokens, vocabulary = min(self.tokens, first.max_tokens or self.tokens), _vocabulary(first.model)
        drawn = [draw_pairs(vocabulary, tokens, self.sequences, subject.seed) for subject in stack.subjects]
        pairs = torch.stack(drawn, dim=1).to(stack.device)  # (sequences, S, 2, T)
        for number, model in enumerate(("recurrence", "whole")):
            is_whole = model == "whole"
            with evaluating(first.model), torch.no_grad(), nullcontext() if is_whole else without_attention(first):
                curves = sum(stack.each(lambda call, pair: influence(call(pair)), pair).cpu() for pair in pairs)
            assert isinstance(curves, Tensor)
            check_finite(curves)
            for rows, total in zip(tables, curves, strict=True):
                shares = (total / total[0].clamp_min(LEAST_INFLUENCE)).tolist()
                rows += [
                    {"model": model, "distance": distance, "influence": share}
                    for distance, share in enumerate(shares)
                    if distance > 0
                ]
            progress((number + 1) / 2)
        return [Table.of(self.columns, rows) for rows in tables]


def draw_pairs(vocabulary: int, length: int, sequences: int, seed: int) -> Tensor:
    """Return random sequences (sequences, 2, T), each beside the same with another first token."""
    random, pairs = torch.Generator().manual_seed(seed), []
    for _ in range(sequences):
        tokens = torch.randint(vocabulary, (length,), generator=random)
        changed = tokens.clone()
        changed[0] = (tokens[0] + torch.randint(1, vocabulary, (), generator=random)) % vocabulary
        pairs.append(torch.stack([tokens, changed]))
    return torch.stack(pairs)


def influence(outputs: Tensor) -> Tensor:
    """Return the relative change (T,) between the outputs (2, T, V) for the two sequences of a pair."""
    outputs = outputs.double()
    change = (outputs[0] - outputs[1]).norm(dim=-1) / outputs.norm(dim=-1).mean().clamp_min(1e-30)
    return change.where(~(change < LEAST_INFLUENCE), 0.0)  # what is not a number stays so


def check_finite(curves: Tensor) -> None:
    """Raise if the influence is not known everywhere."""
    if not curves.isfinite().all():
        raise ConfigError("horizon: the outputs of the model are not finite at some position")


def memory_horizon(
    model: nn.Module,
    where: Where | Found | None = None,
    example: Mapping[str, Any] | None = None,
    *,
    length: int = 128,
    sequences: int = 4,
    threshold: float = 1e-3,
    seed: int = 0,
) -> Horizon:
    """Measure the horizon with attention (or the modules of `where`) disabled; the model is not changed.

    The default threshold is 0.001 because such models are trained in bfloat16, whose rounding error is about 0.004: a
    weaker influence is lost beside that of the current token.

    `example` has the arguments of the model, if it is called neither as `model(tokens)` nor with `input_ids`.
    """
    require(length >= 2, "length", length, "2 or more")
    require(sequences >= 1, "sequences", sequences, "1 or more")
    require(0.0 < threshold < 1.0, "threshold", threshold, "between 0 and 1")
    vocabulary, call = _vocabulary(model), caller(model, example)
    length = min(length, positions_of(model) or length)
    check_untouched(model)
    found = where if isinstance(where, Found) else find_attention(model, example, where=where, leaves_out=False)
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad(), ExitStack() as undo:
        if found is not None and found.attention:
            allowed = replace(found, refusals=())
            undo.callback(DelayedAttention(model, until=at_step(1), automatic=False, where=allowed).remove)
        pairs = draw_pairs(vocabulary, length, sequences, seed).to(device)
        curve = torch.stack([influence(call(pair)).cpu() for pair in pairs]).mean(dim=0)
    check_finite(curve)
    return Horizon(tuple(curve.tolist()), threshold, sequences)


def check_untouched(model: nn.Module) -> None:
    """Raise if a module's forward was replaced: removing our gate would remove that replacement too."""
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            raise ConfigError(
                f"horizon: the forward of {name or type(model).__name__} was replaced by a delay or another library; "
                "inspect the model before that, or after it is removed"
            )
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise ConfigError(f"horizon: {name or type(model).__name__} has no weights in memory")


def _vocabulary(model: nn.Module) -> int:
    size = vocabulary_of(model)
    if size is None or size < 2:
        raise ConfigError(f"horizon: {type(model).__name__} has no token embedding")
    return size


def caller(model: nn.Module, example: Mapping[str, Any] | None) -> Callable[[Tensor], Tensor]:
    """Return a function from tokens (B, T) to outputs (B, T, V)."""
    if example is not None:
        name = next((n for n, v in example.items() if isinstance(v, Tensor) and not v.is_floating_point()), None)
        if name is None:
            raise ConfigError(f"example: none of {', '.join(example)} holds tokens")
        rest = {other: value for other, value in example.items() if not isinstance(value, Tensor)}
        return lambda tokens: _outputs(model(**{**rest, name: tokens}))
    if hasattr(model, "get_input_embeddings") and hasattr(model, "config"):
        return lambda tokens: _outputs(model(input_ids=tokens, use_cache=False))
    return lambda tokens: _outputs(model(tokens))


def _outputs(output: Any) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, Tensor) or first.dim() != 3:
        raise ConfigError("horizon: the model does not return a tensor of (sequences, tokens, features)")
    return first
