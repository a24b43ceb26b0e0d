"""The study `mechanism`: why delayed attention helps, with the gradients recorded while the runs train.

The arms are joint training and DAT as the study `paper` tunes them, on the composite task and on modular sum alone,
where nothing is to be recalled. At scale `paper` they have the settings that `paper` chose, and a third arm delays
attention with the settings of joint training, so that it differs from it in the delay alone. At the other scales the
two arms are tuned here. The runs are probed at the end, and the report has the verdicts.
"""

from collections.abc import Callable
from dataclasses import replace

from latebloom.config import RunConfig
from latebloom.models.settings import hybrid
from latebloom.results.stated import Difference, Hypothesis
from latebloom.studies.paper import grid
from latebloom.studies.plan import SCALES, Arm, Plan, Scale, study
from latebloom.studies.scales import (
    ATTENTION,
    SIZES,
    Size,
    at_rate,
    base_config,
    composite,
    delayed,
    fresh_seeds,
    held_out,
    rate_axis,
    small_composite,
    staged,
    with_attention,
    with_state_noise,
    with_training,
)
from latebloom.tasks import Composite, ModularSum, Task

PROBE_EVERY = 100
"""Steps between measurements of interference at full scale."""
MATCHED = "dat (settings of joint)"
"""The arm that differs from joint training in the delay alone."""


@study("mechanism", SCALES)
def mechanism(scale: Scale) -> Plan:
    """Joint training and DAT, tuned as in `paper`, with their gradients recorded: composite task, modular sum alone."""
    size = SIZES[scale]
    alone = replace(size, steps=size.steps // 2)
    far = max(size.multiples)
    if scale == "paper":
        arms = [*_tuned(size, composite()), *_tuned(alone, ModularSum())]
        return Plan(arms, fresh_seeds(size.seeds), hypotheses=_hypotheses(far, "dat", MATCHED), probed=True)
    if scale == "small":
        arms = [*_arms(size, small_composite(), _rates), *_arms(size, ModularSum(modulus=5), _rates)]
    else:
        arms = [*_arms(size, composite(), grid), *_arms(alone, ModularSum(), grid)]
    finalists = 2 if scale == "tiny" else 3
    stated = _hypotheses(far, "dat")
    return Plan(arms, fresh_seeds(size.seeds), **held_out(size), finalists=finalists, hypotheses=stated, probed=True)


def _joint(size: Size, task: Task) -> RunConfig:
    every = min(PROBE_EVERY, max(1, size.steps // 20))
    return with_training(base_config(size, task, hybrid(width=size.width, **ATTENTION)), probe_every=every)


def _tuned(size: Size, task: Task) -> list[Arm]:
    """Return the arms with the settings that the study `paper` chose on its tuning seeds."""
    run = _joint(size, task)
    if isinstance(task, Composite):
        joint = at_rate(with_training(run, weigh="positions"), 6e-3)
        dat = staged(with_state_noise(at_rate(with_attention(run, scores="log_n"), 1.2e-2), size))
    else:
        joint, dat = at_rate(run, 1.2e-2), staged(at_rate(run, 6e-3))
    matched = delayed(with_training(joint, restart=False))
    return [Arm("joint", joint), Arm("dat", dat, against="joint"), Arm(MATCHED, matched, against="joint")]


def _arms(size: Size, task: Task, choices: Callable[[Size, RunConfig], tuple[RunConfig, ...]]) -> list[Arm]:
    """Return joint training and DAT on a task, tuned over the `choices` of each."""
    joint = _joint(size, task)
    axis = rate_axis(size.rates)
    return [
        Arm("joint", joint, choices(size, joint), axis=axis),
        Arm("dat", staged(joint), choices(size, staged(joint)), against="joint", axis=axis),
    ]


def _rates(size: Size, run: RunConfig) -> tuple[RunConfig, ...]:
    """Return the learning rates alone, for the scale of two cores."""
    return tuple(at_rate(run, rate) for rate in size.rates)


def _hypotheses(far: float, *arms: str) -> list[Hypothesis]:
    def gain(arm: str, task: str) -> Hypothesis:
        return Hypothesis(
            f"{CLAIMS[arm]} tracks the state further than joint training ({TITLES[task]}).",
            f"it is less than 5 points ahead in the sum at {far:g}x.",
            [Difference(task=task, arm=arm, baseline="joint", at=far, answer="sum")],
        )

    return [gain(arm, task) for arm in arms for task in TITLES]


CLAIMS = {"dat": "DAT", MATCHED: "DAT with the settings of joint training"}
TITLES = {"composite": "state and recall in one task", "modular_sum": "nothing to recall: not a conflict of two tasks"}
