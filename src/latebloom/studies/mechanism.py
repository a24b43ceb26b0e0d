"""The study `mechanism`: why delayed attention helps, with the gradients recorded while the runs train.

The arms are joint training and DAT as the study `paper` tunes them, on the composite task and on modular sum alone,
where nothing is to be recalled. The runs are probed at the end, and the report has the verdicts.
"""

from dataclasses import replace

from latebloom.models.settings import hybrid
from latebloom.studies.paper import grid
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import ATTENTION, SIZES, Size, base_config, composite, held_out, staged, with_training
from latebloom.tasks import ModularSum, Task

PROBE_EVERY = 100
"""Steps between measurements of interference at full scale."""


@study("mechanism")
def mechanism(scale: Scale) -> Plan:
    """Joint training and DAT, tuned as in `paper`, with their gradients recorded: composite task, modular sum alone."""
    size = SIZES[scale]
    alone = replace(size, steps=size.steps // 2)
    arms = [*_arms(size, composite()), *_arms(alone, ModularSum())]
    return Plan(arms, range(size.seeds), **held_out(size), finalists=2 if scale == "tiny" else 3, probed=True)


def _arms(size: Size, task: Task) -> list[Arm]:
    every = min(PROBE_EVERY, max(1, size.steps // 20))
    joint = with_training(base_config(size, task, hybrid(width=size.width, **ATTENTION)), probe_every=every)
    dat = staged(joint)
    return [Arm("joint", joint, grid(size, joint)), Arm("dat", dat, grid(size, dat), against="joint")]
