"""The study `rivals`: what a sceptic would try in the place of DAT, each tuned alike.

Every arm is the same hybrid with the same steps and as many settings to choose from: four learning rates, and two forms
of its own option (docs/training-options.md). Where an option takes a second forward pass, the same option with half of
the steps has equal time. A closed gate adds 4% to the parameters; the next smaller width would have 8% fewer than the
other arms. Recall alone is the negative control.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.options import Curriculum, DropPath, SlowAttention
from latebloom.layers.attention import RandomWindow
from latebloom.results.stated import BestOf, Difference, Hypothesis
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    MANY_ARMS,
    Size,
    at_rate,
    base_config,
    composite,
    delayed,
    fresh_plan,
    fresh_seeds,
    rate_axis,
    staged,
    with_attention,
    with_training,
)
from latebloom.tasks import ParityRecall, Recall, Task

Forms = Sequence[RunConfig]
TASKS: dict[str, Task] = {
    "digits-first": composite(),
    "interleaved": composite(order="interleaved"),
    "parity_recall": ParityRecall(),
}
CONTROL = "recall"
BEST_OF = 3
RATES = (3e-3, 6e-3, 1.2e-2, 2.4e-2)
SIZES: dict[Scale, Size] = {
    "tiny": replace(
        MANY_ARMS["tiny"], steps=20, tuning_seeds=1, second_round=0, rates=(6e-3,), noise=0.3, multiples=(1, 3),
        sequences=16,
    ),
    "paper": replace(
        MANY_ARMS["paper"], seeds=20, tuning_seeds=2, second_round=1, rates=RATES, noise=0.3,
        multiples=(1, 2, 3, 4, 8, 16), sequences=512,
    ),
    "large": replace(
        MANY_ARMS["large"], seeds=20, tuning_seeds=2, second_round=1, rates=(1e-3, 2e-3, 4e-3, 8e-3), noise=0.3,
        multiples=(1, 2, 3, 4, 8, 16), sequences=512,
    ),
}  # fmt: skip
ROUNDS = {0.3: None, 0.7: None}
"""The second round of tuning ends well after the switch, at half of the steps."""


def _options(size: Size) -> dict[str, Callable[[RunConfig], Forms]]:
    """Return the two forms of each rival."""
    half = size.steps // 2

    def training(*forms: dict[str, object]) -> Callable[[RunConfig], Forms]:
        return lambda run: [with_training(run, **form) for form in forms]

    def windows(run: RunConfig) -> Forms:
        return [with_attention(run, random_window=RandomWindow(tokens=tokens)) for tokens in (4, 8)]

    def closed_gate(run: RunConfig) -> Forms:
        gated = with_attention(run, gate_bias=-4.0)
        return [gated, with_attention(gated, zero_output=False)]

    return {
        "slow attention": training(
            {"slow_attention": SlowAttention(factor=0.1)}, {"slow_attention": SlowAttention(warmup=half)}
        ),
        "drop-path": training(
            {"drop_path": DropPath(probability=0.5)}, {"drop_path": DropPath(probability=0.9, falling=0.5)}
        ),
        "random window": windows,
        "stop-gradient": training({"detach_attention": True}, {"detach_attention": True, "weigh": "positions"}),
        "projected gradient": training({"project_gradients": True}, {"project_gradients": True, "weigh": "positions"}),
        "bypass loss": training({"bypass_loss": 0.1}, {"bypass_loss": 1.0}),
        "closed gate": closed_gate,
        "curriculum": training({"curriculum": Curriculum(rising=0.5)}, {"curriculum": Curriculum(rising=0.25)}),
        "state passing": training({"state_passing": 0.5}, {"state_passing": 1.0}),
    }


COSTS = {"projected gradient": 2.0, "bypass loss": 2.0}
"""Options that take a second forward and backward pass."""


@study("rivals")
def rivals(scale: Scale) -> Plan:
    """Nine rivals of DAT, plain and tuned, on composite in two orders and on parity_recall."""
    size = SIZES[scale]
    tasks = {group: task for group, task in TASKS.items() if scale != "tiny" or group != "interleaved"}
    arms = [arm for group, task in tasks.items() for arm in _arms(size, group, task)]
    joint = base_config(size, Recall(keys=512))
    arms += [
        _arm(size, "joint", _weighed(joint), CONTROL),
        _arm(size, "dat", _weighed(delayed(joint)), CONTROL, against=("joint",), control=True),
    ]
    return fresh_plan(scale, size, arms, ROUNDS, _hypotheses(size, tuple(tasks)))


def _arms(size: Size, group: str, task: Task) -> list[Arm]:
    joint, several = base_config(size, task), fresh_seeds(BEST_OF * size.seeds)
    watched, selected = with_training(joint, watch=(2.0,)), f"joint (best of {BEST_OF})"
    tuned = with_attention(watched, scores="log_n")
    noisy = [with_training(staged(tuned), state_noise=noise) for noise in (size.noise / 3, size.noise)]
    arms = [
        _arm(size, "joint", _weighed(watched), group, seeds=several, best_of=("dat (tuned)", "dat")),
        _arm(size, "dat", _weighed(delayed(joint)), group, against=("joint",)),
        _arm(size, "dat (tuned)", noisy, group, against=("joint",), seeds=several, best_of=(selected,)),
    ]
    for name, forms_of in _options(size).items():
        forms, cost = forms_of(joint), COSTS.get(name, 1.0)
        arms.append(_arm(size, name, forms, group, against=("joint", "dat"), cost=cost))
        if cost > 1:
            shorter = base_config(replace(size, steps=int(size.steps / cost)), task)
            arms.append(_arm(size, f"{name} (equal time)", forms_of(shorter), group, against=("dat",), cost=cost))
    return arms


def _weighed(run: RunConfig) -> Forms:
    return [with_training(run, weigh=weigh) for weigh in ("answers", "positions")]


def _arm(size: Size, name: str, forms: Forms, group: str, best_of: tuple[str, ...] = (), **more: Any) -> Arm:
    """Return an arm that chooses among forms and rates; `best_of` has the arms that its selection is compared with."""
    choices = tuple(at_rate(form, rate) for form, rate in product(forms, size.rates))
    selection = BestOf(runs=BEST_OF, at=2.0, against=best_of) if best_of else None
    return Arm(name, choices[0], choices, group=group, best_of=selection, axis=rate_axis(size.rates), **more)


def _hypotheses(size: Size, groups: tuple[str, ...]) -> list[Hypothesis]:
    far, names = max(size.multiples), list(_options(size))

    def behind(rival: str, group: str, dat: str) -> Difference:
        return Difference(task=group, arm=dat, baseline=rival, at=far)

    return [
        Hypothesis(
            f"DAT in its plain form is ahead of joint training at {far:g}x, on every task.",
            "it is less than 5 points ahead on one of the tasks.",
            [behind("joint", group, "dat") for group in groups],
        ),
        Hypothesis(
            f"No rival does as well as DAT, tuned, at {far:g}x on composite with digits first.",
            "DAT is less than 5 points ahead of one of the nine.",
            [behind(name, "digits-first", "dat (tuned)") for name in names],
        ),
        Hypothesis(
            "The best of three jointly trained seeds does not do as well as one run of DAT, tuned.",
            "DAT is less than 5 points ahead on one of the tasks.",
            [behind(f"joint (best of {BEST_OF})", group, "dat (tuned)") for group in groups],
        ),
        Hypothesis(
            "Drop-path and the bypass loss, which also train the recurrence without attention, help joint training.",
            "one of them is less than 5 points ahead of joint training.",
            [
                Difference(task="digits-first", arm=name, baseline="joint", at=far)
                for name in ("drop-path", "bypass loss")
            ],
        ),
        Hypothesis(
            "Negative control: on recall alone the delay changes nothing.",
            "DAT and joint training differ by 5 points or more at 3x.",
            [Difference(task=CONTROL, arm="dat", baseline="joint", at=3, equal=True)],
        ),
    ]
