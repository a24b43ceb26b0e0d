"""Causal multi-head attention.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features per head.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.fields import Bound, Count, check_fields
from latebloom.layers.attention.operation import split_heads
from latebloom.layers.attention.positions import Positions
from latebloom.layers.attention.scores import Scores
from latebloom.layers.attention.tiles import Visibility
from latebloom.layers.mlp import Linear

Share = Annotated[float, Bound(lambda share: 0 <= share <= 1, "from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class RandomWindow:
    """A short window that is drawn at random in training, arXiv 2509.24552."""

    tokens: Count
    """In some training batches each token attends to this many tokens up to itself."""
    probability: Share = 0.5
    """The probability that a batch has the short window."""
    full_share: Share = 0.1
    """The share of the training steps, at the end, in which no batch has it."""

    def __post_init__(self) -> None:
        check_fields(self)

    def last_step(self, steps: int) -> int:
        """Return how many of the training steps may have the short window."""
        return round((1 - self.full_share) * steps)


class SelfAttention(nn.Module):
    """Causal multi-head attention with exchangeable scores and positions.

    With `look_back`, keys are projected from a token and the one before it. With `zero_output`, the output projection
    starts at zero. With `window`, a token attends to that many tokens up to itself. With `gate_bias`, the output is
    scaled by sigmoid(Wx + b), whose bias b starts at that value.
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
        window: int | None = None,
        random_window: RandomWindow | None = None,
        gate_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.window, self.random_window = heads, window, random_window
        self.queries_keys_values = Linear(width, 3 * width)
        self.look_back = nn.Linear(width, width, bias=False) if look_back else None
        self.output = Linear(width, width)
        self.positions = positions.build(width, heads)
        self.scores = scores.build(width, heads)
        if zero_output:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)
        self.output_gate = None
        if gate_bias is not None:
            self.output_gate = Linear(width, width)
            nn.init.constant_(self.output_gate.bias, gate_bias)

    def forward(self, x: Tensor, times: Tensor | None = None, window: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D); `times` (T,) and `window` () are what a trainer has drawn for the batch."""
        mixed = self._mixed(x, times, window)
        return mixed if self.output_gate is None else self.output_gate(x).sigmoid() * mixed

    def _mixed(self, x: Tensor, times: Tensor | None, window: Tensor | None) -> Tensor:
        """Return the projected output without its gate."""
        given = {} if times is None else {"times": times}
        visibility, x = self._visibility(window, x), self.positions.inputs(x, **given)
        joint, extra = self._project(x, visibility)
        if visibility.is_plain and not self.positions.acts_on_queries_keys:
            return self.output(self.scores.attend_joint(joint, extra, self.heads, x))
        q, k, v = split_heads(joint, extra, self.heads)
        q, k = self.positions.queries_keys(q, k, **given)
        return self.output(self.scores.attend(q, k, v, x, visibility).transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """Return how much each token takes from each, (B, H, T, T), for inputs (B, T, D)."""
        q, k, _ = self.projected(x)
        return self.scores.all_weights(q, k, self.positions.inputs(x), self._visibility(None, x))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, H, T, E), as the scores are given them."""
        joint, extra = self._project(self.positions.inputs(x), self._visibility(None, x))
        q, k, v = split_heads(joint, extra, self.heads)
        return *self.positions.queries_keys(q, k), v

    def _visibility(self, drawn: Tensor | None, x: Tensor) -> Visibility:
        bias = self.positions.score_bias if self.positions.acts_on_scores else None
        window: int | Tensor | None = self.window if drawn is None else drawn
        if drawn is None and self.training and self.random_window is not None:
            # A training loop of another kind than this package's: with torch's generator, in all of its steps.
            is_short = torch.rand((), device=x.device) < self.random_window.probability
            window = short_or_full(is_short, self.random_window, self.window, x.shape[1])
        return Visibility(window, bias)

    def _project(self, x: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """Return the joint projection of queries, keys and values (B, T, 3D), and the keys' look-back (B, T, D)."""
        joint = self.queries_keys_values(x)
        tokens, width = x.shape[1:]
        scale = None
        if self.scores.scales_queries:
            scale = self.scores.query_scale(x, visibility.seen(0, tokens, x))
        if scale is not None:
            joint = joint * F.pad(scale.expand(*scale.shape[:-1], width), (0, 2 * width), value=1.0)
        if self.look_back is None:
            return joint, None
        return joint, self.look_back(F.pad(x[:, :-1], (0, 0, 1, 0)))  # the first token has none before it


def short_or_full(is_short: Tensor, settings: RandomWindow, window: int | None, tokens: int) -> Tensor:
    """Return the window () of a batch: the short one, or the full one, which is all tokens if it is None."""
    full = tokens if window is None else window
    return full + is_short.long() * (settings.tokens - full)  # arithmetic, which a CUDA graph can capture
