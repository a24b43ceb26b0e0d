"""Checks that recurrences, scores and positions share; scores and positions are tested within attention.

Shapes: S = 3 stacked models, B = 2 sequences, T = 5 tokens, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from latebloom.checks.check import Check, Fails, checks, require, skip
from latebloom.errors import ConfigError, first_line
from latebloom.layers.attention import NoPositions, Positions, Scores, SelfAttention, Softmax
from latebloom.layers.recurrence import Recurrence
from latebloom.layers.stacking import Stacking, call_per_model

S, B, T, H = 3, 2, 5, 2
ATTENTION_WIDTH = 16
Layer = Recurrence | Scores | Positions


def width_of(component: Layer) -> int:
    """Return a small width that the component has a layer for."""
    if not isinstance(component, Recurrence):
        return ATTENTION_WIDTH
    for width in (8, 16, 32, 64):
        try:
            component.check(width)
        except ConfigError:
            continue
        return width
    return 128


def build(component: Layer) -> nn.Module:
    """Return the recurrent layer, or attention with these scores or positions, in float64.

    Attention is in evaluation mode, because some positions are drawn at random in training mode.
    """
    if isinstance(component, Recurrence):
        return component.build(width_of(component)).double()
    positions = component if isinstance(component, Positions) else NoPositions()
    scores = component if isinstance(component, Scores) else Softmax()
    return SelfAttention(ATTENTION_WIDTH, H, positions=positions, scores=scores).double().eval()


def build_seeded(component: Layer) -> Any:
    torch.manual_seed(0)
    return build(component)


def outputs(layer: Callable[..., Any], x: Tensor) -> Tensor:
    """Return the outputs of a layer, without the state of a recurrent one."""
    returned = layer(x)
    return returned[0] if isinstance(returned, tuple) else returned


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in float64."""
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def inputs(component: Layer, seed: int = 0) -> Tensor:
    return numbers(B, T, width_of(component), seed=seed)


def require_close(found: Any, expected: Any, reason: str) -> None:
    """Raise `Fails` with the reason and the largest difference unless nested tensors agree."""
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        require(one.shape == other.shape, f"{reason}: the shapes are {tuple(one.shape)} and {tuple(other.shape)}")
        difference = float((one - other).detach().abs().max()) if one.numel() else 0.0
        require(difference <= 1e-6, f"{reason}: they differ by up to {difference:.2g}")


def _all_layers(function: Check) -> Check:
    return checks(Recurrence)(checks(Scores)(checks(Positions)(function)))


@_all_layers
def is_causal(component: Layer) -> None:
    """an output does not depend on later tokens"""
    layer, x = build_seeded(component), inputs(component)
    before = outputs(layer, x)
    for t in range(1, T):
        changed = x.clone()
        changed[:, t:] += 1.0
        difference = (outputs(layer, changed) - before)[:, :t].detach().abs().amax(dim=(0, 2))
        late = [i for i in range(t) if difference[i] > 1e-9]
        require(not late, f"the output at token {late[0] if late else 0} changes with token {t}")


@_all_layers
def is_deterministic(component: Layer) -> None:
    """it is deterministic: the same seed gives the same weights, and the same inputs the same outputs"""
    first, second, x = build_seeded(component), build_seeded(component), inputs(component)
    for name, parameter in first.named_parameters():
        same = torch.equal(parameter, dict(second.named_parameters())[name])
        require(same, f"{name} differs between two layers that were built after torch.manual_seed(0)")
    require(torch.equal(outputs(first, x), outputs(first, x)), "two calls with the same inputs differ")


@_all_layers
def has_gradients(component: Layer) -> None:
    """its gradients agree with finite differences in float64"""
    layer = build_seeded(component)
    x = inputs(component).requires_grad_()
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    try:
        torch.autograd.gradcheck(
            lambda x, *parameters: outputs(layer, x), (x, *parameters), fast_mode=True, atol=1e-4, rtol=1e-3
        )
    except GradcheckError as error:
        raise Fails(f"they differ from finite differences ({first_line(error)})") from None


@_all_layers
def can_be_stacked(component: Layer) -> None:
    """in a stack it computes what it computes alone, outputs and gradients"""
    stacking: Stacking = component.stacking
    if stacking == "none":
        skip("it declares that it cannot be stacked")
    is_loop = stacking == "loop"
    models = [build(component) for _ in range(S)]
    each = [dict(model.named_parameters()) for model in models]
    stacked = {name: torch.stack([one[name].detach() for one in each]).requires_grad_() for name in each[0]}
    x = numbers(S, B, T, width_of(component))
    wrapped = _Outputs(models[0], is_loop)

    def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(wrapped, {f"layer.{name}": value for name, value in parameters.items()}, (x,))

    hint = "" if is_loop else '; if an operation has no batching rule, declare stacking = "loop"'
    try:
        together = vmap(one)(stacked, x)
    except Exception as error:
        raise Fails(f"it cannot run under torch.func.vmap ({first_line(error)}){hint}") from error
    alone = torch.stack([outputs(model, part) for model, part in zip(models, x, strict=True)])
    require_close(together, alone, f"a model in a stack and the same model alone{hint}")
    if stacked:
        found = torch.autograd.grad(together.square().sum(), list(stacked.values()), materialize_grads=True)
        alone.square().sum().backward()
        for name, gradient in zip(stacked, found, strict=True):
            expected = [torch.zeros_like(one[name]) if one[name].grad is None else one[name].grad for one in each]
            require_close(list(gradient), expected, f"the gradients of {name} in a stack and alone")


class _Outputs(nn.Module):
    """The outputs of a layer, which is called once per stacked model if it declares a loop, as models do."""

    def __init__(self, layer: nn.Module, is_loop: bool) -> None:
        super().__init__()
        self.layer, self.is_loop = layer, is_loop

    def forward(self, x: Tensor) -> Tensor:
        return outputs(partial(call_per_model, self.layer) if self.is_loop else self.layer, x)


@_all_layers
def can_be_captured(component: Layer) -> None:
    """its forward and backward pass can be captured as a CUDA graph"""
    if not torch.cuda.is_available():
        skip("there is no GPU here")
    layer, x = build(component).float().cuda(), inputs(component).float().cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            outputs(layer, x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            outputs(layer, x).sum().backward()
    except Exception as error:
        raise Fails(f"it cannot be captured ({first_line(error)})") from error
