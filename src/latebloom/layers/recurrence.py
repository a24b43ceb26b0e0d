"""The family of recurrences, which stand at `r` in a model's layout.

A recurrence is one file with two classes (`lstm/layer.py` is an example): the settings, a dataclass below `Recurrence`
whose `build` makes the layer, and the layer, a module below `RecurrentLayer`.

Shapes: B sequences, T tokens, D width.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from latebloom.components import Component
from latebloom.layers.stacking import Stacking


class RecurrentLayer(nn.Module, ABC):
    """Maps a sequence to a sequence and carries a state."""

    @abstractmethod
    def forward(self, x: Tensor, state: Any = None, noise: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return outputs (B, T, D) for inputs (B, T, D), and the state after the last token.

        A state of None is the start; the returned state, given with the rest of a sequence, continues it. The layer
        adds `noise` (B, T, D) to the state after each token if its settings declare `state_noise`.
        """


class Recurrence(Component, ABC):
    """Settings of a recurrence."""

    state_noise: ClassVar[bool] = False
    """Whether the layer takes `noise`. Runs with training.state_noise are refused if it does not."""
    stacking: ClassVar[Stacking] = "loop"
    """How the layer runs in a stack of models."""

    @abstractmethod
    def build(self, width: int) -> RecurrentLayer:
        """Make a layer of width D with fresh weights."""

    @abstractmethod
    def state_size(self, width: int) -> int:
        """Return how many numbers the state of one sequence has."""

    def check(self, width: int) -> None:
        """Raise a ConfigError if there is no such layer of this width."""
