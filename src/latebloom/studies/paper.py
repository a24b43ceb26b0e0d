"""The study `paper`: LSTM, Transformer and the hybrid on three tasks, with every arm tuned over its own grid."""

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
    held_out,
    staged,
    with_attention,
    with_state_noise,
    with_training,
)
from latebloom.tasks import ModularSum, Recall, Task


@study("paper")
def paper(scale: Scale) -> Plan:
    """LSTM, Transformer, and the hybrid with joint training, late recall loss and delayed attention, on three tasks."""
    size = SIZES[scale]
    # The tasks with one answer are not the paper's subject, so they get half the steps and half the seeds.
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
        # The effect of the later recall loss without the delay of attention.
        runs["joint (asked late)"] = staged(hybrid_run, hold="none")
    runs["dat"] = staged(hybrid_run)
    return [Arm(name, run, grid(size, run), seeds=seeds) for name, run in runs.items()]


def grid(size: Size, run: RunConfig) -> tuple[RunConfig, ...]:
    """Return every combination of learning rate, loss per answer or per token, plain or log-n scores, and with or
    without state noise; a Transformer has no state, so it is tried with and without positions instead."""
    # With one answer, both averages are the same.
    weighings = ("answers", "positions") if len(run.task.answers) > 1 else (run.training.weigh,)
    forms = [run] if not run.model.has_attention else [run, with_attention(run, scores="log_n")]
    forms += [
        with_state_noise(form, size) if run.model.is_recurrent else with_attention(form, positions="none")
        for form in forms
    ]
    return tuple(
        at_rate(with_training(form, weigh=weigh), rate) for form, rate, weigh in product(forms, size.rates, weighings)
    )
