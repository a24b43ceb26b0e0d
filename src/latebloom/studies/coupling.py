"""The study `coupling`: DAT on tasks in which state and recall are entangled, more and more.

In `coupled_value` the state is a sum over recalled values, so the recurrence cannot learn it before attention arrives:
there DAT is predicted to gain nothing. Recall alone is the negative control.
"""

from dataclasses import replace

from latebloom.config import RunConfig
from latebloom.delay.triggers import when_beyond
from latebloom.results.stated import Difference, Hypothesis, Level
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import SIZES as PAPER
from latebloom.studies.scales import Size, at_rate, base_config, delayed, fresh_plan, rate_axis, with_state_noise
from latebloom.tasks import ConditionalMQAR, CoupledKey, CoupledValue, ParityRecall, Recall, StateBasedRecall, Task

TASKS: dict[str, Task] = {
    "parity_recall": ParityRecall(),
    "parity_recall, coupled": ParityRecall(coupled=True),
    "coupled_key": CoupledKey(),
    "conditional_mqar": ConditionalMQAR(),
    "state_based_recall, cells": StateBasedRecall(grows="cells"),
    "state_based_recall, swaps": StateBasedRecall(grows="swaps"),
    "coupled_value": CoupledValue(),
}
"""From independent state and recall to a state that needs recall."""
CONTROL = "recall"
SIZES: dict[Scale, Size] = {
    "tiny": replace(PAPER["tiny"], steps=20, tuning_seeds=1, second_round=0, rates=(6e-3,), multiples=(1, 3)),
    "paper": replace(
        PAPER["paper"], seeds=22, steps=15_000, tuning_seeds=2, second_round=1,
        rates=(1.5e-3, 3e-3, 6e-3, 1.2e-2), multiples=(1, 2, 3, 4, 8), sequences=512,
    ),
    "large": replace(
        PAPER["large"], seeds=24, steps=30_000, tuning_seeds=2, second_round=1,
        rates=(5e-4, 1e-3, 2e-3, 4e-3), multiples=(1, 2, 3, 4, 8), sequences=512,
    ),
}  # fmt: skip
ROUNDS = {0.3: 3, 0.75: 2}
"""The second round of tuning ends after the latest switch, at 0.7 of the steps."""
SPEED = 6_500.0
"""For about 38 tokens, interpolated from docs/performance.md."""


@study("coupling")
def coupling(scale: Scale) -> Plan:
    """Six tasks that entangle state and recall: joint training, DAT, DAT by when_beyond, and DAT with a ramp."""
    size = SIZES[scale]
    arms = [arm for group, task in TASKS.items() for arm in _arms(size, group, task)]
    joint = base_config(size, Recall(keys=256))
    arms += [_arm(size, "joint", joint, CONTROL), _arm(size, "dat", delayed(joint), CONTROL, control=True)]
    return fresh_plan(scale, size, arms, ROUNDS, _hypotheses(), SPEED)


def _arms(size: Size, group: str, task: Task) -> list[Arm]:
    joint = with_state_noise(base_config(size, task), size)
    beyond = when_beyond(multiple=2, every=max(10, size.steps // 50), latest=int(0.7 * size.steps))
    runs = {
        "joint": joint,
        "dat": delayed(joint),
        "dat (when beyond)": delayed(joint, beyond),
        "dat (ramp)": delayed(joint, hold="ramp", ramp_steps=max(1, size.steps // 10)),
    }
    return [_arm(size, name, run, group) for name, run in runs.items()]


def _arm(size: Size, name: str, run: RunConfig, group: str, control: bool = False) -> Arm:
    against = {"joint": (), "dat": ("joint",)}.get(name, ("dat",))
    choices = tuple(at_rate(run, rate) for rate in size.rates)
    return Arm(name, run, choices, group=group, against=against, control=control, axis=rate_axis(size.rates))


def _hypotheses() -> list[Hypothesis]:
    def ahead(group: str) -> Difference:
        return Difference(task=group, arm="dat", baseline="joint", at=3)

    coupled = ("parity_recall, coupled", "coupled_key", "conditional_mqar")
    return [
        Hypothesis(
            "Where the state can be learned without recall, DAT helps although recall depends on the state.",
            "DAT is less than 5 points ahead of joint training at 3x on one of these tasks.",
            [ahead(group) for group in coupled],
        ),
        Hypothesis(
            "DAT helps where the number of swaps grows and not where the number of cells does.",
            "it is less than 5 points ahead with more swaps, or 5 points or more apart with more cells.",
            [
                ahead("state_based_recall, swaps"),
                Difference(task="state_based_recall, cells", arm="dat", baseline="joint", at=3, equal=True),
            ],
        ),
        Hypothesis(
            "DAT fails where the state is a sum of recalled values: nothing can be learned during the delay.",
            "DAT is at 90% at 3x in more than half of the seeds, or joint training is less than 5 points ahead of it.",
            [
                Level(task="coupled_value", arm="dat", at=3, most=0.5),
                Difference(task="coupled_value", arm="joint", baseline="dat", at=3),
            ],
        ),
        Hypothesis(
            "When to switch matters little: when_beyond is within 5 points of half the steps.",
            "they differ by 5 points or more on a task with independent or coupled recall.",
            [
                Difference(task=group, arm="dat (when beyond)", baseline="dat", at=3, equal=True)
                for group in ("parity_recall", *coupled)
            ],
        ),
        Hypothesis(
            "Negative control: on recall alone the delay changes nothing.",
            "DAT and joint training differ by 5 points or more.",
            [Difference(task=CONTROL, arm="dat", baseline="joint", at=3, equal=True)],
        ),
    ]
