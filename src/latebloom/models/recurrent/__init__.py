"""Recurrences, chosen by name. A recurrence maps a sequence to a sequence and carries a state.

    outputs, state = recurrence(inputs, state)        # (B, T, D), any state -> (B, T, D), the state after T

`state` is None at the start; giving back the returned state goes on where the sequence stopped. To add one, write a
Recurrence that is built from the width alone and put it into RECURRENCES.
"""

from collections.abc import Callable

from latebloom.models.recurrent.lstm import LSTM
from latebloom.models.recurrent.recurrence import Recurrence

RECURRENCES: dict[str, Callable[[int], Recurrence]] = {"lstm": LSTM}

__all__ = ["LSTM", "RECURRENCES", "Recurrence"]
