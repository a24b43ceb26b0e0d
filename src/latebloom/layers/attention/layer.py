"""Causal multi-head attention.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features per head.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.attention.operation import split_heads
from latebloom.layers.attention.positions import Positions
from latebloom.layers.attention.scores import Scores
from latebloom.layers.mlp import Linear
from latebloom.layers.stacking import call_per_model


class SelfAttention(nn.Module):
    """Causal multi-head attention with exchangeable scores and positions.

    With `look_back`, keys are projected from a token and the one before it. With `zero_output`, the output projection
    starts at zero.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        positions: Positions,
        scores: Scores,
        look_back: bool = False,
        zero_output: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.stacking = heads, scores.stacking
        self.queries_keys_values = Linear(width, 3 * width)
        self.look_back = nn.Linear(width, width, bias=False) if look_back else None
        self.output = Linear(width, width)
        self.positions = positions.build(width, heads)
        self.scores = scores.build(width, heads)
        if zero_output:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        x = self.positions.inputs(x)
        joint, extra = self._project(x)
        if self.stacking != "loop" and not self.positions.acts_on_queries_keys:
            return self.output(self.scores.attend_joint(joint, extra, self.heads, x))
        q, k, v = split_heads(joint, extra, self.heads)
        q, k = self.positions.queries_keys(q, k)
        mixed = call_per_model(self.scores, q, k, v, x) if self.stacking == "loop" else self.scores(q, k, v, x)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """Return how much each token takes from each, (B, H, T, T), for inputs (B, T, D)."""
        q, k, _ = self.projected(x)
        return self.scores.weights(q, k, self.positions.inputs(x))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, H, T, E), as the scores are given them."""
        q, k, v = split_heads(*self._project(self.positions.inputs(x)), self.heads)
        return *self.positions.queries_keys(q, k), v

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the joint projection of queries, keys and values (B, T, 3D), and the keys' look-back (B, T, D)."""
        joint = self.queries_keys_values(x)
        scale = self.scores.query_scale(x)
        if scale is not None:
            width = x.shape[2]
            joint = joint * F.pad(scale.expand(-1, width), (0, 2 * width), value=1.0)
        if self.look_back is None:
            return joint, None
        return joint, self.look_back(F.pad(x[:, :-1], (0, 0, 1, 0)))  # the first token has none before it
