"""Every score function trains with every recurrence and delay, alone and stacked, and resumes bit for bit."""

from dataclasses import replace

import pytest
import torch

from latebloom import Delay, at_step
from latebloom.engine.trainer import Trainer
from latebloom.layers.attention import Randomised, RandomWindow, Scores
from latebloom.models.settings import Recurrence

CPU = torch.device("cpu")
SCORES, RECURRENCES = (
    [name for name, member in family.members.items() if member.__module__.startswith("latebloom.layers.")]
    for family in (Scores, Recurrence)
)
VARIANTS = {
    "log_n at inference": {"scores": {"name": "log_n", "reference_length": 8, "only_at_inference": True}},
    "alibi": {"positions": "alibi", "scores": "entmax"},
    "randomised": {"positions": Randomised(context=64), "scores": "stick_breaking"},
    "randomised rotary": {"positions": Randomised(context=64, encoding="rotary")},
    "window": {"window": 3, "scores": "forgetting"},
    "random window": {"random_window": RandomWindow(tokens=2), "scores": "ssmax"},
}
HOLDS = {
    "bypass": Delay(until=at_step(2)),
    "freeze": Delay(until=at_step(2), hold="freeze"),
    "ramp": Delay(until=at_step(2), hold="ramp", ramp_steps=2),
}


def configure(tiny, delay: Delay, **attention):
    from latebloom.config import config_from

    phase = replace(tiny.training.full, batch_size=4)
    config = replace(tiny, delay=delay, training=replace(tiny.training, steps=12, delayed=phase, full=phase))
    if isinstance(scores := attention.get("scores"), dict):
        attention["scores"] = config_from({"model": {"attention": {"scores": scores}}}).model.attention.scores
    return replace(config, model=replace(config.model, attention=replace(config.model.attention, **attention)))


def advanced(trainer: Trainer, steps: int) -> Trainer:
    for _ in range(steps):
        trainer.advance()
    return trainer


def require_resumable(configs) -> Trainer:
    """Train five steps in one go, and three and two with a checkpoint between: the tensors are the same."""
    whole, first, second = (Trainer(configs, CPU) for _ in range(3))
    advanced(whole, 5)
    advanced(first, 3)
    second.load(first.tensors(), first.state())
    advanced(second, 2)
    for file, tensors in whole.tensors().items():
        for name, value in tensors.items():
            assert torch.equal(value, second.tensors()[file][name]), name
    whole.find_failures()
    assert whole.alive == list(range(len(configs)))
    return whole


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("scores", SCORES)
def test_every_score_function_trains_under_every_delay(tiny, scores, hold):
    train_alone_and_stacked(configure(tiny, HOLDS[hold], scores=scores))


@pytest.mark.slow
@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("recurrence", sorted(set(RECURRENCES) - {"lstm"}))
def test_every_recurrence_trains_with_every_score_function(tiny, recurrence, scores, hold):
    config = configure(tiny, HOLDS[hold], scores=scores)
    model = replace(config.model, recurrence=Recurrence.named(recurrence), blocks=1)
    train_alone_and_stacked(replace(config, model=model, training=replace(config.training, state_noise=0.1)))


@pytest.mark.parametrize("name", VARIANTS)
def test_positions_and_windows_train_too(tiny, name):
    train_alone_and_stacked(configure(tiny, HOLDS["freeze"], **VARIANTS[name]))


def train_alone_and_stacked(config) -> None:
    alone = require_resumable([config])
    together = require_resumable([config, replace(config, seed=1)])
    tokens = torch.randint(config.task.vocabulary_size, (4, 9), generator=torch.Generator().manual_seed(0))
    outputs = [trainer.backend.model(0).eval()(tokens) for trainer in (alone, together)]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)
    counts = [trainer.check(10)[0].answers for trainer in (alone, together)]
    assert all(abs(counts[0][name] - counts[1][name]) <= 2 for name in counts[0])
