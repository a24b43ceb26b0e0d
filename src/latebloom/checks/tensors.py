"""What the checks of layers share: copies of a module as a stack, and comparisons in words.

Shapes: S stacked models.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from latebloom.checks.check import Fails, require, skip
from latebloom.layers.stacking import Stacking, call_per_model


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in float64."""
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def require_close(found: Any, expected: Any, reason: str) -> None:
    """Raise `Fails` with the reason and the largest difference unless nested tensors agree."""
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    for one, other in pairs:
        require(one.shape == other.shape, f"{reason}: the shapes are {tuple(one.shape)} and {tuple(other.shape)}")
        difference = float((one - other).detach().abs().max()) if one.numel() else 0.0
        require(difference <= 1e-6, f"{reason}: they differ by up to {difference:.2g}")


def check_gradients(function: Callable[..., Tensor], module: nn.Module, *inputs: Tensor) -> None:
    """Raise `Fails` unless the gradients of inputs and parameters agree with finite differences in float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def outputs(*arguments: Tensor) -> Tensor:
        return function(*arguments[: len(leaves)])

    try:
        torch.autograd.gradcheck(outputs, (*leaves, *parameters), fast_mode=True, atol=1e-4, rtol=1e-3)
    except GradcheckError as error:
        raise Fails(f"they differ from finite differences ({str(error).splitlines()[0]})") from None


def check_stacked(
    build: Callable[[], nn.Module], stacking: Stacking, call: Callable[[nn.Module, Any], Tensor], *inputs: Tensor
) -> None:
    """Raise `Fails` unless three models in a stack compute what each computes alone, outputs and gradients."""
    if stacking == "none":
        skip("it declares that it cannot be stacked")
    models = [build().double() for _ in range(3)]
    names = dict(models[0].named_parameters())
    stacked = {name: torch.stack([dict(m.named_parameters())[name].detach() for m in models]) for name in names}
    for parameter in stacked.values():
        parameter.requires_grad_()
    wrapped = _Called(models[0], call, loop=stacking == "loop")

    def one(parameters: dict[str, Tensor], *arguments: Tensor) -> Tensor:
        return functional_call(wrapped, {f"layer.{name}": value for name, value in parameters.items()}, arguments)

    hint = "" if stacking == "loop" else '; if an operation has no batching rule, declare stacking = "loop"'
    try:
        together = vmap(one)(stacked, *inputs)
    except Exception as error:
        raise Fails(f"it cannot run under torch.func.vmap ({_first_line(error)}){hint}") from error
    alone = torch.stack([call(model, tuple(part)) for model, *part in zip(models, *inputs, strict=True)])
    require_close(together, alone, f"a model in a stack and the same model alone{hint}")
    if names:
        found = torch.autograd.grad(together.square().sum(), list(stacked.values()), allow_unused=True)
        alone.square().sum().backward()
        for name, gradient in zip(stacked, found, strict=True):
            expected = [dict(model.named_parameters())[name].grad for model in models]
            if gradient is not None and all(one is not None for one in expected):
                require_close(list(gradient), expected, f"the gradients of {name} in a stack and alone")


class _Called(nn.Module):
    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Any], Tensor], loop: bool) -> None:
        super().__init__()
        self.layer, self.call, self.loop = layer, call, loop

    def forward(self, *inputs: Tensor) -> Tensor:
        if not self.loop:
            return self.call(self.layer, inputs)
        return self.call(_PerModel(self.layer), inputs)


class _PerModel(nn.Module):
    """A layer that is called once per stacked model, as models do with one that declares a loop."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return call_per_model(self.layer, *inputs, **named)


def check_capture(
    build: Callable[[], nn.Module], call: Callable[[nn.Module, Any], Tensor], inputs: Sequence[Tensor]
) -> None:
    """Raise `Fails` unless forward and backward pass can be captured as a CUDA graph."""
    if not torch.cuda.is_available():
        skip("there is no GPU here")
    layer = build().cuda()
    given = [tensor.float().cuda() for tensor in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call(layer, tuple(given)).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call(layer, tuple(given)).sum().backward()
    except Exception as error:
        raise Fails(f"it cannot be captured ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
