"""AdamW over stacked models is torch's AdamW for each of them."""

import pytest
import torch

from latebloom.engine import adamw
from latebloom.engine.adamw import adamw_

S, SIZES = 3, (700, 900, 600)
ENDS = (700, 1600, 2200)
BETAS, DECAY = (0.9, 0.95), 0.1


def kernel(*arguments):
    pytest.importorskip("triton")
    adamw._kernel(*arguments)


@pytest.mark.parametrize("update", [adamw.adamw_loop, kernel])
def test_many_steps_are_those_of_torch(device, monkeypatch, update):
    monkeypatch.setattr(adamw, "_kernel", adamw._kernel if update is kernel else adamw.adamw_loop)
    monkeypatch.setattr(adamw, "adamw_loop", update)
    torch.manual_seed(0)
    start = torch.randn(S, sum(SIZES), device=device)
    ours = [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]
    rates = torch.rand(S, 3, device=device) / 10
    scale = torch.rand(S, device=device)
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
        counts = torch.full((S, 3), float(step), device=device)
        parameters, first, second = ours
        adamw_(BETAS, DECAY, parameters, gradients, first, second, ends=ENDS, scale=scale, rates=rates, counts=counts)
        for i, optimizer in enumerate(optimizers):
            for p, g in zip(theirs[i], (gradients[i] * scale[i]).split(SIZES), strict=True):
                p.grad = g.clone()
            optimizer.step()
    expected = torch.stack([torch.cat([p.detach() for p in parts]) for parts in theirs])
    torch.testing.assert_close(ours[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", [adamw.adamw_loop, kernel])
def test_what_is_held_back_does_not_move_by_a_bit(device, monkeypatch, update):
    monkeypatch.setattr(adamw, "_kernel", adamw._kernel if update is kernel else adamw.adamw_loop)
    monkeypatch.setattr(adamw, "adamw_loop", update)
    start = torch.randn(S, sum(SIZES), device=device)
    parameters, gradients = start.clone(), torch.randn_like(start)
    first, second = torch.randn_like(start), torch.rand_like(start)
    before = first.clone(), second.clone()
    counts = torch.ones(S, 3, device=device)
    counts[1, 2] = 0.0
    shared = {"scale": torch.ones(S, device=device), "rates": torch.full((S, 3), 0.1, device=device)}
    adamw_(BETAS, DECAY, parameters, gradients, first, second, ends=ENDS, counts=counts, **shared)
    moved = parameters != start
    assert moved[:, :1600].all()
    assert moved[[0, 2]].all()
    assert not moved[1, 1600:].any()
    assert torch.equal(first[1, 1600:], before[0][1, 1600:])
    assert torch.equal(second[1, 1600:], before[1][1, 1600:])


def test_columns_after_the_last_group_are_left_alone(device):
    start = torch.randn(S, sum(SIZES), device=device)
    parameters, zeros = start.clone(), torch.zeros_like(start)
    adamw_(
        BETAS, DECAY, parameters, torch.randn_like(start), zeros.clone(), zeros.clone(), ends=ENDS[:2],
        scale=torch.ones(S, device=device), rates=torch.full((S, 2), 0.1, device=device),
        counts=torch.ones(S, 2, device=device),
    )  # fmt: skip
    assert (parameters[:, :1600] != start[:, :1600]).all()
    assert torch.equal(parameters[:, 1600:], start[:, 1600:])
