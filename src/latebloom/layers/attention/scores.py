"""The family of scores: how attention turns queries and keys into weights.

Scores are one file with two classes (`sigmoid.py` is the plainest): the settings, a dataclass below `Scores` whose
`build` makes the layer, and the layer, a module below `ScoreLayer` that may have parameters of its own. Its `weights`
are the specification. `attend` and `attend_joint` may be overridden by something faster that computes the same.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features per head, R queries and K keys of a tile.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from latebloom.components import Component
from latebloom.layers.attention.operation import split_heads
from latebloom.layers.attention.tiles import PLAIN, Tile, Visibility, scores_of, tiles, whole
from latebloom.layers.stacking import Stacking


class ScoreLayer(nn.Module, ABC):
    """Weights the values of earlier tokens by comparing queries with keys."""

    @abstractmethod
    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        """Return how much each query takes from each key, (B, H, R, K), zero where the scores are -inf.

        The scores (B, H, R, K) are q k / sqrt(E), with positions applied, and -inf for the keys that a query does not
        attend to. They are those of a tile: of all tokens in training, of some queries in tests on long sequences. x
        (B, T, D) is what the queries and keys of all tokens were projected from.
        """

    @property
    def scales_queries(self) -> bool:
        """Whether `query_scale` is defined; otherwise what it would be given is not computed."""
        return type(self).query_scale is not ScoreLayer.query_scale

    def query_scale(self, x: Tensor, seen: Tensor) -> Tensor | None:
        """Return factors of the queries, (T, 1), (T, D) or (B, T, D), or None; token t attends to `seen[t]` tokens."""
        return None

    def all_weights(self, q: Tensor, k: Tensor, x: Tensor, visibility: Visibility = PLAIN) -> Tensor:
        """Return how much each token takes from each, (B, H, T, T), for queries and keys (B, H, T, E)."""
        tile = whole(q.shape[-2], visibility, q)
        return self.weights(scores_of(q, k, tile, visibility), tile, x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, visibility: Visibility = PLAIN) -> Tensor:
        """Return the weighted values (B, H, T, E)."""
        mixed = [
            self.weights(scores_of(q, k, tile, visibility), tile, x) @ v[..., tile.keys, :]
            for tile in tiles(q, visibility)
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=-2)

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
    """How the layer runs in a stack of models; with `loop`, all of attention is called once per model."""

    @abstractmethod
    def build(self, width: int, heads: int) -> ScoreLayer:
        """Make a layer for attention of width D with H heads."""

    def check(self, width: int, heads: int) -> None:
        """Raise a ConfigError if there are no such scores for this width and number of heads."""


def per_feature(factors: Tensor, width: int) -> Tensor:
    """Return factors (..., H) of the heads as factors (..., D) of their features."""
    return factors.unsqueeze(-1).expand(*factors.shape, width // factors.shape[-1]).flatten(-2)
