"""Causal softmax attention with several heads.

Shapes: B sequences, T tokens, D width, H heads, E = D / H features a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.kernels.attention import attend, causal_attention
from latebloom.models.attention.positions import Learned, NoPositions, Rotary
from latebloom.models.layers import Linear


class SoftmaxAttention(nn.Module):
    """Each token asks all tokens up to itself, and takes what the likest of them say."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        positions: str = "none",
        context: int = 1024,
        look_back: bool = False,
        sharpen: bool = False,
        zero_output: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = Linear(width, 3 * width)
        self.look_back = nn.Linear(width, width, bias=False) if look_back else None
        self.sharpen = sharpen
        self.output = Linear(width, width)
        self.positions = {
            "none": NoPositions,
            "rotary": lambda: Rotary(width // heads),
            "learned": lambda: Learned(width, context),
        }[positions]()
        if zero_output:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        if self.positions.turns:
            mixed = causal_attention(*self.projected(x)).transpose(1, 2).flatten(2)
        else:
            x = self.positions.inputs(x)
            mixed = attend(self._together(x), self._before(x), self.heads)
        return self.output(mixed)

    def weights(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, T): how much each token takes from each; the naive form of `forward`."""
        q, k, _ = self.projected(x)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(dim=-1)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, H, T, E)."""
        x = self.positions.inputs(x)
        q, k, v = self._together(x).chunk(3, dim=-1)
        before = self._before(x)
        k = k if before is None else k + before
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return *self.positions.queries_keys(q, k), v

    def _together(self, x: Tensor) -> Tensor:
        """Queries, keys and values side by side (B, T, 3D)."""
        together = self.queries_keys_values(x)
        if not self.sharpen:
            return together
        # Softmax over n equal scores gives each 1/n: only scores that grow with log n keep one above the others.
        seen = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        width = x.shape[2]
        return together * F.pad(seen.log1p()[:, None].expand(-1, width), (0, 2 * width), value=1.0)

    def _before(self, x: Tensor) -> Tensor | None:
        """What the token before each token adds to its key (B, T, D)."""
        if self.look_back is None:
            return None
        return self.look_back(F.pad(x[:, :-1], (0, 0, 1, 0)))  # nothing before the first
