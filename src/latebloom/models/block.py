"""One block of a model: parts in sequence, each a residual branch behind a norm, or several branches behind one norm.

    ram     [norm, recurrence, +; norm, attention, +; norm, MLP, +]
    (ra)m   [norm, recurrence, +, attention, +; norm, MLP, +]

Shapes: B sequences, T tokens, D width.
"""

from typing import Any

from torch import Tensor, nn

from latebloom.layers.attention import SelfAttention
from latebloom.layers.mlp import MLP
from latebloom.layers.norm import Norm
from latebloom.layers.recurrence import RecurrentLayer
from latebloom.layers.stacking import Stacking, call_per_model
from latebloom.models.layout import PARTS, Block
from latebloom.models.settings import Model


class Residual(nn.Module):
    """x + gate * body(norm(x)).

    The gate is 1 unless attention is delayed: 0.0 skips the branch and its cost, and a tensor scales it. `role` says
    what the body is, so that a part can be found without knowing its class. `noise` (B, T, D) is added to the state of
    a recurrence, which has `state_size` numbers per sequence. While `carries_state` is set, a recurrence continues from
    its state after the call before. `drawn` is what a training batch draws for attention, and `kept` (B,) is 0 for the
    sequences that skip the branch and 1 for the others. A `detached` branch reads x and passes no gradient to it. A
    part that stands beside others has no norm of its own, and is given what their common one returns.
    """

    norm: Norm

    def __init__(
        self,
        role: str,
        width: int,
        body: nn.Module,
        stacking: Stacking = "vmap",
        *,
        state_size: int | None = None,
        has_norm: bool = True,
    ) -> None:
        super().__init__()
        self.role = role
        self.width = width
        self.state_size = state_size
        self.stacking = stacking
        self.has_norm = has_norm
        if has_norm:
            self.norm = Norm(width)
        self.body = body
        self.gate: float | Tensor = 1.0
        self.noise: Tensor | None = None
        self.carries_state = False
        self.state: Any = None
        self.drawn: dict[str, Tensor] = {}
        self.kept: Tensor | None = None
        self.detached = False

    def forward(self, x: Tensor, normed: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        if isinstance(self.gate, float) and self.gate == 0.0:
            return x
        if self.detached:
            normed = self.norm(x.detach()) if normed is None else normed.detach()
        elif self.has_norm:
            x, normed = self.norm.fork(x)
        given: dict[str, Any] = dict(self.drawn)
        if isinstance(self.body, RecurrentLayer):
            known = {"noise": self.noise, "state": self.state if self.carries_state else None}
            given |= {name: value for name, value in known.items() if value is not None}
        y = call_per_model(self.body, normed, **given) if self.stacking == "loop" else self.body(normed, **given)
        if isinstance(y, tuple):  # a recurrence also returns its state
            y, state = y
            self.state = state if self.carries_state else None
        if self.kept is not None:
            y = self.kept[:, None, None] * y
        return x + y if isinstance(self.gate, float) else x + self.gate * y


class Parallel(nn.Module):
    """x plus the branches of several parts, which all read one norm of x."""

    def __init__(self, width: int, branches: list[Residual]) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        x, normed = self.norm.fork(x)
        for branch in self.branches:
            x = branch(x, normed)
        return x


def build_part(letter: str, settings: Model, *, has_norm: bool = True) -> Residual:
    """Return the part that a letter of the layout stands for."""
    width, role = settings.width, PARTS[letter]
    body: nn.Module
    stacking: Stacking = "vmap"
    state_size = None
    if letter == "r":
        recurrence = settings.recurrence
        body, stacking, state_size = recurrence.build(width), recurrence.stacking, recurrence.state_size(width)
    elif letter == "a":
        attention = settings.attention
        body = SelfAttention(width, **vars(attention))
        # Tensors that a batch draws are arguments of attention, so it is called once per model as a whole.
        stacking = "loop" if "loop" in (attention.positions.stacking, attention.scores.stacking) else "vmap"
    else:
        body = MLP(width, 4 * width)
    return Residual(role, width, body, stacking, state_size=state_size, has_norm=has_norm)


def build_block(settings: Model, block: Block | None = None) -> nn.Sequential:
    """Return a block, the first of the layout unless another is given, as the sequence of its parts."""
    return nn.Sequential(
        *(
            build_part(part, settings)
            if len(part) == 1
            else Parallel(settings.width, [build_part(letter, settings, has_norm=False) for letter in part])
            for part in block or settings.layout_blocks[0]
        )
    )


def residual_parts(model: nn.Module, role: str) -> list[Residual]:
    """Return the parts of a model with a role, in order."""
    return [part for part in model.modules() if isinstance(part, Residual) and part.role == role]
