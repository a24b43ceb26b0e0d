"""The paper's table: LSTM, Transformer and hybrid on three tasks, every arm tuned over all settings that apply."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from latebloom.config import RunConfig
from latebloom.models.settings import hybrid, lstm, transformer
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    ATTENTION,
    SIZES,
    Size,
    at_rate,
    base_config,
    composite,
    disturbed,
    held_out,
    staged,
    with_attention,
)
from latebloom.tasks import ModularSum, Recall, Task


@study("paper")
def paper(scale: Scale) -> Plan:
    """LSTM, Transformer and hybrid: joint, with a late recall loss, and with delayed attention, on three tasks."""
    size = SIZES[scale]
    # The single tasks, which the paper is not about, have half the steps and half the seeds.
    alone = replace(size, steps=size.steps // 2)
    fewer = range(max(2, size.seeds // 2))
    arms = [
        *_arms(alone, ModularSum(), fewer),
        *_arms(alone, Recall(keys=512), fewer),
        *_arms(size, composite()),
    ]
    return Plan(arms, range(size.seeds), **held_out(size), finalists=2 if scale == "tiny" else 3)


def _arms(size: Size, task: Task, seeds: Sequence[int] = ()) -> list[Arm]:
    hybrid_run = base_config(size, task, hybrid(width=size.width, **ATTENTION))
    runs = {
        "lstm": base_config(size, task, lstm(width=size.width)),
        "transformer": base_config(size, task, transformer(width=size.width, **ATTENTION)),
        "joint": hybrid_run,
    }
    if len(task.answers) > 1:
        # How much of the effect is the delay of attention, and how much the delay of the recall loss?
        runs["joint (asked late)"] = staged(hybrid_run, hold="none")
    runs["dat"] = staged(hybrid_run)
    return [Arm(name, run, _grid(size, run), seeds=seeds) for name, run in runs.items()]


def _grid(size: Size, run: RunConfig) -> tuple[RunConfig, ...]:
    """Return every learning rate with the loss averaged per answer and per token, with softmax and log-n scores, and
    with and without state noise; for a Transformer, which has no state, with and without positions instead."""
    # With one answer, both averages are the same.
    weighings = ("answers", "positions") if len(run.task.answers) > 1 else (run.training.weigh,)
    forms = [run] if "a" not in run.model.layout else [run, with_attention(run, scores="log_n")]
    is_recurrent = "r" in run.model.layout
    forms += [disturbed(form, size) if is_recurrent else with_attention(form, positions="none") for form in forms]
    return tuple(
        at_rate(replace(form, training=replace(form.training, weigh=weigh)), rate)
        for form, rate, weigh in product(forms, size.rates, weighings)
    )
