"""The gate of attention: it enables attention, scales its output, or leaves it out.

One `Gate` holds the value for all attention of a model. The modules keep the forward methods that read it, so that
copies of a model (`copy.deepcopy`, the averaged model of an EMA) share its gate and follow the switch. A pickled model
keeps the value that it was saved with. Every `state_dict` holds the gate in its metadata, see `delay.marks`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypedDict
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn

from latebloom.delay.structure import map_leaves, map_tensors, tensors_of
from latebloom.errors import warn_user

MARK = "latebloom"
"""The name of the gate in the metadata of a `state_dict`."""


class Mark(TypedDict):
    """What a `state_dict` says of the gate; plain values, which `torch.load(weights_only=True)` accepts."""

    delay: str
    """Tells one delay from another; empty if the gate was set by hand."""
    step: int
    gate: float


class Gate:
    """A factor on attention's output: 1.0 changes nothing, 0.0 leaves attention out, and a tensor scales it."""

    def __init__(self, value: float = 1.0, *, step: int = 0, is_delayed: bool = False) -> None:
        self.value: float | Tensor = value
        self.step = step
        self.delay = uuid4().hex if is_delayed else ""
        self.loaded: Mark | None = None
        """The mark of weights that were loaded since the last step."""

    @property
    def is_closed(self) -> bool:
        """Whether attention is left out."""
        return isinstance(self.value, float) and self.value == 0.0

    def mark(self) -> Mark:
        """Return what a `state_dict` says of this gate."""
        return {"delay": self.delay, "step": self.step, "gate": float(self.value)}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Gate":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_gate, (float(self.value), self.step)


def _load_gate(value: float, step: int = 0) -> Gate:
    if value < 1.0:
        warn_user(
            "this model was saved while its attention was held back, so it runs without attention, as it was trained; "
            "latebloom.enable_attention(model) enables it"
        )
    return Gate(value, step=step)


class Form(NamedTuple):
    """The form of the calls of a module."""

    stream: int | str
    """The position or name of an argument that has the output's shape, except for the features."""
    output: Any
    """What is returned, with the number of features in place of each tensor of the stream and None for all else."""


class _Features(int):
    """Marks a number of features, to tell it from numbers that a module returns itself."""


