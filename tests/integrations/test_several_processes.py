"""Two processes through each trainer: they stay the same over the switch, and attention moves only after it."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import test_accelerate
import test_lightning
import test_transformers
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from latebloom.delay import at_step
from latebloom.integrations.lightning import DelayedAttention
from latebloom.integrations.transformers import DelayedAttentionCallback

Weights = dict[str, torch.Tensor]


def with_accelerate(hold: Any) -> tuple[list[Weights], list[str]]:
    loop = test_accelerate.Loop(until=at_step(2), hold=hold, clip=0.01)
    assert isinstance(loop.model, DistributedDataParallel)
    loop.batches = 4 * dist.get_rank()  # other data on every rank
    weights = [loop.weights()] + [loop.train(1).weights() for _ in range(4)]
    return weights, list(loop.delay.parameters())


def with_transformers(hold: Any) -> tuple[list[Weights], list[str]]:
    seen, callback = test_transformers.Snapshots(), DelayedAttentionCallback(until=at_step(2), hold=hold)
    with tempfile.TemporaryDirectory() as folder:
        # Torch's own default, which waits for every parameter's gradient; Trainer's would forgive one that is missing.
        trainer = test_transformers.trainer_for(Path(folder), callback, seen, ddp_find_unused_parameters=False)
        trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel)
    assert callback.delay is not None
    return [seen.at[step] for step in range(5)], list(callback.delay.parameters())


def with_lightning(hold: Any) -> tuple[list[Weights], list[str]]:
    seen, callback = test_lightning.Snapshots(), DelayedAttention(until=at_step(2), hold=hold)
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"devices": 2, "strategy": DDPStrategy(), "gradient_clip_val": 0.01}
        trainer = test_lightning.trainer_for(Path(folder), callback, seen, **settings)
        twice = test_lightning.DATA * 2
        trainer.fit(test_lightning.Hybrid(), DataLoader(twice, batch_size=2))  # type: ignore[arg-type] (a list will do)
    assert trainer.world_size == 2
    assert callback.delay is not None
    return [seen.at[step] for step in range(5)], list(callback.delay.parameters())


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize("trainer", [with_accelerate, with_transformers, with_lightning])
def test_two_processes_stay_the_same_and_attention_waits_for_the_switch(trainer, hold):
    (weights, attention), (others, _) = run_ranks(trainer, hold)
    assert attention
    for step, (one, other) in enumerate(zip(weights, others, strict=True)):
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == [], step
    for step in range(1, 5):
        moved = {name for name, value in weights[step].items() if not torch.equal(value, weights[step - 1][name])}
        assert moved & set(attention) == (set(attention) if step > 2 else set()), step
        assert moved - set(attention), step
