"""Holding back in loops as people write them: accumulation, mixed precision, several processes."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latebloom import DelayedAttention, SequenceModel, at_step, hybrid


def build(seed=0) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel(hybrid(width=16, blocks=2), 20)


def backward(model, tokens, scale=1.0) -> None:
    (nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) * scale).backward()


def attention_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for name, p in model.named_parameters() if ".1.norm" in name or "queries" in name]


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_gradient_accumulation(hold):
    """Four backward passes a step are one step to the delay, and give what one pass over all of them gives."""
    batches = torch.randint(20, (6, 4, 2, 9))
    models = []
    for pieces in (4, 1):
        model = build().double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
        DelayedAttention(model, optimizer, until=at_step(3), hold=hold)
        before = attention_of(model)
        for step, batch in enumerate(batches):
            for piece in batch.flatten(0, 1).chunk(pieces):
                backward(model, piece, 1 / pieces)
            optimizer.step()
            optimizer.zero_grad()
            moved = any(not torch.equal(a, b) for a, b in zip(before, attention_of(model), strict=True))
            assert moved == (step >= 3)
        models.append(model)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_mixed_precision(hold):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    DelayedAttention(model, optimizer, until=at_step(2), hold=hold)
    scaler = torch.amp.GradScaler("cpu")
    before = attention_of(model)
    for step in range(4):
        tokens = torch.randint(20, (4, 9))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, attention_of(model), strict=True))
        assert moved == (step >= 2)


def train_between_processes() -> dict[str, torch.Tensor]:
    dist.init_process_group("gloo")
    model = build()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    DelayedAttention(model, optimizer, until=at_step(3))
    before = attention_of(model)
    torch.manual_seed(100 + dist.get_rank())  # other data on every rank
    for step in range(6):
        backward(wrapped, torch.randint(20, (4, 9)))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, attention_of(model), strict=True))
        assert moved == (step >= 3)
    return dict(model.state_dict())


def test_two_processes_stay_the_same_across_the_switch():
    first, second = run_ranks(train_between_processes)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
