"""The kernels around a step of training, for the loss and for the log, do what their plain forms do."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.engine.loss import FusedLosses
from latebloom.engine.record import record_plainly

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("models", "batch", "ends", "vocabulary"),
    [(2, 3, (4, 5), 20), (1, 40, (1,), 65), (3, 7, (1, 2, 12), 332), (2, 2, (1, 3), 5000)],
)
def test_the_losses_of_all_answers_and_their_gradient(device, models, batch, ends, vocabulary):
    logits = 4 * torch.randn(models, batch, ends[-1], vocabulary, device=device)
    logits[0, 0, 0] += 1e4  # overflows where the largest is not subtracted
    targets = torch.randint(vocabulary, logits.shape[:-1], device=device)
    slopes = torch.randn(len(ends), models, device=device).T  # lie apart in memory, as those of an unbound tensor

    def plain(logits: Tensor) -> Tensor:
        columns = [slice(start, end) for start, end in zip((0, *ends), ends, strict=False)]
        each = [
            [F.cross_entropy(one[:, part].flatten(0, 1), target[:, part].flatten()) for part in columns]
            for one, target in zip(logits, targets, strict=True)
        ]
        return torch.stack([torch.stack(losses) for losses in each])

    given, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, expected = FusedLosses.apply(given, targets, ends), plain(exact)
    (grad,), (exact_grad,) = torch.autograd.grad(found, given, slopes), torch.autograd.grad(expected, exact, slopes)
    for got, wanted in ((found, expected), (grad, exact_grad)):
        assert float((got.detach() - wanted.detach()).norm() / wanted.detach().norm()) < 2e-6


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter calculates with NaN
def test_a_loss_that_is_not_a_number_stays_one(device):
    logits = torch.randn(4, 2, 3, 7, device=device)
    logits[1, 1, 2, 3], logits[2, 0, 0, 0] = torch.nan, torch.inf
    losses = FusedLosses.apply(logits, torch.zeros(4, 2, 3, dtype=torch.int64, device=device), (1, 3))
    assert losses.isfinite().tolist() == [[True, True], [True, False], [False, True], [True, True]]


def test_the_log_is_that_of_the_plain_form_bit_for_bit(device):
    from latebloom.engine import record_triton

    runs, answers = 5, 2
    sums, controls = torch.randn(runs, 2 + answers, device=device), torch.rand(runs, 7, device=device)
    first_bad, index = torch.tensor([-1, -1, -1, -1, 3], device=device), torch.tensor(8, device=device)
    losses, norms, each = (torch.rand(*shape, device=device) for shape in ((runs,), (runs,), (answers, runs)))
    losses[1], norms[2], losses[4] = torch.nan, torch.inf, torch.nan
    found = []
    functions: list[Any] = [record_plainly, record_triton.record]
    for function in functions:
        kept = [part.clone() for part in (sums, first_bad, index)]
        function(*kept, losses, norms, each.T, controls[:, 3:5])
        found.append(kept)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert found[0][1].tolist() == [-1, 8, 8, -1, 3]
