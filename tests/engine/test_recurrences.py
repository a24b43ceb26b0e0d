"""Every recurrence of the package trains through a delay with state noise, alone and in a stack."""

from dataclasses import replace

import pytest
import torch

from latebloom import Delay, at_step
from latebloom.engine.trainer import Trainer
from latebloom.models.settings import Recurrence

CPU = torch.device("cpu")
OWN = [name for name, member in Recurrence.members.items() if member.__module__.startswith("latebloom.layers.")]


@pytest.mark.parametrize("name", sorted(OWN))
def test_runs_in_a_stack_follow_their_standalone_runs(name, tiny):
    recurrence = Recurrence.named(name)
    noise = 0.1 if recurrence.state_noise else 0.0
    model = replace(tiny.model, recurrence=recurrence)
    training = replace(tiny.training, steps=8, state_noise=noise, full=tiny.training.delayed)
    delays = (
        Delay(until=at_step(3)),
        Delay(until=at_step(4), hold="freeze"),
        Delay(until=at_step(2), hold="ramp", ramp_steps=4),
    )
    configs = [
        replace(tiny, model=model, training=training, seed=seed, delay=delay) for seed, delay in enumerate(delays)
    ]
    stack, alone = Trainer(configs, CPU), [Trainer([config], CPU) for config in configs]
    for _ in range(8):
        assert stack.advance() == [i for i, trainer in enumerate(alone) if trainer.advance()]
    together = stack.read_means()
    for i, trainer in enumerate(alone):
        assert together[i] == pytest.approx(trainer.read_means()[0], rel=1e-4)
