"""What every recurrence is.

Shapes: B sequences, T tokens, D width.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class Recurrence(nn.Module, ABC):
    """Maps a sequence to a sequence and carries a state."""

    @abstractmethod
    def forward(self, x: Tensor, state: Any = None, noise: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T, D) -> (B, T, D), and the state after T; a state of None is the start.

        Noise (B, T, D), where there is some, is added to what is remembered after each token.
        """
