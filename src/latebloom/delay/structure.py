"""The tensors in what a module takes or returns: in tuples, lists, mappings, dataclasses and namespaces."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from torch import Tensor


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value of the same structure with every leaf changed; everything that holds no other values is a leaf."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {name: map_leaves(item, change) for name, item in value.items()}
        if type(value) is dict:
            return changed
        found: Any = copy(value)  # a mapping that may keep its items as attributes too
        for name, item in changed.items():
            found[name] = item
        return found
    if isinstance(value, tuple | list):
        items = [map_leaves(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if names := _names(value):
        found = copy(value)
        for name in names:
            object.__setattr__(found, name, map_leaves(getattr(value, name), change))
        return found
    return change(value)


def map_tensors(value: Any, change: Callable[[int, Tensor], Any]) -> Any:
    """Return the same structure with each of its `tensors_of` changed, given its number among them."""
    number = count()
    return map_leaves(value, lambda leaf: change(next(number), leaf) if is_tensor(leaf) else leaf)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors among arguments or outputs, without scalars."""
    yield from filter(is_tensor, leaves_of(value))


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield everything in a structure that holds no other values."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif names := _names(value):
        value = [getattr(value, name) for name in names]
    if isinstance(value, tuple | list):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def main_output(value: Any) -> Tensor | None:
    """Return what a model is trained on: its first output with a graph, and a scalar only if there is no other.

    One that is called logits comes first. What else a model returns, such as the states of an encoder or a cache, may
    not be trained on.
    """
    logits = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    leaves = [leaf for leaf in leaves_of([logits, value]) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return next((leaf for leaf in leaves if leaf.ndim), leaves[0] if leaves else None)


def _names(value: Any) -> list[str]:
    """Return the names of the attributes in which a value holds others."""
    if is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in fields(value) if hasattr(value, field.name)]
    return list(vars(value)) if isinstance(value, SimpleNamespace) else []


def is_tensor(leaf: Any) -> bool:
    """Return whether a leaf is a floating-point tensor; nested ones, whose shapes are no numbers, do not count."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 0 and not leaf.is_nested
