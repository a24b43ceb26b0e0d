"""Noise on what recurrences remember: what it is, and that it is a pure function of seed and batch."""

from dataclasses import replace

import pytest
import torch

from latebloom.engine.noise import state_noise, uniform_noise
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.layers.lstm import LSTMLayer
from latebloom.layers.lstm.operation import Weights, lstm_loop
from latebloom.models.block import Residual
from latebloom.models.sequence_model import SequenceModel
from latebloom.models.settings import hybrid, transformer

CPU = torch.device("cpu")


def recurrences_of(model):
    return [part for part in model.modules() if isinstance(part, Residual) and part.role == "recurrence"]


def trained(config, deviation, steps=3):
    trainer = Trainer([replace(config, training=replace(config.training, state_noise=deviation))], CPU)
    for _ in range(steps):
        trainer.advance()
    return trainer.backend.model(0)


def test_the_numbers_have_mean_0_and_deviation_1():
    found = uniform_noise(5, torch.arange(500), 0, 64)
    assert found.mean().abs() < 0.02
    assert found.std() == pytest.approx(1.0, abs=0.02)
    assert found.abs().max() <= 3**0.5


def test_every_recurrence_sequence_token_seed_and_batch_has_its_own():
    model = SequenceModel(hybrid(width=16, blocks=2), vocabulary_size=20)
    recurrences = recurrences_of(model)

    def drawn(seed, index):
        with state_noise(recurrences, 0.5, seed, torch.tensor(index), (4, 7)):
            return torch.stack([part.noise for part in recurrences if part.noise is not None])

    one = drawn(1, 7)
    assert one.shape == (2, 4, 7, 16)
    assert len(one.flatten(0, 2).unique(dim=0)) == 2 * 4 * 7
    assert one.std() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(drawn(1, 7), one)
    assert not torch.equal(drawn(2, 7), one)
    assert not torch.equal(drawn(1, 8), one)
    assert all(part.noise is None for part in recurrences)


def test_an_lstm_remembers_it_from_token_to_token():
    model = SequenceModel(hybrid(width=16, blocks=1), vocabulary_size=20)
    (part,) = recurrences_of(model)
    x, noise = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    assert isinstance(part.body, LSTMLayer)
    undisturbed = part(x)
    part.noise = noise
    normed, weights = part.norm(x), Weights(*part.body.cell.all_weights[0])
    hidden = memory = torch.zeros(3, 16)
    outputs = []
    for t in range(5):  # one token at a time without noise, and the noise added to the state in between
        _, _, memory = lstm_loop(normed[:, t : t + 1], weights, hidden, memory)
        memory = memory + noise[:, t]
        gates = normed[:, t] @ weights.input.mT + hidden @ weights.hidden.mT + weights.input_bias + weights.hidden_bias
        hidden = gates.chunk(4, dim=-1)[3].sigmoid() * memory.tanh()
        outputs.append(hidden)
    torch.testing.assert_close(part(x), x + torch.stack(outputs, dim=1))
    assert not torch.allclose(part(x), undisturbed)


def test_training_depends_on_it_repeats_itself_and_leaves_nothing_behind(tiny):
    plain, some, again = (trained(tiny, deviation) for deviation in (0.0, 0.5, 0.5))
    assert all(torch.equal(one, other) for one, other in zip(some.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(one, other) for one, other in zip(some.parameters(), plain.parameters(), strict=True))
    assert all(part.noise is None for part in recurrences_of(some))  # tests are without


def test_no_noise_is_the_same_run_however_it_is_written(tiny):
    one, other = trained(tiny, 0), trained(tiny, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_what_was_given_is_taken_back_also_where_drawing_it_fails(monkeypatch):
    model = SequenceModel(hybrid(width=16, blocks=2), vocabulary_size=20)
    drawn = []

    def fails_at_the_second(*words):
        drawn.append(words)
        if len(drawn) == 2:
            raise RuntimeError("no memory is left")
        return uniform_noise(*words)

    monkeypatch.setattr("latebloom.engine.noise.uniform_noise", fails_at_the_second)
    with pytest.raises(RuntimeError), state_noise(recurrences_of(model), 0.5, 1, torch.tensor(0), (4, 7)):
        pass
    assert all(part.noise is None for part in recurrences_of(model))


@pytest.mark.parametrize("deviation", [-0.1, 5.0, float("nan")])
def test_bad_deviations_are_refused(tiny, deviation):
    with pytest.raises(ConfigError, match="state_noise"):
        replace(tiny.training, state_noise=deviation)


def test_a_model_without_a_recurrence_is_refused(tiny):
    training = replace(tiny.training, state_noise=0.1)
    with pytest.raises(ConfigError, match="layout 'am' has no recurrence"):
        replace(tiny, model=transformer(width=16), delay=None, training=training)
