"""Windows of a corpus: those that are trained on, and those whose last tokens are scored."""

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from latebloom.errors import ConfigError
from latebloom.lm.corpus import Corpus, Tokens
from latebloom.lm.documents import Split


class TrainingWindows(Dataset):
    """Consecutive windows of the training tokens, as Trainer reads them."""

    def __init__(self, tokens: Tokens, context: int) -> None:
        self.tokens, self.context = tokens, context
        if len(self) == 0:
            raise ConfigError(
                f"context: {context} tokens are more than the {len(tokens):,} of the training split; give more text or "
                "a shorter context"
            )

    def __len__(self) -> int:
        return len(self.tokens) // self.context

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self.context
        window = torch.from_numpy(self.tokens.read(start, start + self.context))
        return {"input_ids": window, "labels": window}


def stack(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return windows as one batch."""
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


@dataclass(frozen=True)
class ScoredWindow:
    """A place in a corpus: the tokens before `stop`, of which the last ones are scored."""

    stop: int
    document: int
    """The index of the document that is scored."""
    inside: bool
    """Whether the longest context is within that document."""


def scored_windows(
    corpus: Corpus, split: Split, longest: int, scored: int, count: int, seed: int = 0
) -> list[ScoredWindow]:
    """Return one window in each of `count` documents at most.

    Documents that hold the longest context come first; if they are too few, others follow whose context reaches into
    the documents before them, which are of the same package as far as it goes.
    """
    tokens = corpus.split(split)
    ends = tokens.document_ends(corpus.end_token)
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    random = Random(seed)
    held, reaching = [], []
    for document, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end - start >= longest:
            held.append(ScoredWindow(random.randint(start + longest, end), document, True))
        elif end >= longest and end - start > scored:
            reaching.append(ScoredWindow(random.randint(max(longest, start + scored), end), document, False))
    random.shuffle(held)
    random.shuffle(reaching)
    found = [*held, *reaching][:count]
    if not found:
        raise ConfigError(
            f"context: no document of the {split} split has {longest} tokens before its end, in {len(tokens):,} "
            "tokens; give more text or a shorter context"
        )
    return sorted(found, key=lambda one: one.stop)


def window_batch(tokens: Tokens, windows: list[ScoredWindow], length: int) -> Tensor:
    """Return the last `length` tokens of each window, (windows, length)."""
    return torch.from_numpy(np.stack([tokens.read(one.stop - length, one.stop) for one in windows]))
