"""The width at which a model has as many parameters as another."""

import re
from dataclasses import replace

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
    parts = re.fullmatch(r"(.+)-([1-9]\d*)", reference) if isinstance(reference, str) else None
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
    best, nearest, width, count = None, 0, 0, 0
    step = model.attention.heads if model.has_attention else 1
    while count < 2 * wanted:
        width += step
        try:
            chosen = replace(model, width=width)
        except ConfigError:  # a width that the recurrence or the positions do not have
            require(width < 100 * int(parts[2]), FIELD, reference, "a model that some width comes near")
            continue
        count = count_parameters(chosen, vocabulary_size)
        if best is None or abs(count - wanted) < nearest:
            best, nearest = chosen, abs(count - wanted)
    assert best is not None
    return best


def count_parameters(model: Model, vocabulary_size: int) -> int:
    """Return the number of parameters of a model; nothing is allocated."""
    pattern = len(parse_layout(model.layout))
    repeats = model.blocks // pattern
    if repeats > 2:  # two repetitions say how many each further one adds
        one, two = (count_parameters(replace(model, blocks=n * pattern), vocabulary_size) for n in (1, 2))
        return one + (repeats - 1) * (two - one)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in SequenceModel(model, vocabulary_size).parameters())
