"""The memory horizon: how far a token is felt by what mixes tokens while attention is left out.

Two sequences differ in their first token alone. What the model says is compared at every later position: the curve of
influence by distance. Delayed attention training lets the recurrence learn alone; it cannot learn to carry a token
farther than that token can be felt.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.find import Where, survey
from latebloom.delay.hooks import DelayedAttention
from latebloom.delay.triggers import at_step
from latebloom.errors import ConfigError, require


@dataclass(frozen=True)
class Horizon:
    """How far back a model is influenced by a token while attention is left out."""

    curve: tuple[float, ...]
    """Influence by distance, from 0: the change of what the model says, relative to the size of what it says."""
    threshold: float
    """The part of the influence at distance 0 that still counts."""
    sequences: int
    """How many random sequences it is averaged over."""

    @property
    def tokens(self) -> int:
        """The largest distance at which the influence still counts."""
        floor = self.threshold * self.curve[0]
        return max((distance for distance, felt in enumerate(self.curve) if felt > 0.0 and felt >= floor), default=0)

    @property
    def is_open(self) -> bool:
        """Felt up to the last position that was tried: the true horizon may lie farther."""
        return self.tokens == len(self.curve) - 1

    def __str__(self) -> str:
        share, last = f"{self.threshold:g}", len(self.curve) - 1
        if self.tokens == 0:
            strongest = max(self.curve[1:]) / max(self.curve[0], 1e-30)
            rest = f"; {strongest:.0e} is the most" if strongest else ", and not at all"
            return (
                f"With attention left out, a token is felt at no later position: less than {share} of its influence "
                f"on its own position{rest}."
            )
        distance = f"{self.tokens} token{'s' if self.tokens > 1 else ''} later"
        if self.is_open:
            return (
                f"With attention left out, a token is still felt {distance}, the farthest of the distances tried "
                f"(felt: at least {share} of its influence on its own position)."
            )
        return (
            f"With attention left out, a token is felt up to {distance}; farther on, up to the {last} tried, its "
            f"influence is below {share} of that on its own position."
        )


def memory_horizon(
    model: nn.Module,
    where: Where | None = None,
    example: Mapping[str, Any] | None = None,
    *,
    length: int = 128,
    sequences: int = 4,
    threshold: float = 1e-3,
    seed: int = 0,
) -> Horizon:
    """The horizon of a model with its attention (or what `where` names) left out; the model is left as it was.

    The threshold of a thousandth: bfloat16, in which such models are trained, rounds to about four thousandths, so a
    weaker influence is lost beside that of the present token; and what learns from it gets a gradient as much weaker.

    `example` is what the model is called with, where that is neither `model(tokens)` nor Transformers' `input_ids`.
    """
    require(length >= 2, "length", length, "2 or more")
    require(sequences >= 1, "sequences", sequences, "1 or more")
    require(0.0 < threshold < 1.0, "threshold", threshold, "between 0 and 1")
    vocabulary, call = _vocabulary(model), _caller(model, example)
    length = min(length, _longest(model))
    device = next(model.parameters()).device
    random = torch.Generator().manual_seed(seed)
    felt = torch.zeros(length, dtype=torch.float64)
    with attention_left_out(model, where, example), torch.no_grad():
        for _ in range(sequences):
            tokens = torch.randint(vocabulary, (length,), generator=random)
            changed = tokens.clone()
            changed[0] = (tokens[0] + torch.randint(1, vocabulary, (), generator=random)) % vocabulary
            said = call(torch.stack([tokens, changed]).to(device)).double().cpu()  # (2, T, V)
            felt += (said[0] - said[1]).norm(dim=-1) / said.norm(dim=-1).mean().clamp_min(1e-30)
    if not felt.isfinite().all():
        raise ConfigError("horizon: what the model says is not a number at some position, so nothing can be compared")
    return Horizon(tuple((felt / sequences).tolist()), threshold, sequences)


@contextmanager
def attention_left_out(
    model: nn.Module, where: Where | None = None, example: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """A model in eval mode without its attention, while the context lasts; all of its attention unless `where` says."""
    check_untouched(model)
    names = where if where is not None else list(survey(model).matched)
    with modes_kept(model):
        delay = (
            DelayedAttention(model, until=at_step(1), automatic=False, where=names, example=example)
            if callable(names) or names
            else None
        )
        try:
            model.eval()
            yield
        finally:
            if delay is not None:
                delay.remove()


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Whatever mode the context puts modules into, each gets its own back."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_untouched(model: nn.Module) -> None:
    """Raise where a module's forward was replaced: a gate put there now would undo that when it is taken away."""
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            raise ConfigError(
                f"horizon: the forward of {name or type(model).__name__} was replaced by a delay or another library; "
                "look at the model before that, or after it is taken away"
            )
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise ConfigError(f"horizon: {name or type(model).__name__} has no weights in memory")


def _vocabulary(model: nn.Module) -> int:
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    of_transformers = getattr(model, "get_input_embeddings", None)
    if of_transformers is not None:
        embedding = of_transformers()
    size = getattr(embedding, "num_embeddings", 0)
    if not isinstance(size, int) or size < 2:
        raise ConfigError(f"horizon: {type(model).__name__} has no embedding of tokens to change one of")
    return size


def _longest(model: nn.Module) -> int:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest >= 2 else 2**31


def _caller(model: nn.Module, example: Mapping[str, Any] | None) -> Callable[[Tensor], Tensor]:
    """How tokens (2, T) become what the model says, (2, T, V)."""
    if example is not None:
        name = next((n for n, v in example.items() if isinstance(v, Tensor) and not v.is_floating_point()), None)
        if name is None:
            raise ConfigError(f"example: none of {', '.join(example)} holds tokens")
        rest = {other: value for other, value in example.items() if not isinstance(value, Tensor)}
        return lambda tokens: _said(model(**{**rest, name: tokens}))
    if hasattr(model, "get_input_embeddings") and hasattr(model, "config"):
        return lambda tokens: _said(model(input_ids=tokens, use_cache=False))
    return lambda tokens: _said(model(tokens))


def _said(output: Any) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, Tensor) or first.dim() != 3:
        raise ConfigError("horizon: the model does not return a tensor of (sequences, tokens, features)")
    return first
