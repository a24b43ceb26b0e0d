"""Probes: traces written into text of a corpus, at every length of context.

A probe fills a window of a given length and ends with a query. The model chooses among the possible answers by the
logits of their first tokens that differ. Recall probes (needle, dictionary) spread their facts over text of the test
split; state probes (swaps, pointers) are lines of a program over the whole window, so that longer windows have more of
them to track.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from latebloom.errors import ConfigError
from latebloom.evaluation.interval import binomial_interval
from latebloom.lm.corpus import Tokens
from latebloom.lm.losses import TOKENS_AT_ONCE, LastTokens
from latebloom.lm.traces import KINDS, Trace

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WITH_TEXT = ("needle", "dictionary")
ENTRIES = 8
"""Entries of the dictionary, at every length."""


class TooShort(ConfigError):  # noqa: N818 (a length is no error)
    """A probe does not fit into a window of this length."""


@dataclass(frozen=True)
class ProbeCount:
    """Which probes of one kind were answered right at one length."""

    kind: str
    context: int
    outcomes: tuple[int, ...]
    """1 for each probe that was answered right, 0 for the others; every model is asked the same probes."""
    guessing: float
    """The accuracy of guessing."""

    @property
    def accuracy(self) -> float:
        return sum(self.outcomes) / len(self.outcomes)

    @property
    def interval(self) -> tuple[float, float]:
        return binomial_interval(sum(self.outcomes), len(self.outcomes))


class Prober:
    """Writes probes of the same seeds for every model with one tokenizer."""

    def __init__(self, tokenizer: "Tokenizer", text: Tokens, seed: int = 0) -> None:
        self.tokenizer, self.text, self.seed = tokenizer, text, seed

    def count(self, model: LastTokens, kind: str, context: int, probes: int) -> ProbeCount:
        """Ask a model the probes of a kind at a length."""
        made = [self.write(kind, context, index) for index in range(probes)]
        outcomes: list[int] = []
        size = max(1, TOKENS_AT_ONCE // context)
        for start in range(0, probes, size):
            batch = made[start : start + size]
            logits = model.logits(torch.stack([tokens for tokens, _, _ in batch]), 1)[:, 0].cpu()
            for row, (_, choices, answer) in zip(logits, batch, strict=True):
                outcomes.append(int(row[choices].argmax() == answer))
        guessing = float(np.mean([1 / len(choices) for _, choices, _ in made]))
        return ProbeCount(kind, context, tuple(outcomes), guessing)

    def write(self, kind: str, context: int, index: int) -> tuple[Tensor, list[int], int]:
        """Return a window up to the answer, the tokens of the possible answers, and which of them is right."""
        random = Random(f"{self.seed}/{kind}/{context}/{index}")
        if kind in WITH_TEXT:
            trace = KINDS[kind](random, ENTRIES)
            # Text may end within a line, and each fact begins a new one.
            pieces, before_query = [self._encode(f"\n{line}") for line in trace.lines], "\n"
        else:
            trace, pieces = self._filling_trace(kind, context, random)
            before_query = ""
        shared, choices = self._choices(trace)
        query = [*self._encode(before_query + trace.query), *shared]
        facts = sum(map(len, pieces))
        room = context - len(query) - facts
        if room < 0:
            raise TooShort(f"context: {context} tokens are too few for the probe {kind}, which takes {context - room}")
        if kind in WITH_TEXT:
            window = self._with_text(pieces, room, random)
        else:
            window = [*self._with_text([], room, random), *(token for piece in pieces for token in piece)]
        return torch.tensor([*window, *query]), choices, trace.choices.index(trace.answer)

    def _filling_trace(self, kind: str, context: int, random: Random) -> tuple[Trace, list[list[int]]]:
        """Return the longest trace that fits into the window."""
        state = random.getstate()
        size = max(1, context // 12)
        while True:
            random.setstate(state)
            trace = KINDS[kind](random, size)
            pieces = [self._encode(line) for line in (f"\n{trace.lines[0]}", *trace.lines[1:])]
            over = sum(map(len, pieces)) + len(self._encode(trace.query + trace.answer)) - context
            if over <= 0 or size == 1:
                return trace, pieces
            longest = max(len(piece) for piece in pieces[1:])
            size = max(1, size - max(1, over // longest))

    def _with_text(self, pieces: Sequence[list[int]], room: int, random: Random) -> list[int]:
        """Return the pieces in order, with `room` tokens of the corpus before, between and behind them."""
        cuts = sorted(random.randint(0, room) for _ in pieces)
        start = random.randrange(max(1, len(self.text) - room))
        text = self.text.read(start, start + room).tolist()
        window: list[int] = []
        before = 0
        for cut, piece in zip(cuts, pieces, strict=True):
            window += [*text[before:cut], *piece]
            before = cut
        return [*window, *text[before:]]

    def _choices(self, trace: Trace) -> tuple[list[int], list[int]]:
        """Return the tokens that all answers begin with, and the next token of each."""
        answers = [self._encode(choice) for choice in trace.choices]
        shared = 0
        while len({answer[shared] for answer in answers}) == 1:
            shared += 1
        choices = [answer[shared] for answer in answers]
        if len(set(choices)) != len(choices):
            raise ConfigError("tokenizer: it does not distinguish the digits, so probes cannot be scored")
        return answers[0][:shared], choices

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids
