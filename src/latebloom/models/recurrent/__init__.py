"""Recurrences, chosen by name. A recurrence maps a sequence to a sequence and carries a state.

    outputs, state = recurrence(inputs, state)        # (B, T, D), any state -> (B, T, D), the state after T

`state` is None at the start; giving back the returned state goes on where the sequence stopped. To add one,
write a module that is built from the width alone and put it into RECURRENCES.
"""

from collections.abc import Callable

from torch import nn

from latebloom.models.recurrent.lstm import LSTM

RECURRENCES: dict[str, Callable[[int], nn.Module]] = {"lstm": LSTM}

__all__ = ["LSTM", "RECURRENCES"]
