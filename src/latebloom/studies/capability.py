"""The study `capability`: what each recurrence can track and recall by itself, without attention.

`PREDICTED` states what theory says of each recurrence, written before the runs. Where the runs disagree with it, the
implementation is checked first, because a wrong one looks like a limit.

Cost at scale `paper`: 2,100 runs in 200 stacks, 6.9 million seed-steps. A stack is the runs of one task, recurrence and
initialization; it has 9 to 18 runs, which are too few to fill a GPU, so its 660,000 steps take as long as their
launches. On an H200 with 14 processes and MPS (docs/performance.md) this takes about 6 minutes. So more seeds and rates
are almost free, and more steps and initializations are not. Easier tasks therefore have fewer steps.

Scale `small` has two of the tasks, with fewer steps for S3, and three seeds; its tuning stops the worse settings early.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from latebloom.models.settings import Recurrence, lstm
from latebloom.studies.plan import SCALES, Arm, Plan, Scale, study
from latebloom.studies.scales import (
    FIRST_TUNING_SEED,
    MANY_ARMS,
    Size,
    at_rate,
    base_config,
    fresh_seeds,
    halving,
)
from latebloom.studies.scales import SIZES as ALL
from latebloom.tasks import ModularSum, Recall, Task, WordProblem

TASKS: dict[str, tuple[Task, int]] = {
    "sum mod 2": (ModularSum(modulus=2), 1_500),
    "sum mod 10": (ModularSum(modulus=10), 4_000),
    "S3": (WordProblem(group="S3"), 3_000),
    "S5 by swaps": (WordProblem(group="S5", moves="generators"), 5_000),
    "recall": (Recall(keys=64, key_tokens=2), 3_000),
}
"""Each task and its number of training steps at scale `paper`."""
TRACKS, PARITY, NOTHING = ("sum mod 2", "sum mod 10", "S3", "S5 by swaps"), ("sum mod 2",), ()
PREDICTED: dict[str, Sequence[str]] = {
    # Nonlinear, with states that see each other: every regular language in one layer.
    "lstm": TRACKS,
    "gru": TRACKS,
    "slstm": TRACKS,
    "m2rnn": TRACKS,
    # Transitions with positive eigenvalues cannot track parity (arXiv 2411.12537).
    "min_gru": NOTHING,
    "mamba2": NOTHING,
    "delta_net, beta < 1": NOTHING,
    "gated_delta_net, beta < 1": NOTHING,
    # Diagonal with both signs: parity, but no count modulo 3 (arXiv 2411.12537).
    "mamba2, both signs": PARITY,
    # Rotations: abelian groups in one layer; S3 takes two, and S5 is not solvable (arXiv 2603.01959).
    "mamba3": ("sum mod 2", "sum mod 10", "S3"),
    # One reflection a token: parity and swaps in one layer, dihedral groups in two (arXiv 2502.10297).
    "delta_net": TRACKS,
    "gated_delta_net": TRACKS,
    "kda": TRACKS,
    # Two and four reflections a token: S3 and S5 in one layer.
    "delta_product, 2 steps": TRACKS,
    "delta_product, 4 steps": TRACKS,
}
"""The tasks that two blocks of each recurrence can solve at every length. None can recall at 16 times the training
length: 400 keys are more than a layer holds, which has 64 units or 4 heads of 16 key channels."""
SMALL_BETA: dict[str, Any] = {"negative_eigenvalues": False}
BOTH_SIGNS: dict[str, Any] = {"negative_eigenvalues": True}
ORIGINAL: dict[str, Any] = {"rate_range": (0.0, 16.0)}
"""The range of flash-linear-attention and lm-engine."""
FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "lstm": ({},),
    "gru": ({}, {"update_bias": 2.0}),
    "slstm": ({}, {"forget_bias": (0.0, 3.0)}),
    "m2rnn": ({}, {**ORIGINAL, "step_range": (1e-3, 0.1)}),
    "min_gru": ({}, {"update_bias": -2.0}),
    "mamba2": ({}, {"rate_range": (1.0, 16.0)}),
    "delta_net, beta < 1": (SMALL_BETA,),
    "gated_delta_net, beta < 1": (SMALL_BETA, SMALL_BETA | ORIGINAL),
    "mamba2, both signs": (BOTH_SIGNS, {**BOTH_SIGNS, "step_range": (0.1, 1.0)}),
    "mamba3": ({}, {"rate_range": (0.69, 0.7), "step_range": (1e-3, 0.1)}),
    "delta_net": ({},),
    "gated_delta_net": ({}, ORIGINAL),
    "kda": ({}, ORIGINAL),
    "delta_product, 2 steps": ({"steps": 2},),
    "delta_product, 4 steps": ({"steps": 4},),
}
"""Two initializations of each recurrence; one without such a setting is tried at twice as many learning rates."""
RATES, MORE_RATES = (1e-3, 3e-3, 1e-2), (1e-3, 2e-3, 3e-3, 6e-3, 1e-2, 2e-2)
MULTIPLES = (1, 4, 16)
SIZES: dict[Scale, Size] = {
    "tiny": replace(MANY_ARMS["tiny"], rates=(3e-3,), steps=20, multiples=MULTIPLES),
    "small": replace(
        ALL["small"], seeds=3, tuning_seeds=1, steps=1_500, rates=RATES, multiples=MULTIPLES, sequences=512
    ),
    "paper": replace(MANY_ARMS["paper"], tuning_seeds=3, rates=RATES, multiples=MULTIPLES, sequences=512),
    "large": replace(MANY_ARMS["large"], tuning_seeds=3, rates=RATES, multiples=MULTIPLES),
}
TASKS_AT: dict[Scale, Sequence[str]] = {"tiny": ("sum mod 2", "recall"), "small": ("sum mod 2", "S3")}
"""The tasks at a smaller scale; `SIZES` has their steps."""
ROUNDS = {0.33: 2}
"""At scale `small`, the share of the steps after which the two best settings of each arm go on."""
LONGER = 4
"""At scale `large`, how many times the steps of scale `paper`."""


@study("capability", SCALES)
def capability(scale: Scale) -> Plan:
    """Each recurrence alone, tuned with its initialization: sums modulo 2 and 10, S3, S5 by swaps, recall."""
    size = SIZES[scale]
    arms: list[Arm] = []
    for group, (task, steps) in TASKS.items():
        if scale not in TASKS_AT:
            size = replace(size, steps=steps * (LONGER if scale == "large" else 1))
        elif group not in TASKS_AT[scale]:
            continue
        arms += [_arm(size, scale, group, task, name) for name in FORMS]
    if scale == "small":
        return Plan(arms, fresh_seeds(size.seeds), rounds=halving(size, ROUNDS))
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + size.tuning_seeds)
    return Plan(arms, fresh_seeds(size.seeds), tuning_seeds=tuning)


def _arm(size: Size, scale: Scale, group: str, task: Task, name: str) -> Arm:
    """Return a recurrence on a task; beyond scale `tiny`, every arm has six settings to choose from."""
    forms = FORMS[name]
    models = [lstm(width=size.width, blocks=2, recurrence=recurrence(name, index)) for index in range(len(forms))]
    runs = [base_config(size, task, model) for model in models]
    rates = MORE_RATES if len(forms) == 1 and scale != "tiny" else size.rates
    choices = tuple(at_rate(run, rate) for run, rate in product(runs, rates))
    return Arm(name, runs[0], choices, group=group, against=() if name == "lstm" else "lstm")


def recurrence(name: str, form: int) -> Recurrence:
    """Return a recurrence of `FORMS` with one of its initializations."""
    return Recurrence.members[name.partition(",")[0]](**FORMS[name][form])
