"""One block of a model: parts in sequence, each a residual branch behind a norm.

    [norm, recurrence, +; norm, attention, +; norm, MLP, +]

Shapes: B sequences, T tokens, D width.
"""

from typing import Any

from torch import Tensor, nn

from latebloom.layers.attention import SelfAttention
from latebloom.layers.mlp import MLP
from latebloom.layers.norm import Norm
from latebloom.layers.recurrence import RecurrentLayer
from latebloom.layers.stacking import Stacking, call_per_model
from latebloom.models.settings import PARTS, Model


class Residual(nn.Module):
    """x + gate * body(norm(x)).

    The gate is 1 unless attention is delayed: 0.0 skips the branch and its cost, and a tensor scales it. `role` says
    what the body is, so that a part can be found without knowing its class. `noise` (B, T, D) is added to the state of
    a recurrence, which has `state_size` numbers per sequence. While `carries_state` is set, a recurrence continues from
    its state after the call before.
    """

    def __init__(
        self, role: str, width: int, body: nn.Module, stacking: Stacking = "vmap", state_size: int | None = None
    ) -> None:
        super().__init__()
        self.role = role
        self.state_size = state_size
        self.stacking = stacking
        self.norm = Norm(width)
        self.body = body
        self.gate: float | Tensor = 1.0
        self.noise: Tensor | None = None
        self.carries_state = False
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        if isinstance(self.gate, float) and self.gate == 0.0:
            return x
        x, normed = self.norm.fork(x)
        named: dict[str, Any] = {}
        if isinstance(self.body, RecurrentLayer):
            named = {"noise": self.noise, "state": self.state if self.carries_state else None}
            named = {name: value for name, value in named.items() if value is not None}
        y = call_per_model(self.body, normed, **named) if self.stacking == "loop" else self.body(normed, **named)
        if isinstance(y, tuple):  # a recurrence also returns its state
            y, state = y
            self.state = state if self.carries_state else None
        return x + y if isinstance(self.gate, float) else x + self.gate * y


def build_part(letter: str, settings: Model) -> Residual:
    """Return the part that a letter of the layout stands for."""
    width, attention = settings.width, settings.attention
    if letter == "r":
        recurrence = settings.recurrence
        layer, state_size = recurrence.build(width), recurrence.state_size(width)
        return Residual(PARTS[letter], width, layer, recurrence.stacking, state_size)
    if letter == "a":
        return Residual(PARTS[letter], width, SelfAttention(width, **vars(attention)), attention.positions.stacking)
    return Residual(PARTS[letter], width, MLP(width, 4 * width))


def build_block(settings: Model) -> nn.Sequential:
    """Return a block as the sequence of its parts."""
    return nn.Sequential(*(build_part(letter, settings) for letter in settings.layout))
