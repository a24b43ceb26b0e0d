"""Named recipes: functions that return a full RunConfig. `latebloom list` shows their first lines."""

from abc import ABC, abstractmethod

from latebloom.components import Component, define
from latebloom.config import RunConfig
from latebloom.delay.policy import Delay
from latebloom.delay.triggers import at_step
from latebloom.engine.settings import LossAverage, Phase, Training
from latebloom.models.settings import Model, hybrid, lstm, transformer
from latebloom.studies.scales import (
    ATTENTION,
    LOG_N,
    SIZES,
    at_rate,
    base_config,
    composite,
    staged,
    with_state_noise,
    with_training,
)
from latebloom.tasks import Composite


class Recipe(Component, ABC):
    """A named configuration."""

    @abstractmethod
    def build(self) -> RunConfig:
        """Return the configuration."""


def recipe(name: str) -> RunConfig:
    """Return the configuration of a named recipe."""
    return Recipe.named(name).build()


# The demo takes three minutes on two CPU cores. Two settings differ from the paper's form, because so few steps need
# them: attention's keys look back one token, and the recall loss starts at the switch. Joint training has the same
# model, data and number of steps.

DEMO_STEPS, DEMO_SWITCH = 1_800, 900


def _demo(delay: Delay | None) -> RunConfig:
    return RunConfig(
        task=Composite(modulus=5, keys=128, values=32),
        model=hybrid(width=64, look_back=True, zero_output=True),
        delay=delay,
        training=Training(
            steps=DEMO_STEPS,
            betas=(0.9, 0.95),
            delayed=Phase(learning_rate=6e-3, batch_size=64),
            full=Phase(learning_rate=3e-3, batch_size=64),
        ),
    )


@define(Recipe, "demo-dat")
def demo_dat() -> RunConfig:
    """The demo's hybrid with delayed attention: composite task, width 64, minutes on a CPU core."""
    return _demo(Delay(until=at_step(DEMO_SWITCH), withhold=("recall",)))


@define(Recipe, "demo-joint")
def demo_joint() -> RunConfig:
    """The demo's hybrid with joint training and the same steps."""
    return _demo(None)


# The arms of the study `paper` on the composite task, each with its tuned settings (docs/results): width 64, sums
# modulo 10, 64 values, and keys for sixteen times the training length. Minutes on a GPU, hours on a CPU. A test checks
# that they are the runs in results/paper.parquet.

PAPER = SIZES["paper"]


def _paper(model: Model, rate: float, weigh: LossAverage = "answers") -> RunConfig:
    return with_training(at_rate(base_config(PAPER, composite(), model), rate), weigh=weigh)


@define(Recipe, "paper-dat")
def paper_dat() -> RunConfig:
    """The study's hybrid with delayed attention, tuned: attention and the recall loss start halfway."""
    return staged(with_state_noise(_paper(hybrid(width=PAPER.width, **LOG_N), 1.2e-2), PAPER))


@define(Recipe, "paper-joint")
def paper_joint() -> RunConfig:
    """The study's hybrid with joint training, tuned."""
    return _paper(hybrid(width=PAPER.width, **ATTENTION), 6e-3, "positions")


@define(Recipe, "paper-joint-asked-late")
def paper_joint_asked_late() -> RunConfig:
    """The study's hybrid with attention from the start and the recall loss in the second half of its steps, tuned."""
    return staged(_paper(hybrid(width=PAPER.width, **ATTENTION), 6e-3, "positions"), hold="none")


@define(Recipe, "paper-lstm")
def paper_lstm() -> RunConfig:
    """The study's LSTM, tuned: the same blocks without attention."""
    return _paper(lstm(width=PAPER.width), 6e-3)


@define(Recipe, "paper-transformer")
def paper_transformer() -> RunConfig:
    """The study's Transformer, tuned: the same blocks without recurrence, and no positions."""
    return _paper(transformer(width=PAPER.width, **{**ATTENTION, "positions": "none"}), 1e-3, "positions")
