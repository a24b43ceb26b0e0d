"""Record one forward pass of a model: the calls of its modules and of attention functions, with their graph.

Questions about the pass are answered by gradients inside the recorded graph, so no module is called on its own.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from latebloom.delay.softmax import LOG_NORMALIZERS, SOFTMAX, WRITTEN_OUT, normalized_axis, origin_of, softmax_axis
from latebloom.delay.structure import is_tensor, main_output, map_leaves, map_tensors, tensors_of
from latebloom.delay.visible import is_attention, seen_kernels, without_recomputation

ROUNDING = 1e-6
"""A gradient that is smaller than another one by this factor is rounding, as in a router that chooses one expert."""


@dataclass(eq=False)
class Call:
    """One call of a module."""

    path: str
    caller: str
    """The module that called it; the model itself for the model."""
    inputs: list[Tensor] = field(default_factory=list)
    """The floating-point inputs that were computed from the model's own input."""
    outputs: list[Tensor] = field(default_factory=list)
    takes_ids: bool = False
    """Whether it was given integers too, such as token ids."""
    inner: list["Call"] = field(default_factory=list)
    """The calls of modules inside it."""


@dataclass(eq=False)
class Event:
    """One call of an attention function, or of a softmax, which may be attention."""

    function: str
    stack: tuple[Call, ...]
    """The modules that were running, from the model to the caller."""
    inputs: list[Tensor]
    output: Tensor
    dim: int | None
    """The axis of a softmax; None for a function that is attention by its name."""
    place: str
    """The line of code that calls it."""
    mask: Tensor | None = None
    """Which keys (..., Tq, Tk) a query may attend to, as it was given to the function."""
    has_window: bool = False
    """Whether the function was given a window (keys before the query, keys after it), as flash-attn's are."""


