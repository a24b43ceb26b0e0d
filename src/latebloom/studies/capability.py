"""The study `capability`: what each recurrence can track and recall by itself, without attention.

`PREDICTED` states what theory says of each recurrence, written before the runs. Where the runs disagree with it, the
implementation is checked first, because a wrong one looks like a limit. Recall is predicted to fail for all of them
beyond the training length, because the state cannot hold that many keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from latebloom.models.settings import Recurrence, lstm
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import FIRST_TUNING_SEED, MANY_ARMS, TO_THREE, Size, at_rate, base_config
from latebloom.tasks import ModularSum, Recall, Task, WordProblem

TASKS: dict[str, Task] = {
    "sum mod 2": ModularSum(modulus=2),
    "sum mod 10": ModularSum(modulus=10),
    "S3": WordProblem(group="S3"),
    "S5 by swaps": WordProblem(group="S5", moves="generators"),
    "recall": Recall(keys=64, key_tokens=2),
}
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
"""The tasks that each recurrence can learn in two blocks."""
SMALL_BETA: dict[str, Any] = {"negative_eigenvalues": False}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lstm": ({}, {}),
    "gru": ({}, {"update_bias": 2.0}),
    "slstm": ({}, {"forget_bias": (0.0, 3.0)}),
    "m2rnn": ({}, {"rate_range": (0.0, 16.0), "step_range": (1e-3, 0.1)}),
    "min_gru": ({}, {"update_bias": -2.0}),
    "mamba2": ({}, {"rate_range": (0.0, 1.0)}),
    "delta_net, beta < 1": (SMALL_BETA, SMALL_BETA),
    "gated_delta_net, beta < 1": (SMALL_BETA, {**SMALL_BETA, "rate_range": (0.0, 16.0)}),
    "mamba2, both signs": ({"negative_eigenvalues": True}, {"negative_eigenvalues": True, "step_range": (0.1, 1.0)}),
    "mamba3": ({}, {"rotated": 0.5, "step_range": (1.0, 2.0)}),
    "delta_net": ({}, {}),
    "gated_delta_net": ({}, {"rate_range": (0.0, 16.0)}),
    "kda": ({}, {"rate_range": (0.0, 16.0)}),
    "delta_product, 2 steps": ({"steps": 2}, {"steps": 2, "decay": True}),
    "delta_product, 4 steps": ({"steps": 4}, {"steps": 4, "decay": True}),
}
"""Two initializations of each recurrence; one that has only one is tried at twice as many learning rates."""
RATES, MORE_RATES = (1e-3, 3e-3, 1e-2), (1e-3, 2e-3, 3e-3, 6e-3, 1e-2, 2e-2)
SIZES: dict[Scale, Size] = {
    "tiny": replace(MANY_ARMS["tiny"], rates=(3e-3,), steps=20),
    "paper": replace(MANY_ARMS["paper"], tuning_seeds=2, rates=RATES, multiples=(1, 2, 4, 8, 16)),
    "large": replace(MANY_ARMS["large"], tuning_seeds=2, rates=RATES, multiples=(1, 2, 4, 8, 16)),
}
FIRST_SEED = 5_000
"""No setting was chosen on these seeds."""


@study("capability")
def capability(scale: Scale) -> Plan:
    """Each recurrence alone, tuned with its initialization: sums modulo 2 and 10, S3, S5 by swaps, recall."""
    size = SIZES[scale]
    tasks = {name: TASKS[name] for name in TASKS if scale != "tiny" or name in ("sum mod 2", "recall")}
    arms = [_arm(size, group, task, name) for group, task in tasks.items() for name in FORMS]
    seeds, tuning = range(FIRST_SEED, FIRST_SEED + size.seeds), range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + 2)
    return Plan(arms, seeds, tuning_seeds=tuning[: size.tuning_seeds])


def _arm(size: Size, group: str, task: Task, name: str) -> Arm:
    """Return a recurrence on a task, with six settings to choose from at full scale, each arm with as many."""
    kind = Recurrence.members[name.partition(",")[0]]
    forms = list(dict.fromkeys(kind(**settings) for settings in FORMS[name]))
    runs = [base_config(size, task, lstm(width=size.width, blocks=2, recurrence=form)) for form in forms]
    rates = MORE_RATES if len(forms) == 1 and size.multiples != TO_THREE else size.rates
    choices = tuple(at_rate(run, rate) for run, rate in product(runs, rates))
    return Arm(name, runs[0], choices, group=group, against=() if name == "lstm" else "lstm")
