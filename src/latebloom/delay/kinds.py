"""Which calls are attention over tokens, and of which kind."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from latebloom.delay.record import Event, is_inside, tokens_behind

Kind = Literal["self", "cross", "sliding"]
KINDS: tuple[Kind, ...] = ("self", "cross", "sliding")


def attention_events(model: nn.Module, events: Sequence[Event], named: Collection[str] = ()) -> dict[int, Kind]:
    """Return which events are attention, by their number, with its kind; those inside `named` modules do not count."""
    found: dict[int, Kind] = {}
    for index, event in enumerate(events):
        is_named = any(is_inside(event.stack[-1].path, path) for path in named)
        if not is_named and (event.dim is None or _is_over_tokens(event)):
            found[index] = _kind(model, event)
    # In a loop over queries, the first one may have a single key, and later ones may depend on all tokens.
    by_place: dict[tuple[str, str], Kind] = {}
    for index, kind in found.items():
        by_place[events[index].stack[-1].path, events[index].place] = kind
    for index, event in enumerate(events):
        if (kind := by_place.get((event.stack[-1].path, event.place))) is not None:
            found.setdefault(index, kind)
    return dict(sorted(found.items()))


def _is_over_tokens(event: Event) -> bool:
    """Return whether two inputs of a softmax depend on different tokens that some module around it is given.

    Behind a recurrence in the same forward, a query depends on all of these. So what the modules inside the caller
    return counts too, such as the projection to queries and keys.
    """
    around = [tensor for call in event.stack for tensor in call.inputs]
    scores = _scores(event, around + [tensor for call in event.stack[-1].inner for tensor in call.outputs])
    pairs = [pair for two in pairwise(scores) for pair in zip(*two, strict=True)]
    return any(a is not None and b is not None and not torch.equal(a, b) for a, b in pairs)


def _scores(event: Event, inputs: list[Tensor]) -> list[list[Tensor | None]]:
    """Return on which tokens some inputs of a softmax with the same query depend, without those that are masked."""
    scores, dim = event.inputs[0], event.dim
    assert dim is not None
    index, size = [size - 1 for size in scores.shape], scores.shape[dim]  # the last query may attend to all keys
    found = []
    for key in sorted({0, size // 2, size - 2, size - 1}):
        index[dim] = key
        tokens = tokens_behind(scores[tuple(index)], inputs)
        if any(support is not None and support.any() for support in tokens):
            found.append(tokens)
    return found


def _kind(model: nn.Module, event: Event) -> Kind:
    """Return `cross` if the keys come from an input of the caller that the queries do not come from."""
    call = next((call for call in reversed(event.stack) if call.inputs), None)
    if call is not None and event.dim is None:
        behind = [tokens_behind(tensor.sum(), call.inputs) for tensor in event.inputs[:2]]
        if any(q is None and k is not None for q, k in zip(behind[0], behind[-1], strict=True)):
            return "cross"
    elif call is not None:
        scores = _scores(event, call.inputs)[:2]
        pairs = list(zip(*scores, strict=True)) if len(scores) == 2 else []
        are_equal = [torch.equal(a, b) for a, b in pairs if a is not None and b is not None]
        if any(are_equal) and not all(are_equal):  # the queries come from one input, the keys from another
            return "cross"
    return "sliding" if _is_sliding(model, event) else "self"


def _is_sliding(model: nn.Module, event: Event) -> bool:
    """Return whether the last query may not attend to the first key, or the module has a window."""
    weights = event.mask if event.dim is None else event.output
    if weights is not None and weights.shape[-1] > 1:
        weights = weights.detach()  # a learned bias may be part of a mask
        first = weights[(-1,) * weights.ndim if weights.ndim < 2 else (*(0,) * (weights.ndim - 2), -1, 0)]
        if not bool(first) if event.dim is not None or weights.dtype == torch.bool else float(first) < -1e4:
            return True
    owner = model.get_submodule(event.stack[-1].path)
    windows = (getattr(owner, name, None) for name in ("sliding_window", "window_size"))
    return event.has_window or any(isinstance(window, int) and window > 0 for window in windows)
