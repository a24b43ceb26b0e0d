"""The study `mechanism`: why delayed attention helps, with the gradients recorded while the runs train.

The arms are joint training and DAT as the study `paper` tunes them, on the composite task and on modular sum alone,
where nothing is to be recalled. The runs are probed at the end, and the report has the verdicts.
"""

from dataclasses import replace

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
    fresh_seeds,
    held_out,
    rate_axis,
    small_composite,
    staged,
    with_training,
)
from latebloom.tasks import ModularSum, Task

PROBE_EVERY = 100
"""Steps between measurements of interference at full scale."""


@study("mechanism", SCALES)
def mechanism(scale: Scale) -> Plan:
    """Joint training and DAT, tuned as in `paper`, with their gradients recorded: composite task, modular sum alone."""
    size = SIZES[scale]
    if scale == "small":
        arms = [*_arms(size, small_composite(), small=True), *_arms(size, ModularSum(modulus=5), small=True)]
    else:
        arms = [*_arms(size, composite()), *_arms(replace(size, steps=size.steps // 2), ModularSum())]
    return Plan(
        arms,
        fresh_seeds(size.seeds),
        **held_out(size),
        finalists=2 if scale == "tiny" else 3,
        hypotheses=_hypotheses(max(size.multiples)),
        probed=True,
    )


def _arms(size: Size, task: Task, *, small: bool = False) -> list[Arm]:
    """Return joint training and DAT on a task; at scale small only the learning rate is tuned."""
    every = min(PROBE_EVERY, max(1, size.steps // 20))
    joint = with_training(base_config(size, task, hybrid(width=size.width, **ATTENTION)), probe_every=every)
    runs = {"joint": joint, "dat": staged(joint)}
    arms = []
    for name, run in runs.items():
        choices = tuple(at_rate(run, rate) for rate in size.rates) if small else grid(size, run)
        against = () if name == "joint" else "joint"
        arms.append(Arm(name, run, choices, against=against, axis=rate_axis(size.rates)))
    return arms


def _hypotheses(far: float) -> list[Hypothesis]:
    def gain(task: str) -> Hypothesis:
        return Hypothesis(
            f"DAT tracks the state further than joint training ({TITLES[task]}).",
            f"it is less than 5 points ahead in the sum at {far:g}x.",
            [Difference(task=task, arm="dat", baseline="joint", at=far, answer="sum")],
        )

    return [gain("composite"), gain("modular_sum")]


TITLES = {"composite": "state and recall in one task", "modular_sum": "nothing to recall: not a conflict of two tasks"}
