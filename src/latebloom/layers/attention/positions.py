"""The family of positions: how attention knows where a token stands.

Positions are one file with two classes (`rotary.py` is an example): the settings, a dataclass below `Positions` whose
`build` makes the layer, and the layer, a module below `PositionLayer`.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features per head, R queries, K keys.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from latebloom.components import Component
from latebloom.layers.stacking import Stacking


class PositionLayer(nn.Module):
    """Acts on the inputs of attention, on its queries and keys, or on their scores. This one does not act."""

    @property
    def acts_on_queries_keys(self) -> bool:
        """Whether `queries_keys` is overridden; otherwise attention does not split the heads to call it."""
        return type(self).queries_keys is not PositionLayer.queries_keys

    @property
    def acts_on_scores(self) -> bool:
        """Whether `score_bias` is overridden; otherwise attention can use kernels that have no bias."""
        return type(self).score_bias is not PositionLayer.score_bias

    def inputs(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        """Return the inputs (B, T, D) from which queries, keys and values are projected.

        `times` (T,) are the positions that were drawn for the batch, if the settings have `drawn_from`.
        """
        return x

    def queries_keys(self, q: Tensor, k: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the queries and keys (B, H, T, E) that are compared; `times` as in `inputs`."""
        return q, k

    def score_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return what is added to the scores (H, R, K) of R queries and K keys, which stand at these places."""
        raise NotImplementedError


class Positions(Component, ABC):
    """Settings of the positions."""

    stacking: ClassVar[Stacking] = "vmap"
    """How the layer runs in a stack of models; with `loop`, all of attention is called once per model."""

    @property
    def max_tokens(self) -> int | None:
        """The largest number of tokens that the positions cover; None if there is no limit."""
        return None

    @property
    def drawn_from(self) -> int | None:
        """If the positions of a training batch are drawn, the number of positions to draw from; otherwise None."""
        return None

    @abstractmethod
    def build(self, width: int, heads: int) -> PositionLayer:
        """Make a layer for attention of width D with H heads."""

    def check(self, width: int, heads: int) -> None:
        """Raise a ConfigError if there are no such positions for this width and number of heads."""
