"""Record one forward pass of a model: the calls of its modules and of attention functions, with their graph.

Questions about the pass are answered by gradients inside the recorded graph, so no module is called on its own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from latebloom.delay.visible import is_attention, seen_kernels, without_recomputation

ROUNDING = 1e-6
"""A gradient that is smaller than another one by this factor is rounding, as in a router that chooses one expert."""


@dataclass(eq=False)
class Call:
    """One call of a module."""

    path: str
    inputs: list[Tensor]
    """The floating-point inputs that were computed from the model's own input."""
    outputs: list[Tensor] = field(default_factory=list)
    takes_ids: bool = False
    """Whether it was given integers too, such as token ids."""
    inner: list["Call"] = field(default_factory=list)
    """The calls of modules inside it."""


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
    has_window: bool = False
    """Whether the function was given a window (keys before the query, keys after it), as flash-attn's are."""


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
        self._inside, self._zeros = False, list[Tensor]()
        with ExitStack() as hooks:
            for path, module in model.named_modules():
                before, after = self._hooks(path)
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
                hooks.callback(module.register_forward_hook(after, always_call=True).remove)
            with self, without_recomputation(), seen_kernels(lambda *kernel: partial(self._call, *kernel, False)):
                self.outputs = list(tensors_of(run()))[:1]
        for tensor in self._zeros:
            if tensor.requires_grad:  # the result of a kernel, to which torch adds its gradient
                tensor.register_hook(torch.zeros_like)
        self.first: dict[str, Call] = {}
        for call in self.calls:
            self.first.setdefault(call.path, call)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_softmax = name in ("softmax", "_safe_softmax")
        if self._inside or not (is_softmax or is_attention(name)):
            return func(*args, **(kwargs or {}))
        return self._call(name, func, is_softmax, *args, **(kwargs or {}))

    def _call(self, name: str, function: Callable[..., Any], is_softmax: bool, /, *args: Any, **named: Any) -> Any:
        """Call an attention function or a softmax, and note the event."""
        if self._inside:  # such a function may call others
            return function(*args, **named)
        self._inside = True
        try:
            output = function(*args, **named)
        finally:
            self._inside = False
        result, dim = output[0] if isinstance(output, tuple) else output, None
        if is_softmax:
            dim = named.get("dim", args[1] if len(args) > 1 else -1)
            if not isinstance(dim, int) or result.ndim < 2 or result.shape[dim] < 2:
                return output
        elif not isinstance(result, Tensor):
            return output
        index = len(self.events)
        is_replaced = index < len(self._replaced) and self._replaced[index]
        if is_replaced:
            output = tree_map_only(Tensor, torch.zeros_like, output)  # the weights too, if they are returned
            self._zeros += tensors_of(output)
        mask = named.get("attn_mask", args[3] if name == "scaled_dot_product_attention" and len(args) > 3 else None)
        inputs = list(tensors_of([args, named]))
        has_window = any(map(_is_window, [*args, *named.values()]))
        self.events.append(Event(name, tuple(self._stack), inputs, result, dim, mask, has_window))
        return output

    def _hooks(self, path: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            # Each call gets aliases of its inputs. So two inputs of which one was made from the other stay two.
            aliases: dict[int, Tensor] = {}
            call = Call(path, [])

            def alias(tensor: Tensor) -> Tensor:
                call.takes_ids |= tensor.ndim > 1 and not tensor.is_floating_point() and tensor.dtype != torch.bool
                if not tensor.is_floating_point() or tensor.ndim == 0 or (self._stack and not tensor.requires_grad):
                    return tensor
                given = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
                return aliases.setdefault(id(tensor), given.view_as(given))

            changed = tree_map_only(Tensor, alias, (args, kwargs))
            call.inputs = list(aliases.values())
            for outer in self._stack:
                outer.inner.append(call)
            self._stack.append(call)
            self.calls.append(call)
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

    def reached(self) -> dict[str, float]:
        """Return the modules on whose output the model's output depends, with the largest gradient there."""
        calls = [(call.path, tensor) for call in self.calls for tensor in call.outputs if tensor.requires_grad]
        grads = gradients(random_sum(self.outputs), [tensor for _, tensor in calls])
        sizes: dict[str, float] = {}
        for (path, _), grad in zip(calls, grads, strict=True):
            if grad is not None and (size := float(grad.abs().max())):
                sizes[path] = max(size, sizes.get(path, 0.0))
        typical = median(sizes.values()) if sizes else 0.0
        return {path: size for path, size in sizes.items() if size > ROUNDING * typical}


def _is_window(value: Any) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(side, int) for side in value)
    return is_pair and value[0] >= 0


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
