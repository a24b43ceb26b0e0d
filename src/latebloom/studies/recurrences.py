"""The study `recurrences`: whether DAT carries over to state-space models and linear attention.

Each recurrence is tuned with its initialization, because a state that forgets, or turns too slowly, would be measured
instead. All have a short convolution of their own or attention that looks back one token. Widths are chosen for equal
parameters, in multiples of 16, which the fused kernels take. Recurrences that cannot track the state are the negative
controls: a delay cannot help them. The recurrence alone also shows how much it recalls by itself.
"""

from dataclasses import replace
from itertools import product
from typing import Any

from latebloom.config import RunConfig
from latebloom.models.settings import Recurrence, hybrid, lstm
from latebloom.results.stated import Difference, Hypothesis, Level
from latebloom.studies.capability import FORMS
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    ATTENTION,
    MANY_ARMS,
    Size,
    as_large_as,
    at_rate,
    base_config,
    composite,
    fresh_plan,
    fresh_seeds,
    rate_axis,
    staged,
    with_state_noise,
)
from latebloom.tasks import Task, WordRecall

TASKS: dict[str, Task] = {
    "sum mod 2": composite(modulus=2),
    "sum mod 10": composite(modulus=10),
    "S3": WordRecall(group="S3"),
}
NONLINEAR, LINEAR = ("lstm", "gru", "m2rnn"), ("gated_delta_net", "mamba3")
CONTROLS = ("gated_delta_net, beta < 1", "mamba2")
"""Positive eigenvalues cannot track any of the three states (arXiv 2411.12537). In four blocks the other recurrences
can track all of them, by theory (see the study `capability`)."""
SIZES: dict[Scale, Size] = {
    "tiny": replace(
        MANY_ARMS["tiny"], steps=6, tuning_seeds=1, second_round=0, rates=(6e-3,), multiples=(1, 3), sequences=16
    ),
    "paper": replace(
        MANY_ARMS["paper"], seeds=12, steps=6_000, tuning_seeds=2, second_round=0, rates=(2e-3, 5e-3, 1.2e-2),
        multiples=(1, 2, 3, 4, 8, 16), sequences=256,
    ),
    "large": replace(
        MANY_ARMS["large"], seeds=20, tuning_seeds=2, second_round=0, rates=(1e-3, 2e-3, 4e-3),
        multiples=(1, 2, 3, 4, 8, 16), sequences=512,
    ),
}  # fmt: skip
MORE_RATES = (1e-3, 2e-3, 5e-3, 1.2e-2, 2.4e-2, 4.8e-2)
"""For a recurrence with one initialization, so that all arms have as many settings."""
ROUNDS = {0.2: None, 0.65: 2}
"""The second round of tuning ends well after the switch, at half of the steps."""
SPEED = 4_500.0
"""An assumption: the linear recurrences and M2RNN have no stacked kernel and were not timed on a GPU."""


@study("recurrences")
def recurrences(scale: Scale) -> Plan:
    """Seven recurrences alone, trained jointly and with DAT, without and with state noise, on composite tasks."""
    size = SIZES[scale]
    tasks = {group: task for group, task in TASKS.items() if scale != "tiny" or group == "S3"}
    arms = [
        arm
        for group, task in tasks.items()
        for name in (*NONLINEAR, *LINEAR, *CONTROLS)
        for arm in _arms(size, group, task, name, is_tiny=scale == "tiny")
    ]
    return fresh_plan(scale, size, arms, ROUNDS, _hypotheses(size, tuple(tasks)), SPEED)


