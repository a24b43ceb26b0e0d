"""The LSTM is what the naive loop says it is."""

import pytest
import torch

from latebloom.kernels.lstm import Weights, lstm_loop
from latebloom.models.recurrent import LSTM, RECURRENCES


@pytest.mark.parametrize(("batch", "tokens", "width"), [(1, 1, 4), (3, 9, 8), (64, 25, 64)])
def test_the_lstm_computes_what_the_loop_computes(batch, tokens, width):
    torch.manual_seed(batch)
    lstm = LSTM(width).double()
    x = torch.randn(batch, tokens, width, dtype=torch.double, requires_grad=True)
    start = (torch.randn(batch, width).double(), torch.randn(batch, width).double())
    nothing = (torch.zeros(batch, width).double(), torch.zeros(batch, width).double())
    for state in (None, start):
        fast, fast_state = lstm(x, state)
        slow, *slow_state = lstm_loop(x, Weights(*lstm.parameters()), *(state or nothing))
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(fast_state, tuple(slow_state))
        weights = torch.randn_like(fast)
        inputs = [x, *lstm.parameters()]
        fast_grads = torch.autograd.grad((fast * weights).sum(), inputs)
        slow_grads = torch.autograd.grad((slow * weights).sum(), inputs)
        torch.testing.assert_close(fast_grads, slow_grads)


@pytest.mark.parametrize("name", RECURRENCES)
def test_a_recurrence_goes_on_where_its_state_was_left(name):
    recurrence = RECURRENCES[name](8)
    x = torch.randn(2, 10, 8)
    whole, whole_state = recurrence(x, None)
    first, state = recurrence(x[:, :6], None)
    second, last_state = recurrence(x[:, 6:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last_state, whole_state)
