"""The kind of each scored token: copied from before, a closing bracket, part of a name, or the rest.

A token is copied if it and the three tokens before it occur together earlier in the longest window. Copied tokens are
divided by whether these four tokens also occur earlier in the window of the training context, or only before it.
"""

import keyword
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GRAM = 4
"""Tokens of a copied sequence."""
KINDS = ("copied, within 1x", "copied, from beyond 1x", "closing bracket", "name", "rest")
CLOSING = re.compile(r"\s*[)\]}][\s)\]},:;.]*")
NAME = re.compile(r"\s*\w*[A-Za-z_]\w*")


class TokenKinds:
    """Tells the kinds of tokens of one tokenizer."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(tokenizer.get_vocab_size())]
        self._by_text = np.array([KINDS.index(_kind_of_text(text)) for text in texts])

    def of(self, window: Sequence[int], scored: int, context: int) -> np.ndarray:
        """Return the index in `KINDS` for each of the last `scored` tokens of the longest window."""
        tokens = np.asarray(window)
        kinds = self._by_text[tokens[-scored:]].copy()
        last: dict[tuple[int, ...], int] = {}
        first_scored = len(tokens) - scored
        for end in range(GRAM, len(tokens) + 1):
            gram = tuple(tokens[end - GRAM : end].tolist())
            if end > first_scored and gram in last:
                is_within = last[gram] - GRAM >= len(tokens) - context
                kinds[end - 1 - first_scored] = 0 if is_within else 1
            last[gram] = end
        return kinds


def _kind_of_text(text: str) -> str:
    if CLOSING.fullmatch(text):
        return "closing bracket"
    if NAME.fullmatch(text) and not keyword.iskeyword(text.strip()):
        return "name"
    return "rest"
