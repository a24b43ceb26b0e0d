"""The sizes of this package's studies at each scale, and changes to a run that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from latebloom.config import RunConfig
from latebloom.delay.policy import Delay
from latebloom.delay.triggers import Trigger, at_step
from latebloom.engine.settings import Phase, Training
from latebloom.evaluation.settings import Evaluating
from latebloom.models.match import count_parameters, nearest_width
from latebloom.models.settings import Model, hybrid
from latebloom.results.stated import Hypothesis
from latebloom.studies.plan import SPEED, Arm, Axis, Plan, Round, Scale
from latebloom.tasks import Composite, Task


@dataclass(frozen=True)
class Size:
    """Seeds, steps and widths of a study."""

    seeds: int
    """Seeds of each arm."""
    tuning_seeds: int
    """Held-out seeds, to choose the settings of each arm."""
    second_round: int
    """More held-out seeds, for the best settings of each arm."""
    steps: int
    width: int
    batch: int
    rates: tuple[float, ...]
    """The grid of learning rates, the same for every arm."""
    noise: float
    """The standard deviation of the state noise."""
    multiples: tuple[float, ...]
    sequences: int


TO_THREE, TO_EIGHT, TO_SIXTEEN = (1, 2, 3), (1, 2, 3, 4, 8), (0.4, 1, 1.2, 1.4, 2, 3, 4, 6, 8, 16)
"""Tested lengths, in training lengths."""

SIZES: dict[Scale, Size] = {
    "tiny": Size(
        seeds=2, tuning_seeds=1, second_round=1, steps=60, width=16, batch=16,
        rates=(6e-3,), noise=0.3, multiples=TO_THREE, sequences=64,
    ),
    # The demo's model and steps. The studies that have this scale say which of their arms and tasks it leaves out.
    "small": Size(
        seeds=10, tuning_seeds=2, second_round=0, steps=1_800, width=64, batch=64,
        rates=(3e-3, 6e-3, 1.2e-2), noise=0.1, multiples=TO_EIGHT, sequences=512,
    ),
    "paper": Size(
        seeds=20, tuning_seeds=2, second_round=4, steps=20_000, width=64, batch=64,
        rates=(1e-3, 3e-3, 6e-3, 1.2e-2), noise=0.3, multiples=TO_SIXTEEN, sequences=1024,
    ),
    "large": Size(
        seeds=20, tuning_seeds=3, second_round=4, steps=40_000, width=256, batch=128,
        rates=(5e-4, 1e-3, 2e-3, 4e-3), noise=0.3, multiples=TO_SIXTEEN, sequences=2048,
    ),
}  # fmt: skip
# Sizes of studies with many arms and no tuning: fewer steps; noise and seeds are those of `timing`.
MANY_ARMS: dict[Scale, Size] = {
    "tiny": replace(SIZES["tiny"], rates=(3e-3, 6e-3), noise=0.2),
    "paper": replace(SIZES["paper"], seeds=10, steps=10_000, rates=(6e-3, 1.2e-2), noise=0.2),
    "large": replace(SIZES["large"], steps=20_000, width=128, batch=64, rates=(2e-3, 4e-3), noise=0.2),
}
FIRST_TUNING_SEED = 1_000
"""The first held-out seed."""
FIRST_FRESH_SEED = 5_000
"""The first reported seed of later studies; no setting was chosen on these seeds. Those of the first studies begin
at 0."""


def fresh_seeds(count: int) -> range:
    """Return the first fresh seeds."""
    return range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + count)


def middle_rates(size: Size) -> tuple[float, float]:
    """Return the two learning rates in the middle of the grid; if it has only one, twice this one."""
    middle = len(size.rates) // 2
    return size.rates[middle - 1], size.rates[middle]


def held_out(size: Size) -> dict[str, Any]:
    """Return the held-out seeds of both rounds of tuning, as arguments of `Plan`."""
    second = FIRST_TUNING_SEED + size.tuning_seeds
    return {
        "tuning_seeds": range(FIRST_TUNING_SEED, second),
        "second_round": range(second, second + size.second_round),
    }


def halving(size: Size, keep: Mapping[float, int | None]) -> tuple[Round, ...]:
    """Return rounds of tuning that end early, each by its share of the steps with the number of choices that go on, and
    a last one to the end, with the seeds of the second round."""
    seeds = held_out(size)
    early = [
        Round(seeds=() if number else seeds["tuning_seeds"], share=share, keep=kept)
        for number, (share, kept) in enumerate(keep.items())
    ]
    return (*early, Round(seeds=seeds["second_round"]))


def fresh_plan(
    scale: Scale,
    size: Size,
    arms: Sequence[Arm],
    rounds: Mapping[float, int | None],
    hypotheses: Sequence[Hypothesis],
    speed: float = SPEED,
) -> Plan:
    """Return a plan on fresh seeds, with rounds of tuning as in `halving`; at scale tiny there is one early round."""
    tuning = halving(size, {0.5: 1} if scale == "tiny" else rounds)
    return Plan(arms, fresh_seeds(size.seeds), rounds=tuning, hypotheses=hypotheses, speed=speed)


FURTHER = (2.0, 4.0)
"""Factors from the ends of a range of learning rates to further ones."""


def rate_axis(rates: Sequence[float]) -> Axis | None:
    """Return the range of learning rates, with further ones on either side; None for fewer than three rates, of which
    one is always at an end."""
    if len(rates) < 3:
        return None
    return Axis(
        fields=("training.delayed.learning_rate", "training.full.learning_rate"),
        below=tuple(min(rates) / factor for factor in FURTHER),
        above=tuple(max(rates) * factor for factor in FURTHER),
    )


ATTENTION: dict[str, Any] = {"look_back": True, "zero_output": True}
"""The attention of the studies: keys look back one token, and the output starts at zero."""
LOG_N: dict[str, Any] = {**ATTENTION, "scores": "log_n"}
"""The same with log-n scaling of the scores."""


def base_config(size: Size, task: Task, model: Model | None = None) -> RunConfig:
    """Return a run with joint training, of the hybrid unless a model is given."""
    phase = Phase(batch_size=size.batch, learning_rate=middle_rates(size)[0], warmup=min(200, size.steps // 10))
    every = max(10, size.steps // 50)
    return RunConfig(
        task=task,
        model=model or hybrid(width=size.width, **ATTENTION),
        training=Training(
            steps=size.steps,
            delayed=phase,
            full=phase,
            betas=(0.9, 0.95),
            log_every=every,
            check_every=5 * every,
            checkpoint_every=5 * every,
        ),
        evaluation=Evaluating(multiples=size.multiples, sequences=size.sequences),
    )


def composite(**settings: Any) -> Composite:
    """Return the composite task with enough keys for sixteen times the training length."""
    return replace(Composite(keys=256), **settings)


def small_composite(**settings: Any) -> Composite:
    """Return the composite task as the demo has it, with enough keys for eight times the training length."""
    return replace(Composite(modulus=5, keys=128, values=32), **settings)


def as_large_as(model: Model, reference: Model, task: Task, multiple_of: int = 4) -> Model:
    """Return the model with the width, a multiple of a number, at which it has about as many parameters as another."""
    wanted = count_parameters(reference, task.vocabulary_size)
    return nearest_width(model, wanted, task.vocabulary_size, multiple_of)


def delayed(config: RunConfig, until: Trigger | None = None, **settings: Any) -> RunConfig:
    """Return the run with attention held back, by default for half of its steps."""
    return replace(config, delay=Delay(until=until or at_step(config.training.steps // 2), **settings))


def staged(config: RunConfig, until: Trigger | None = None, **settings: Any) -> RunConfig:
    """Return the run in two stages: until the switch, attention is held back and only the state answer is in the loss.

    One learning rate schedule covers both stages, as in joint training. On the composite task this was best.
    """
    task = config.task
    later = tuple(answer for answer in task.answers if task.state_answer not in (None, answer))
    return delayed(with_training(config, restart=False), until, withhold=later, **settings)


def with_training(config: RunConfig, **settings: Any) -> RunConfig:
    """Return the run with other settings of training."""
    return replace(config, training=replace(config.training, **settings))


def with_attention(config: RunConfig, **settings: Any) -> RunConfig:
    """Return the run with other settings of attention."""
    return replace(config, model=replace(config.model, attention=replace(config.model.attention, **settings)))


def with_state_noise(config: RunConfig, size: Size) -> RunConfig:
    """Return the run with state noise."""
    return with_training(config, state_noise=size.noise)


def at_rate(config: RunConfig, rate: float, after: float | None = None) -> RunConfig:
    """Return the run with another learning rate; `after` is the rate after the switch, if it differs."""
    delayed = replace(config.training.delayed, learning_rate=rate)
    full = replace(config.training.full, learning_rate=rate if after is None else after)
    return with_training(config, delayed=delayed, full=full)
