"""The width at which a model has as many parameters as another."""

import re
from dataclasses import replace
from functools import cache
from math import lcm

import torch

from latebloom.errors import ConfigError, require
from latebloom.layers.recurrence import Recurrence
from latebloom.models.layout import parse_layout
from latebloom.models.sequence_model import SequenceModel
from latebloom.models.settings import Model

FIELD = "match_parameters"
LARGEST = 1024
"""Every width is tried, so a larger reference would take minutes."""


def match_parameters(model: Model, reference: str, vocabulary_size: int) -> Model:
    """Return the model with the width at which its number of parameters is nearest to that of the reference.

    The reference is a recurrence and a width, such as `lstm-64`: a model of layout rm with this recurrence, and with as
    many blocks and the same vocabulary. Of two widths that are as near, the smaller is returned.
    """
    parts = re.fullmatch(r"(.+)-([1-9]\d{0,8})", reference) if isinstance(reference, str) else None
    require(parts is not None, FIELD, reference, "a recurrence and a width, such as lstm-64")
    assert parts is not None
    require(int(parts[2]) <= LARGEST, FIELD, reference, f"a width of at most {LARGEST}")
    recurrence = Recurrence.named(parts[1], FIELD)
    try:
        wanted = count_parameters(
            Model(layout="rm", width=int(parts[2]), blocks=model.blocks, recurrence=recurrence), vocabulary_size
        )
    except ConfigError as error:
        raise ConfigError(f"{FIELD}: there is no model {reference!r} ({error})") from None
    try:
        return nearest_width(model, wanted, vocabulary_size)
    except ConfigError:
        raise ConfigError(f"{FIELD}: {reference!r} is not possible; no width of this model comes near it") from None


def nearest_width(model: Model, wanted: int, vocabulary_size: int, multiple_of: int = 1) -> Model:
    """Return the model with the width, a multiple of a number, at which its parameters are nearest to `wanted`."""
    best, nearest, width, count = None, 0, 0, 0
    step = lcm(multiple_of, model.attention.heads if model.has_attention else 1)
    while count < wanted:
        width += step
        try:
            chosen = replace(model, width=width)
        except ConfigError:  # a width that the recurrence or the positions do not have
            if width > 100 * LARGEST:
                raise
            continue
        count = count_parameters(chosen, vocabulary_size)
        if best is None or abs(count - wanted) < nearest:
            best, nearest = chosen, abs(count - wanted)
    assert best is not None
    return best


def count_parameters(model: Model, vocabulary_size: int) -> int:
    """Return the number of parameters of a model; nothing is allocated."""
    pattern = len(parse_layout(model.layout))
    of_pattern, of_token, rest = _sizes(replace(model, blocks=pattern))
    return of_pattern * (model.blocks // pattern) + of_token * vocabulary_size + rest


@cache  # a study asks for the same model again and again
def _sizes(model: Model) -> tuple[int, int, int]:
    """Return the parameters of the blocks, of each token of the vocabulary, and of the rest."""
    with torch.device("meta"):
        built = SequenceModel(model, 1)
    every, blocks, tokens = (
        sum(parameter.numel() for part in parts for parameter in part.parameters())
        for parts in ([built], [built.blocks], [built.embedding, built.logits])
    )
    return blocks, tokens, every - blocks - tokens
