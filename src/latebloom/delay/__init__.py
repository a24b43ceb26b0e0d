"""Delayed attention training for any PyTorch model."""

from latebloom.delay.find import find_attention
from latebloom.delay.hooks import DelayedAttention
from latebloom.delay.triggers import Trigger, at_fraction, at_step, at_tokens, when, when_beyond, when_plateau

__all__ = [
    "DelayedAttention",
    "Trigger",
    "at_fraction",
    "at_step",
    "at_tokens",
    "find_attention",
    "when",
    "when_beyond",
    "when_plateau",
]
