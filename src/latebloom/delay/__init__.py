"""Delayed attention training, for any model that torch can train."""

from latebloom.delay.controller import DelayedAttention
from latebloom.delay.find import find_attention
from latebloom.delay.triggers import Trigger, at_fraction, at_step, when_beyond

__all__ = ["DelayedAttention", "Trigger", "at_fraction", "at_step", "find_attention", "when_beyond"]
