"""Every recurrence trains with every score function and delay, alone and stacked, and resumes bit for bit."""

from copy import deepcopy
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
HOLDS = (
    Delay(until=at_step(1)),
    Delay(until=at_step(3), hold="freeze"),
    Delay(until=at_step(1), hold="ramp", ramp_steps=2),
)


def configure(tiny, recurrence: str, **attention):
    """Return a run with each kind of delay; the checkpoint after two steps is after, before and amid the switch."""
    from latebloom.config import config_from

    phase = replace(tiny.training.full, batch_size=2)
    training = replace(tiny.training, length=3, steps=12, state_noise=0.1, delayed=phase, full=phase)
    if isinstance(scores := attention.get("scores"), dict):
        attention["scores"] = config_from({"model": {"attention": {"scores": scores}}}).model.attention.scores
    model = replace(tiny.model, recurrence=Recurrence.named(recurrence), blocks=1)
    model = replace(model, attention=replace(model.attention, **attention))
    config = replace(tiny, model=model, training=training, delay=None)
    return [replace(config, seed=seed, delay=delay) for seed, delay in enumerate(HOLDS)]


def trained(configs) -> Trainer:
    """Train four steps, the last two of them also by another trainer from a checkpoint: the tensors are the same."""
    whole, resumed = Trainer(configs, CPU), Trainer(configs, CPU)
    for _ in range(2):
        whole.advance()
    resumed.load(*deepcopy((whole.tensors(), whole.state())))  # as a file would, share nothing
    for _ in range(2):
        whole.advance()
        resumed.advance()
    for file, tensors in whole.tensors().items():
        for name, value in tensors.items():
            assert torch.equal(value, resumed.tensors()[file][name]), name
    whole.find_failures()
    assert whole.alive == list(range(len(configs)))
    return whole


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_every_recurrence_trains_with_every_score_function_under_every_delay(tiny, recurrence, scores):
    train_alone_and_stacked(configure(tiny, recurrence, scores=scores))


@pytest.mark.parametrize("name", VARIANTS)
def test_positions_and_windows_train_too(tiny, name):
    train_alone_and_stacked(configure(tiny, "lstm", **VARIANTS[name]))


def train_alone_and_stacked(configs) -> None:
    together = trained(configs)
    task = configs[0].task
    tokens = torch.randint(task.vocabulary_size, (4, 9), generator=torch.Generator().manual_seed(0))
    for place, config in enumerate(configs):
        alone = trained([config])
        outputs = [trainer.backend.model(i).eval()(tokens) for trainer, i in ((alone, 0), (together, place))]
        torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)
