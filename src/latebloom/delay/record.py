"""Record one forward pass of a model: the calls of its modules and of attention functions, with their graph.

Questions about the pass are answered by gradients inside the recorded graph, so no module is called on its own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
ATTENTION_WORDS = ("flash_attn", "flash_attention", "flex_attention")
"""Functions with one of these in their name are attention too."""


@dataclass(eq=False)
class Call:
    """One call of a module."""

    path: str
    inputs: list[Tensor]
    """The floating-point inputs that were computed from the model's own input."""
    outputs: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Event:
    """One call of a function that is attention, or of a softmax, which may be."""

    function: str
    stack: tuple[Call, ...]
    """The modules that were running, from the model to the caller."""
    inputs: list[Tensor]
    output: Tensor
    dim: int | None
    """The axis of a softmax; None for a function that is attention by its name."""
    mask: Tensor | None = None
    """Which keys (..., Tq, Tk) a query may attend to, as it was given to the function."""


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors among arguments or outputs, at any depth."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.ndim > 0:
            yield value
    elif isinstance(value, Mapping):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from tensors_of(item)


class Recording(TorchFunctionMode):
    """The calls and events of one pass, and its first output.

    The results of some events, and the outputs of some modules, can be replaced by zeros.
    """

    def __init__(
        self, model: nn.Module, run: Callable[[], Any], replaced: Sequence[bool] = (), zeroed: Collection[str] = ()
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self._replaced, self._zeroed, self._stack = replaced, zeroed, list[Call]()
        with ExitStack() as hooks:
            for path, module in model.named_modules():
                before, after = self._hooks(path)
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
                hooks.callback(module.register_forward_hook(after, always_call=True).remove)
            with self, _without_recomputation():
                self.outputs = list(tensors_of(run()))[:1]
        self.first: dict[str, Call] = {}
        for call in self.calls:
            self.first.setdefault(call.path, call)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        output = func(*args, **named)
        name, dim = getattr(func, "__name__", ""), None
        if name == "softmax":
            dim = named.get("dim", args[1] if len(args) > 1 else -1)
            if not isinstance(dim, int) or output.ndim < 2 or output.shape[dim] < 2:
                return output
        elif name not in ATTENTION and not any(word in name for word in ATTENTION_WORDS):
            return output
        result = output[0] if isinstance(output, tuple) else output
        mask = named.get("attn_mask", args[3] if name == ATTENTION[0] and len(args) > 3 else None)
        self.events.append(Event(name, tuple(self._stack), list(tensors_of([args, named])), result, dim, mask))
        if len(self.events) > len(self._replaced) or not self._replaced[len(self.events) - 1]:
            return output
        return tree_map_only(Tensor, torch.zeros_like, output)  # the weights too, if they are returned

    def _hooks(self, path: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            # Each call gets aliases of its inputs. So two inputs of which one was made from the other stay two.
            aliases: dict[int, Tensor] = {}

            def alias(tensor: Tensor) -> Tensor:
                if not tensor.is_floating_point() or tensor.ndim == 0 or (self._stack and not tensor.requires_grad):
                    return tensor
                given = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
                return aliases.setdefault(id(tensor), given.view_as(given))

            changed = tree_map_only(Tensor, alias, (args, kwargs))
            self._stack.append(Call(path, list(aliases.values())))
            self.calls.append(self._stack[-1])
            return changed

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            if path in self._zeroed and output is not None:
                first = torch.zeros_like(output[0] if isinstance(output, tuple) else output)
                output = (first, *output[1:]) if isinstance(output, tuple) else first
            self._stack.pop().outputs = list(tensors_of(output))
            return output

        return before, after

    def parent(self, path: str) -> str:
        """Return the nearest module around another one that is called itself; a list of modules is not."""
        path = path.rpartition(".")[0]
        return path if path in self.first else self.parent(path)

    def reached(self) -> set[str]:
        """Return the modules on whose output the model's output depends."""
        calls = [(call.path, tensor) for call in self.calls for tensor in call.outputs if tensor.requires_grad]
        grads = gradients(random_sum(self.outputs), [tensor for _, tensor in calls])
        sizes = [0.0 if grad is None else float(grad.abs().max()) for grad in grads]
        typical = median([size for size in sizes if size] or [0.0])
        least = 1e-6 * typical  # less is rounding, as in a router that chooses one expert
        return {path for (path, _), size in zip(calls, sizes, strict=True) if size > least}


def is_inside(path: str, outer: str) -> bool:
    """Return whether a module is another one or a part of it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def gradients(output: Tensor | None, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a scalar for each input; None where it does not depend on it."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if output is None or not output.requires_grad or not wanted:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(output, wanted, retain_graph=True, allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in inputs]


def random_sum(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return a sum with random weights of the tensors that have a graph; None if none has."""
    generator = torch.Generator().manual_seed(0)
    sums = [
        (tensor * torch.randn(tensor.shape, generator=generator).to(tensor)).sum().float()
        for tensor in tensors
        if tensor.requires_grad
    ]
    return torch.stack([one.to(sums[0].device) for one in sums]).sum() if sums else None


def depends(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Return whether some output depends on some input."""
    return any(grad is not None and bool(grad.any()) for grad in gradients(random_sum(outputs), inputs))


def tokens_behind(output: Tensor | None, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return for each input where, over all its axes but the last, a scalar depends on it."""
    return [None if grad is None else (grad != 0).any(-1) for grad in gradients(output, inputs)]


@contextmanager
def _without_recomputation() -> Iterator[None]:
    """Disable activation checkpointing: it would run modules again in the backward pass, unrecorded."""

    def keep(*_: Any, **__: Any) -> Iterator[None]:
        yield

    class Direct:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args)

    module: Any = torch.utils.checkpoint
    saved = module._checkpoint_without_reentrant_generator, module.CheckpointFunction
    module._checkpoint_without_reentrant_generator, module.CheckpointFunction = keep, Direct
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator, module.CheckpointFunction = saved
