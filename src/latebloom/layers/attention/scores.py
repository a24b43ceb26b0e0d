"""The family of scores: how attention turns queries and keys into weights.

Scores are one file with two classes (`softmax.py` is the plainest): the settings, a dataclass below `Scores` whose
`build` makes the layer, and the layer, a module below `ScoreLayer` that may have parameters of its own. Its `weights`
are the specification. `attend` and `attend_joint` may be overridden by something faster that computes the same.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features per head.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from latebloom.components import Component
from latebloom.layers.attention.operation import split_heads
from latebloom.layers.stacking import Stacking


class ScoreLayer(nn.Module, ABC):
    """Weights the values of earlier tokens by comparing queries with keys."""

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        """Return how much each token takes from each token up to itself, (B, H, T, T).

        Queries and keys are (B, H, T, E), with positions applied, and x (B, T, D) is what they were projected from.
        Each row has weights from 0 on for tokens up to its own, and zeros after it.
        """

    def query_scale(self, x: Tensor) -> Tensor | None:
        """Return factors (T, 1) or (T, D) that attention multiplies the queries by before `weights`, or None."""
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """Return the weighted values (B, H, T, E)."""
        return self.weights(q, k, x) @ v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return self.attend(q, k, v, x)

    def attend_joint(self, joint: Tensor, extra: Tensor | None, heads: int, x: Tensor) -> Tensor:
        """Return the weighted values (B, T, D) from the joint projection (B, T, 3D) of queries, keys and values.

        `extra` (B, T, D), where it is not None, is added to the keys.
        """
        q, k, v = split_heads(joint, extra, heads)
        return self.attend(q, k, v, x).transpose(1, 2).flatten(2)


class Scores(Component, ABC):
    """Settings of the attention scores."""

    row_sum: ClassVar[float | None] = 1.0
    """What the weights of a token add up to; None where that depends on the input."""
    stacking: ClassVar[Stacking] = "vmap"
    """How the layer runs in a stack of models."""

    @abstractmethod
    def build(self, width: int, heads: int) -> ScoreLayer:
        """Make a layer for attention of width D with H heads."""

    def check(self, width: int, heads: int) -> None:
        """Raise a ConfigError if there are no such scores for this width and number of heads."""
