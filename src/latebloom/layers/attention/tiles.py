"""The matrix of attention scores, whole or in tiles of rows.

Training computes the whole matrix, because sequences are short. Without gradients a long sequence is computed tile by
tile, so that memory does not grow with the square of its length.

Shapes: B sequences, H heads, T tokens, E features per head, R queries and K keys of a tile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from latebloom.layers.stacking import stacked_size

NUMBERS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""A tile has about this many scores, over all sequences, heads and stacked models; on a CPU they fit into its cache."""


@dataclass(frozen=True)
class Visibility:
    """Which tokens a token attends to: those up to itself, or only the last of them; and a bias for their places."""

    window: int | Tensor | None = None
    """Each token attends to this many tokens up to itself; None for all."""
    bias: Callable[[Tensor, Tensor], Tensor] | None = None
    """Returns what is added to the scores (H, R, K) of queries and keys at these places (R,) and (K,)."""

    @property
    def is_plain(self) -> bool:
        """Whether attention is causal and nothing else."""
        return self.window is None and self.bias is None

    def seen(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return how many tokens each of the tokens from `first` to before `last` attends to, (R, 1)."""
        count = torch.arange(first + 1, last + 1, device=like.device, dtype=like.dtype)[:, None]
        if self.window is None or isinstance(self.window, int):
            return count.clamp(max=self.window) if self.window else count
        return torch.minimum(count, self.window.to(like.dtype))


PLAIN = Visibility()


@dataclass(frozen=True)
class Tile:
    """A part of the score matrix: some queries and all keys that they attend to."""

    queries: slice
    keys: slice
    seen: Tensor
    """How many tokens each query attends to, (R, 1)."""

    def places(self) -> tuple[Tensor, Tensor]:
        """Return the places of the queries (R,) and of the keys (K,) in the sequence."""
        device = self.seen.device
        return (
            torch.arange(self.queries.start, self.queries.stop, device=device),
            torch.arange(self.keys.start, self.keys.stop, device=device),
        )


def whole(tokens: int, visibility: Visibility, like: Tensor) -> Tile:
    """Return the tile that is the whole matrix."""
    return Tile(slice(0, tokens), slice(0, tokens), visibility.seen(0, tokens, like))


def tiles(q: Tensor, visibility: Visibility) -> Iterator[Tile]:
    """Yield the tiles that cover the matrix: one if gradients are needed, and small ones otherwise.

    All but the last have about as many scores, so early tiles have more rows. Freed memory then fits the next tile.
    """
    tokens, features = q.shape[-2:]
    matrices = max(1, stacked_size(q) // (tokens * features))
    budget = NUMBERS_AT_ONCE.get(q.device.type, NUMBERS_AT_ONCE["cpu"]) // matrices
    if torch.is_grad_enabled() or tokens**2 <= budget:
        yield whole(tokens, visibility, q)
        return
    window = visibility.window if isinstance(visibility.window, int) else tokens
    last = 0
    while last < tokens:
        first, earlier = last, min(last, window - 1)  # the number of keys before the first query
        last = min(tokens, first + max(1, (isqrt(earlier**2 + 4 * budget) - earlier) // 2))
        yield Tile(slice(first, last), slice(first - earlier, last), visibility.seen(first, last, q))


def scores_of(q: Tensor, k: Tensor, tile: Tile, visibility: Visibility) -> Tensor:
    """Return q k / sqrt(E) plus the bias, (B, H, R, K); -inf for tokens that a query does not attend to."""
    scores = q[..., tile.queries, :] @ k[..., tile.keys, :].transpose(-1, -2) / q.shape[-1] ** 0.5
    queries, keys = tile.places()
    if visibility.bias is not None:
        scores = scores + visibility.bias(queries, keys)
    distance = queries[:, None] - keys
    hidden = distance < 0
    if visibility.window is not None:
        hidden = hidden | (distance >= visibility.window)
    return scores.masked_fill(hidden, -torch.inf)
