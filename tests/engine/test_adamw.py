"""AdamW over stacked models is torch's AdamW for each of them."""

from typing import Any

import pytest
import torch

from latebloom.engine import adamw
from latebloom.engine.adamw import adamw_

S, SIZES = 3, (700, 900, 600)
ENDS = (700, 1600, 2200)
BETAS, DECAY, CLIP = (0.9, 0.95), 0.1, 20.0


KERNEL = adamw._kernel


def kernel(*arguments):
    pytest.importorskip("triton")
    return KERNEL(*arguments)


def pieces(row: torch.Tensor, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return a row (S, P) as gradients that lie apart in memory, one of them transposed."""
    parts = [part.clone() for part in row.split(sizes, dim=1)]
    return [parts[0].T.clone().T, *(part.unflatten(1, (2, -1)) for part in parts[1:])]


@pytest.fixture(params=["loop", "kernel"])
def update(request, monkeypatch):
    """Updates by the loop, or by the kernel in launches of two gradients."""
    if request.param == "kernel":
        from latebloom.engine import adamw_triton

        monkeypatch.setattr(adamw_triton, "MOST_GRADIENTS", 2)
        monkeypatch.setattr(adamw_triton, "_plan", adamw_triton._plan.__wrapped__)
    chosen = kernel if request.param == "kernel" else adamw.adamw_loop
    monkeypatch.setattr(adamw, "_kernel", chosen)
    monkeypatch.setattr(adamw, "adamw_loop", chosen)
    return request.param


def test_many_steps_are_those_of_torch(device, update):
    torch.manual_seed(0)
    start = torch.randn(S, sum(SIZES), device=device)
    parameters, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    rates = torch.rand(S, 3, device=device) / 10
    theirs = [[torch.nn.Parameter(part.clone()) for part in start[i].split(SIZES)] for i in range(S)]
    optimizers = [
        torch.optim.AdamW(
            [{"params": [p], "lr": float(rate)} for p, rate in zip(theirs[i], rates[i], strict=True)],
            betas=BETAS, weight_decay=DECAY,
        )
        for i in range(S)
    ]  # fmt: skip
    for step in range(1, 6):
        gradients = torch.randn_like(start)
        gradients[0] /= 100  # is not clipped
        counts = torch.full((S, 3), float(step), device=device)
        norms = adamw_(
            BETAS, DECAY, CLIP, parameters, pieces(gradients, (700, 896, 4, 600)), first, second, ends=ENDS,
            rates=rates, counts=counts,
        )  # fmt: skip
        for i, optimizer in enumerate(optimizers):
            for p, g in zip(theirs[i], gradients[i].split(SIZES), strict=True):
                p.grad = g.clone()
            expected = torch.nn.utils.clip_grad_norm_(theirs[i], CLIP)
            torch.testing.assert_close(norms[i], expected)
            optimizer.step()
    expected = torch.stack([torch.cat([p.detach() for p in parts]) for parts in theirs])
    torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(700, 896, 4, 600), (2200,)])
def test_what_is_held_back_does_not_move_by_a_bit_and_is_not_in_the_norm(device, update, sizes):
    start = torch.randn(S, sum(SIZES), device=device)
    parameters, gradients = start.clone(), torch.randn_like(start)
    gradients[1, 1600:] = torch.nan
    first, second = torch.randn_like(start), torch.rand_like(start)
    before = first.clone(), second.clone()
    counts = torch.ones(S, 3, device=device)
    counts[1, 2] = 0.0
    norms = adamw_(
        BETAS, DECAY, CLIP, parameters, pieces(gradients, sizes), first, second, ends=ENDS, counts=counts,
        rates=torch.full((S, 3), 0.1, device=device), some_rest=True,
    )  # fmt: skip
    gradients[1, 1600:] = 0.0
    torch.testing.assert_close(norms, gradients.norm(dim=1))
    moved = parameters != start
    assert moved[:, :1600].all()
    assert moved[[0, 2]].all()
    assert not moved[1, 1600:].any()
    assert torch.equal(first[1, 1600:], before[0][1, 1600:])
    assert torch.equal(second[1, 1600:], before[1][1, 1600:])


def test_columns_after_the_last_group_are_left_alone(device, update):
    start = torch.randn(S, sum(SIZES), device=device)
    parameters, zeros = start.clone(), torch.zeros_like(start)
    adamw_(
        BETAS, DECAY, CLIP, parameters, [torch.randn(S, 1600, device=device)], zeros.clone(), zeros.clone(),
        ends=ENDS[:2], rates=torch.full((S, 2), 0.1, device=device), counts=torch.ones(S, 2, device=device),
    )  # fmt: skip
    assert (parameters[:, :1600] != start[:, :1600]).all()
    assert torch.equal(parameters[:, 1600:], start[:, 1600:])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies infinities
def test_kernel_and_loop_agree_in_late_steps_and_where_a_gradient_is_not_finite(device, monkeypatch):
    pytest.importorskip("triton")

    start, gradients = torch.randn(2, S, sum(SIZES), device=device)
    gradients[1, 5] = torch.inf
    gradients[2, 5] = torch.nan
    moments = torch.randn_like(start), torch.rand_like(start)
    counts = torch.tensor([[1.0, 3e4, 200.0]], device=device).expand(S, 3)
    controls = torch.cat([torch.full((S, 3), 0.1, device=device), counts], dim=1)  # rates and counts stand apart
    found = []
    functions: list[Any] = [adamw.adamw_loop, KERNEL]
    for function in functions:
        tensors = [start.clone(), *(moment.clone() for moment in moments)]
        norms = function(
            BETAS, DECAY, 1e-8, CLIP, tensors[0], [gradients], *tensors[1:], ENDS, *controls.split(3, dim=1), False
        )
        found.append([norms, *tensors])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
