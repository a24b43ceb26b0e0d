"""The loss of a model on the last tokens of windows, in pieces of bounded memory where the model allows it.

Shapes: B windows, T tokens, S scored tokens, V vocabulary.
"""

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from latebloom.evaluation.accuracy import evaluating

PIECE = 2048
"""Tokens of a piece."""
TOKENS_AT_ONCE = 16_384
"""Tokens of all windows of a batch."""
SAME = 1e-3
"""Logits that differ by less than this part of their spread are the same."""


class LastTokens:
    """Computes logits at the last positions of windows with a causal language model of Transformers.

    Long windows pass through the model in pieces, with a cache, if the model's logits are then what they are at once:
    that is tried on random tokens first, because some models start a piece with an empty recurrent state.
    """

    def __init__(self, model: Any, piece: int = PIECE) -> None:
        self.model, self.piece = model, piece
        self.device = next(model.parameters()).device
        self._in_pieces: bool | None = None
        self._keeps = "logits_to_keep" in signature(model.forward).parameters

    @property
    def in_pieces(self) -> bool:
        """Whether pieces with a cache give what the whole window gives."""
        if self._in_pieces is None:
            self._in_pieces = self._try_pieces()
        return self._in_pieces

    def logits(self, tokens: Tensor, count: int) -> Tensor:
        """Return the logits at the last `count` positions, (B, count, V) in float32."""
        with evaluating(self.model), torch.inference_mode():
            tokens = tokens.to(self.device)
            if tokens.shape[1] <= self.piece or count >= self.piece or not self.in_pieces:
                return self._whole(tokens, count)
            return self._pieces(tokens, count, self.piece)

    def _call(self, tokens: Tensor, count: int, **cache: Any) -> Any:
        keep = {"logits_to_keep": count} if self._keeps else {}
        return self.model(input_ids=tokens, **keep, **cache)

    def _whole(self, tokens: Tensor, count: int) -> Tensor:
        return self._call(tokens, count, use_cache=False).logits[:, -count:].float()

    def _pieces(self, tokens: Tensor, count: int, piece: int) -> Tensor:
        last = max(1, (tokens.shape[1] - count) // piece) * piece  # where the last piece begins
        cache = None
        for start in range(0, last, piece):
            cache = self._call(
                tokens[:, start : start + piece], 1, past_key_values=cache, use_cache=True
            ).past_key_values
        out = self._call(tokens[:, last:], count, past_key_values=cache, use_cache=True)
        return out.logits[:, -count:].float()

    def _try_pieces(self) -> bool:
        random = torch.Generator().manual_seed(0)
        size = self.model.get_input_embeddings().weight.shape[0]
        tokens = torch.randint(size, (1, 3 * 48), generator=random).to(self.device)
        with evaluating(self.model), torch.inference_mode():
            whole = self._whole(tokens, 32)
            try:
                pieces = self._pieces(tokens, 32, 48)
            except Exception:  # a model without a cache may raise anything
                return False
        return bool((whole - pieces).abs().max() <= SAME * whole.std())


def last_losses(model: LastTokens, tokens: Tensor, scored: int) -> Tensor:
    """Return the loss of each of the last `scored` tokens, (B, S) in nats."""
    found = []
    for batch in tokens.split(max(1, TOKENS_AT_ONCE // tokens.shape[1])):
        logits = model.logits(batch, scored + 1)[:, :-1]
        targets = batch[:, -scored:].to(logits.device)
        found.append(cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape).cpu())
    return torch.cat(found)