class GatedForward:
    """Replaces the `forward` of a module that belongs to attention.

    While attention is left out, it returns zeros and computes nothing. There are two exceptions: the first call, which
    shows the form of the output, and a call with a cache to fill.
    """

    def __init__(
        self,
        module: nn.Module,
        gate: Gate,
        held: Iterable[nn.Module],
        is_last: bool,
        stream: Collection[int] = (0,),
        bare: bool = True,
    ) -> None:
        self.module, self.gate, self.is_last = module, gate, is_last
        self.stream, self.bare = stream, bare
        """Which of the tensors that the module returns are its result, and whether the others may be None."""
        self.held = [module, *held] if is_last else [module]
        """Modules whose parameters get a gradient of zero in distributed training, see `_is_distributed`."""
        self._form: Form | None = None
        self._replaced: Callable[..., Any] | None = module.__dict__.get("forward")
        module.forward = self.forward
        # Without a hook torch's encoder layer has a fused inference path, which never calls its attention module.
        self._hook = module.register_forward_pre_hook(_nothing)
        self._mark = module.register_state_dict_post_hook(_mark_weights)

    def remove(self) -> None:
        """Restore the module."""
        self._hook.remove()
        self._mark.remove()
        del self.module.forward
        if self._replaced is not None:
            self.module.forward = self._replaced

    def forward(self, *positional: Any, **named: Any) -> Any:
        if self.gate.is_closed:
            return self._left_out(positional, named)
        value = self.gate.value
        output = self._original(*positional, **named)
        if isinstance(value, float) or not self.is_last:
            return output
        return map_tensors(output, lambda number, one: one * value if number in self.stream else one)

    def _original(self, *positional: Any, **named: Any) -> Any:
        if self._replaced is not None:
            return self._replaced(*positional, **named)
        return type(self.module).forward(self.module, *positional, **named)

    def _left_out(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = {**dict(enumerate(positional)), **named}
        if self._form is not None and self._form.stream in arguments and not any(map(_is_cache, named.items())):
            like: Tensor = arguments[self._form.stream]

            def zeros(features: int | None) -> Tensor | None:
                return None if features is None else self._tie(like.new_zeros(*like.shape[:-1], features), arguments)

            return map_leaves(self._form.output, zeros)
        with torch.no_grad():
            output = self._original(*positional, **named)
        self._form = self._form_of(arguments, output) or self._form

        def without(number: int, one: Tensor) -> Tensor:
            return self._tie(torch.zeros_like(one), arguments) if number in self.stream else one

        return map_tensors(output, without)

    def _form_of(self, arguments: dict[int | str, Any], output: Any) -> Form | None:
        """Return the form of a call; None if the module must compute its output in every call."""
        # If the caller of torch's attention wants the weights, they must be computed in every call.
        wants_weights = isinstance(self.module, nn.MultiheadAttention) and output[1] is not None
        results = [one for number, one in enumerate(tensors_of(output)) if number in self.stream]
        if wants_weights or not self.bare or not results:
            return None
        marked = map_tensors(output, lambda number, one: _Features(one.shape[-1] if number in self.stream else 0))
        form = map_leaves(marked, lambda one: int(one) if isinstance(one, _Features) and one else None)
        floats = {key: one for key, one in arguments.items() if isinstance(one, Tensor) and one.is_floating_point()}
        fits = (key for key, one in floats.items() if all(one.shape[:-1] == result.shape[:-1] for result in results))
        return next((Form(key, form) for key in fits), None)

    def _tie(self, zeros: Tensor, arguments: dict[int | str, Any]) -> Tensor:
        """Return zeros that depend on the inputs and on what is held back, in distributed training."""
        if not (torch.is_grad_enabled() and _is_distributed()):
            return zeros
        inputs = [value for value in arguments.values() if isinstance(value, Tensor) and value.requires_grad]
        ties = [parameter.reshape(-1)[:1].sum() for module in self.held for parameter in module.parameters()]
        ties += [value.sum() for value in inputs]
        return zeros + 0.0 * sum(ties, start=zeros.new_zeros(())).to(zeros.dtype)


class GatedResidual:
    """Replaces the `forward` of a residual part of this package's models, which has a `gate` of its own."""

    def __init__(self, module: nn.Module, gate: Gate) -> None:
        self.module, self.gate = module, gate
        module.forward = self.forward
        self._mark = module.register_state_dict_post_hook(_mark_weights)

    def remove(self) -> None:
        """Restore the module."""
        self._mark.remove()
        del self.module.forward
        self.module.gate = 1.0  # type: ignore[assignment] (nn.Module declares no type for it)

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        value = self.gate.value
        if self.gate.is_closed:
            if not _is_distributed():
                return x
            value = torch.zeros((), device=x.device)
        self.module.gate = value  # type: ignore[assignment] (as above)
        return type(self.module).forward(self.module, x, *beside)


def gated_in(model: nn.Module) -> Iterator[GatedForward | GatedResidual]:
    """Yield what replaces the forward methods of a model's attention."""
    for module in model.modules():
        owner = getattr(module.__dict__.get("forward"), "__self__", None)
        if isinstance(owner, GatedForward | GatedResidual):
            yield owner


def _nothing(*_: Any) -> None:
    """Do nothing; a function of the module, so that models can be pickled."""


def _mark_weights(module: nn.Module, weights: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Write the gate into the metadata of a `state_dict`; a function of the module, as above."""
    for owner in gated_in(module):
        metadata[MARK] = owner.gate.mark()
        return


def _is_cache(argument: tuple[str, Any]) -> bool:
    name, value = argument
    return ("cache" in name or "past" in name) and value is not None and not isinstance(value, bool | Tensor)


def _is_distributed() -> bool:
    """Return whether processes train together, or one does as if it were several.

    DistributedDataParallel waits for the gradient of every parameter in every step, in a group of one process too.
    Attention that is held back has zero gradients there, which are dropped before the optimizer step.
    """
    return dist.is_available() and dist.is_initialized()