class Recording(TorchFunctionMode):
    """The calls and events of one pass, and its main output.

    The results of some events can be replaced by zeros, or by what `fill` makes of them, and some of the outputs of
    modules by zeros. `like` is a recording of the same model with nothing replaced, which shows what is a softmax. With
    `bare`, a replaced module returns None beside its zeros, as it does while attention is left out.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[[], Any],
        replaced: Sequence[bool] = (),
        zeroed: Mapping[str, Collection[int]] | None = None,
        like: "Recording | None" = None,
        bare: bool = False,
        fill: Callable[[Tensor], Tensor] = torch.zeros_like,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.written_out: dict[int, int] = {} if like is None else like.written_out
        """The softmaxes that are written out: the axis by the number of the operation."""
        self._replaced, self._zeroed, self._bare, self._fill = replaced, zeroed or {}, bare, fill
        self._stack: list[Call] = []
        self._inside, self._zeros, self._is_first = False, list[Tensor](), like is None
        self._operations = 0
        self._scores: Any = None
        with ExitStack() as hooks:
            inside = {
                one for module in model.modules() if isinstance(module, ParametrizationList) for one in module.modules()
            }
            for path, module in model.named_modules():
                if module in inside:
                    continue  # it computes a weight
                before, after = self._hooks(path)
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
                hooks.callback(module.register_forward_hook(after, always_call=True).remove)
            with self, without_recomputation(), seen_kernels(lambda *kernel: partial(self._call, *kernel)):
                self.output = main_output(run())
        for tensor in self._zeros:
            if tensor.requires_grad:  # the result of a kernel, to which torch adds its gradient
                tensor.register_hook(torch.zeros_like)
        self.first: dict[str, Call] = {}
        for call in self.calls:
            if not call.outputs or any(tensor.numel() for tensor in call.outputs):  # an expert may get no tokens
                self.first.setdefault(call.path, call)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if self._inside:
            return func(*args, **named)
        if name in WRITTEN_OUT:
            return self._see_operation(name, func, args, named)
        is_softmax = name in SOFTMAX
        if is_softmax or name in LOG_NORMALIZERS:
            self._scores = args[0] if args else named.get("input")
        if is_softmax or is_attention(name):
            return self._call(name, func, is_softmax, *args, **named)
        return func(*args, **named)

    def _see_operation(self, name: str, func: Any, args: Any, named: Any) -> Any:
        """Do an operation that may be the last one of a softmax that is written out."""
        output, number = func(*args, **named), self._operations
        args = (*args, *named.values())
        self._operations += 1
        if self._is_first and (axis := normalized_axis(name, args, output)) is not None:
            self.written_out[number] = axis
        if number not in self.written_out:
            return output
        is_second = name == "exp" or origin_of(args[0]) != "Exp"  # it follows another operation of the same softmax
        scores = self._scores if is_second and _is_like(self._scores, output) else args[0]
        return self._note(name, [scores], output, self.written_out[number])

    def _call(self, name: str, function: Callable[..., Any], is_softmax: bool, /, *args: Any, **named: Any) -> Any:
        """Call an attention function or a softmax, and note the event."""
        if self._inside:  # such a function may call others
            return function(*args, **named)
        self._inside = True
        try:
            output = function(*args, **named)
        finally:
            self._inside = False
        result = output[0] if isinstance(output, tuple) else output
        if not isinstance(result, Tensor) or (is_softmax and result.ndim < 2):
            return output
        mask = named.get("attn_mask", args[3] if name == "scaled_dot_product_attention" and len(args) > 3 else None)
        has_window = any(map(_is_window, [*args, *named.values()]))
        dim = softmax_axis(args, named) if is_softmax else None
        return self._note(name, list(tensors_of([args, named])), output, dim, mask, has_window)

    def _note(self, name: str, inputs: list[Tensor], output: Any, dim: int | None, *details: Any) -> Any:
        """Add an event; return its result, or zeros."""
        index, result = len(self.events), output[0] if isinstance(output, tuple) else output
        if index < len(self._replaced) and self._replaced[index]:
            output = tree_map_only(Tensor, self._fill, output)  # the weights too, if they are returned
            self._zeros += tensors_of(output)
        self.events.append(Event(name, tuple(self._stack), inputs, result, dim, _place(), *details))
        return output

    def _hooks(self, path: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            # Each call gets aliases of its inputs. So two inputs of which one was made from the other stay two.
            aliases: dict[int, Tensor] = {}
            call = Call(path, self._stack[-1].path if self._stack else path)

            def alias(tensor: Tensor) -> Tensor:
                call.takes_ids |= tensor.ndim > 1 and not tensor.is_floating_point() and tensor.dtype != torch.bool
                if not is_tensor(tensor) or (self._stack and not tensor.requires_grad):
                    return tensor
                given = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
                return aliases.setdefault(id(tensor), given.view_as(given))

            changed = map_leaves((args, kwargs), lambda leaf: alias(leaf) if isinstance(leaf, Tensor) else leaf)
            call.inputs = list(aliases.values())
            for outer in self._stack:
                outer.inner.append(call)
            self._stack.append(call)
            self.calls.append(call)
            return changed

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            if path in self._zeroed and output is not None:
                numbers, bare = self._zeroed[path], self._bare
                output = map_tensors(
                    output, lambda n, one: torch.zeros_like(one) if n in numbers else None if bare else one
                )
            self._stack.pop().outputs = list(tensors_of(output))
            return output

        return before, after

    @cached_property
    def sizes(self) -> dict[tuple[str, int], float]:
        """The largest gradient of the model's output for each output of each module, if it is not zero."""
        calls = [(call.path, index, one) for call in self.calls for index, one in enumerate(call.outputs)]
        calls = [call for call in calls if call[2].requires_grad and call[2].numel()]
        grads = gradients(random_sum([] if self.output is None else [self.output]), [tensor for _, _, tensor in calls])
        sizes: dict[tuple[str, int], float] = {}
        for (path, index, _), grad in zip(calls, grads, strict=True):
            if grad is not None and (size := float(grad.abs().max())):
                sizes[path, index] = max(size, sizes.get((path, index), 0.0))
        return sizes

    def acting(self, path: str) -> tuple[int, ...]:
        """Return which outputs of a module the model's output depends on."""
        return tuple(sorted(index for name, index in self.sizes if name == path))

    def parent(self, path: str) -> str:
        """Return the nearest module around another one that is called itself; a list of modules is not."""
        path = path.rpartition(".")[0]
        return path if path in self.first else self.parent(path)

    def reached(self) -> dict[str, float]:
        """Return the modules on whose output the model's output depends, with the largest gradient there."""
        sizes: dict[str, float] = {}
        for (path, _), size in self.sizes.items():
            sizes[path] = max(size, sizes.get(path, 0.0))
        typical = median(sizes.values()) if sizes else 0.0
        return {path: size for path, size in sizes.items() if size > ROUNDING * typical}


def _place() -> str:
    """Return the line of code that is running, outside torch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("torch.", "latebloom.delay.")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_like(tensor: Any, other: Tensor) -> bool:
    return isinstance(tensor, Tensor) and tensor.shape == other.shape


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
