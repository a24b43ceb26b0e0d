"""Random first states: what they are, and that they are a pure function of seed and batch."""

from dataclasses import replace

import pytest
import torch

from latebloom.errors import ConfigError
from latebloom.models.block import Residual
from latebloom.models.sequence_model import SequenceModel
from latebloom.models.settings import hybrid, transformer
from latebloom.training.start import RandomStarts, spread
from latebloom.training.trainer import Trainer

CPU = torch.device("cpu")


def recurrences_of(model):
    return [part for part in model.modules() if isinstance(part, Residual) and part.role == "recurrence"]


def trained(config, size, steps=3):
    trainer = Trainer(replace(config, training=replace(config.training, random_start=size)), CPU)
    for _ in range(steps):
        trainer.advance()
    return trainer.model


def test_the_numbers_have_mean_0_and_deviation_1():
    found = spread(5, torch.arange(500), 0, 64)
    assert found.mean().abs() < 0.02
    assert found.std() == pytest.approx(1.0, abs=0.02)
    assert found.abs().max() <= 3**0.5


def test_every_recurrence_sequence_seed_and_batch_begins_elsewhere():
    model = SequenceModel(hybrid(width=16, blocks=2), vocabulary_size=20)
    starts = RandomStarts(model, 0.5)
    recurrences = recurrences_of(model)

    def drawn(seed, index):
        with starts.given(seed, torch.tensor(index), 4):
            return torch.stack([part.start for part in recurrences if part.start is not None])  # (2, 4, 16)

    one = drawn(1, 7)
    assert one.shape == (2, 4, 16)
    assert len(one.flatten(0, 1).unique(dim=0)) == 8
    assert torch.equal(drawn(1, 7), one)
    assert not torch.equal(drawn(2, 7), one)
    assert not torch.equal(drawn(1, 8), one)
    assert all(part.start is None for part in recurrences)


def test_a_recurrence_begins_with_what_it_is_given():
    model = SequenceModel(hybrid(width=16, blocks=1), vocabulary_size=20)
    (part,) = recurrences_of(model)
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 16)
    at_zero = part(x)
    part.start = memory
    outputs, _ = part.body(part.norm(x), (memory.tanh() / 2, memory))
    torch.testing.assert_close(part(x), x + outputs)
    assert not torch.allclose(part(x), at_zero)


def test_training_depends_on_it_repeats_itself_and_leaves_nothing_behind(tiny):
    plain, some, again = (trained(tiny, size) for size in (0.0, 0.5, 0.5))
    assert all(torch.equal(one, other) for one, other in zip(some.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(one, other) for one, other in zip(some.parameters(), plain.parameters(), strict=True))
    assert all(part.start is None for part in recurrences_of(some))  # tests begin at zero


def test_bad_sizes_and_models_without_a_recurrence_are_refused(tiny):
    with pytest.raises(ConfigError, match="random_start"):
        replace(tiny.training, random_start=-0.1)
    training = replace(tiny.training, random_start=0.5)
    with pytest.raises(ConfigError, match="layout 'am' has no recurrence"):
        replace(tiny, model=transformer(width=16), delay=None, training=training)