def _arms(size: Size, group: str, task: Task, name: str, *, is_tiny: bool) -> list[Arm]:
    """Return a recurrence on a task: alone, trained jointly and with DAT, each without and with state noise."""
    joint = _choices(size, task, name, hybrid(width=size.width, **ATTENTION), is_tiny)
    plain = {
        "alone": _choices(size, task, name, lstm(width=size.width), is_tiny),
        "joint": joint,
        "dat": tuple(map(staged, joint)),
    }
    arms = []
    for way, choices in plain.items():
        noisy = tuple(with_state_noise(run, size) for run in choices)
        for noise, tried in (("", choices), (" (noise)", noisy)):
            against = [f"{name}: joint{noise}"] if way == "dat" else []
            against += [f"{name}: {way}"] if noise and way != "alone" else []
            arms.append(
                Arm(
                    f"{name}: {way}{noise}",
                    tried[0],
                    tried,
                    group=group,
                    against=tuple(against),
                    control=way == "dat" and name in CONTROLS,
                    # The recurrence alone is compared with no other arm, so a third of the seeds suffices.
                    seeds=fresh_seeds(max(2, size.seeds // 3)) if way == "alone" else (),
                    axis=rate_axis(sorted({run.training.full.learning_rate for run in tried})),
                )
            )
    return arms


def _choices(size: Size, task: Task, name: str, reference: Any, is_tiny: bool) -> tuple[RunConfig, ...]:
    """Return every combination of initialization and learning rate; all models have about as many parameters."""
    kind = Recurrence.members[name.partition(",")[0]]
    forms = list(dict.fromkeys(kind(**settings) for settings in FORMS[name]))
    models = [as_large_as(replace(reference, recurrence=form), reference, task, 8 if is_tiny else 16) for form in forms]
    rates = MORE_RATES if len(forms) == 1 and not is_tiny else size.rates
    if len(forms) == 1 and is_tiny:
        rates = (size.rates[0] / 2, *size.rates)
    return tuple(at_rate(base_config(size, task, model), rate) for model, rate in product(models, rates))


def _hypotheses(size: Size, groups: tuple[str, ...]) -> list[Hypothesis]:
    far = max(size.multiples)

    def gain(name: str, group: str, after: str = "dat", before: str = "joint", **settings: Any) -> Difference:
        return Difference(task=group, arm=f"{name}: {after}", baseline=f"{name}: {before}", at=3, **settings)

    def exact(name: str, **share: float) -> Level:
        return Level(task="S3", arm=f"{name}: dat (noise)", at=far, accuracy=0.99, answer="product", **share)

    return [
        Hypothesis(
            "DAT helps every recurrence that can track the state.",
            "it is less than 5 points ahead of joint training at 3x for one of them, on one task.",
            [gain(name, group) for group in groups for name in (*NONLINEAR, *LINEAR)],
        ),
        Hypothesis(
            f"Only nonlinear recurrences are exact far out: 99% at {far:g}x with DAT and state noise.",
            "half of the seeds of a nonlinear one fall short of it, or half of a linear one reach it.",
            [*(exact(name, least=0.5) for name in NONLINEAR), *(exact(name, most=0.5) for name in LINEAR)],
        ),
        Hypothesis(
            "State noise helps nonlinear recurrences and not linear ones.",
            "it adds less than 5 points to a nonlinear one at 3x on S3, or 5 points or more to a linear one.",
            [
                *(gain(name, "S3", "dat (noise)", "dat") for name in NONLINEAR),
                *(gain(name, "S3", "dat (noise)", "dat", equal=True) for name in LINEAR),
            ],
        ),
        Hypothesis(
            "State noise does not replace the delay: DAT helps nonlinear recurrences that are trained with noise, too.",
            "it is less than 5 points ahead of joint training with noise at 3x on S3 for one of them.",
            [gain(name, "S3", "dat (noise)", "joint (noise)") for name in NONLINEAR],
        ),
        Hypothesis(
            "Negative control: DAT does not help a recurrence that cannot track the state, without noise or with it.",
            "it changes the accuracy of one of them at 3x by 5 points or more.",
            [
                gain(name, group, f"dat{noise}", f"joint{noise}", equal=True)
                for group in groups
                for name in CONTROLS
                for noise in ("", " (noise)")
            ],
        ),
    ]
