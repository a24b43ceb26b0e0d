"""The paper's table: four models on three tasks, each tuned on the same grid."""

from collections.abc import Sequence
from dataclasses import replace

from latebloom.config import RunConfig
from latebloom.models.settings import lstm, transformer
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import SIZES, Size, at_rate, base_config, composite, delayed, tuning_seeds
from latebloom.tasks import ModularSum, Recall, Task


@study("paper")
def paper(scale: Scale) -> Plan:
    """LSTM, Transformer, hybrid trained jointly and with delayed attention, on modular sum, recall and composite."""
    size = SIZES[scale]
    # One thing at a time, what the paper is not about, gets half the steps and half the seeds.
    alone = replace(size, steps=size.steps // 2)
    fewer = range(max(2, size.seeds // 2))
    arms = [
        *_arms(alone, ModularSum(), fewer),
        *_arms(alone, Recall(keys=512), fewer),
        *_arms(size, composite()),
    ]
    return Plan(arms, range(size.seeds), tuning_seeds(size))


def _arms(size: Size, task: Task, seeds: Sequence[int] = ()) -> list[Arm]:
    hybrid_run = base_config(size, task)
    runs = {
        "lstm": base_config(size, task, lstm(width=size.width)),
        "transformer": base_config(size, task, transformer(width=size.width)),
        "joint": hybrid_run,
        "dat": delayed(hybrid_run),
    }
    return [Arm(name, run, _grid(size, run), seeds=seeds) for name, run in runs.items()]


def _grid(size: Size, run: RunConfig) -> tuple[RunConfig, ...]:
    """Every learning rate with both ways of weighing the loss, for each arm alike."""
    rates = [at_rate(run, rate) for rate in size.rates]
    if len(run.task.answers) == 1:  # one answer: both ways weigh it alike
        return tuple(rates)
    weighings = ("answers", "positions")
    return tuple(replace(r, training=replace(r.training, weigh=weigh)) for r in rates for weigh in weighings)
