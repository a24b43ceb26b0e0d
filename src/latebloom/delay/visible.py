"""Make attention visible to a recording: names of attention functions, kernels, compiled code and recomputation."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from latebloom.delay.libraries import library_of
from latebloom.delay.softmax import WORDS

ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
ATTENTION_WORDS = ("flashattn", "flashattention", "flexattention", "efficientattention", "fmha")
"""Functions with one of these in their name are attention too; capitals and underscores do not count."""


def is_attention(name: str) -> bool:
    """Return whether a function is attention by its name."""
    plain = name.replace("_", "").lower()
    return name in ATTENTION or any(word in plain for word in ATTENTION_WORDS)


def attention_kernels(kind: Any = torch.autograd.Function) -> set[Any]:
    """Return the subclasses of `torch.autograd.Function` that are attention, or a softmax, by their name."""
    found = {one for below in kind.__subclasses__() for one in attention_kernels(below)}
    library = library_of(kind.__module__.partition(".")[0])
    if is_attention(kind.__name__) or _is_softmax(kind) or kind.__name__ in getattr(library, "KERNELS", ()):
        found.add(kind)
    return found


def _is_softmax(kind: Any) -> bool:
    return any(word in kind.__name__.lower() for word in WORDS) and not is_attention(kind.__name__)


@contextmanager
def seen_kernels(see: Callable[[str, Callable[..., Any], bool], Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward of each kernel by what `see` makes of its name, its forward and whether it is a softmax.

    Torch's modes do not see these classes. Their `forward` is looked up in every call, so it does not matter whether a
    model has imported a function around them, such as `flash_attn_func`, before.
    """
    with ExitStack() as patches:
        for kind in attention_kernels():
            patches.enter_context(
                _replaced(kind, forward=staticmethod(see(kind.__name__, kind.forward, _is_softmax(kind))))
            )
        yield


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled functions as they are written, and FlexAttention with torch's operations.

    FlexAttention has no backward pass on a CPU, but its reference in torch has.
    """
    with ExitStack() as patches:
        if "torch._dynamo" in sys.modules:
            patches.enter_context(torch.compiler.set_stance("force_eager"))
        flex: Any = sys.modules.get("torch.nn.attention.flex_attention")
        if flex is not None:
            from torch._higher_order_ops.flex_attention import math_attention

            changes: dict[str, Any] = {"_validate_device": lambda *_: None, "flex_attention_hop": math_attention}
            patches.enter_context(_replaced(flex, _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True, **changes))
        yield


@contextmanager
def without_recomputation() -> Iterator[None]:
    """Disable activation checkpointing: it would run modules again in the backward pass, unrecorded."""

    def keep(*_: Any, **__: Any) -> Iterator[None]:
        yield

    class Direct:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args)

    with _replaced(torch.utils.checkpoint, _checkpoint_without_reentrant_generator=keep, CheckpointFunction=Direct):
        yield


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of a module or class for a while."""
    kept = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            setattr(owner, name, kept[name]) if name in kept else delattr(owner, name)
