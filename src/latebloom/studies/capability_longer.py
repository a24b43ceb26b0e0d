"""The study `capability_longer`: whether more training finds what `capability` did not, where theory says it exists.

In ten cells of `capability` suitable weights should exist, and no seed found them. Either training does not reach them,
or the implementation cannot express them. Here these cells are trained three times as long, once with lengths that grow
from two tokens and once with twice the blocks. What a seed holds with two blocks, the implementation can express.

The settings are those that `capability` chose on its tuning seeds; nothing is tuned.
"""

from dataclasses import replace

from latebloom.config import RunConfig
from latebloom.engine.options import Curriculum
from latebloom.models.settings import lstm
from latebloom.results.stated import Hypothesis, Level
from latebloom.studies.capability import SIZES, TASKS, recurrence
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import at_rate, base_config, fresh_seeds, with_training

CHOSEN: dict[tuple[str, str], tuple[int, float]] = {
    ("sum mod 10", "mamba3"): (1, 3e-3),
    ("sum mod 10", "delta_net"): (0, 2e-2),
    ("sum mod 10", "gated_delta_net"): (1, 1e-2),
    ("sum mod 10", "kda"): (0, 1e-2),
    ("sum mod 10", "delta_product, 2 steps"): (0, 3e-3),
    ("S3", "mamba3"): (1, 3e-3),
    ("S3", "delta_net"): (0, 1e-2),
    ("S3", "gated_delta_net"): (0, 3e-3),
    ("S3", "kda"): (0, 1e-2),
    ("S5 by swaps", "m2rnn"): (0, 1e-3),
}
"""The initialization, by its index, and the learning rate that `capability` chose in each cell."""
LONGER = 3
GROWING, DEEPER, ONE_HEAD = "growing lengths", "four blocks", "one head"
HOLDS_AT = 4
MULTIPLES = (1, 1.4, 2, 3, 4, 8, 16)


@study("capability_longer", ("tiny", "paper"))
def capability_longer(scale: Scale) -> Plan:
    """The cells of `capability` in which no seed found what theory predicts: three times the steps, and easier."""
    arms = []
    cells = dict(list(CHOSEN.items())[:2]) if scale == "tiny" else CHOSEN
    for (group, name), (form, rate) in cells.items():
        longer = at_rate(_run(scale, group, name, form), rate)
        deeper = replace(longer, model=replace(longer.model, blocks=4))
        arms += [
            Arm(f"{name}: {GROWING}", with_training(longer, curriculum=Curriculum(start=2)), group=group),
            Arm(f"{name}: {DEEPER}", deeper, group=group),
        ]
        if name == "m2rnn":  # the units of a state's row see each other alone: 16 with four heads, 64 with one
            wide = replace(longer.model, recurrence=replace(longer.model.recurrence, heads=1))
            arms.append(Arm(f"{name}: {ONE_HEAD}", replace(longer, model=wide), group=group))
    return Plan(arms, fresh_seeds(SIZES[scale].seeds), hypotheses=[_hypothesis(*cell) for cell in cells])


def _run(scale: Scale, group: str, name: str, form: int) -> RunConfig:
    task, steps = TASKS[group]
    size = replace(SIZES[scale], multiples=MULTIPLES)
    if scale != "tiny":
        size = replace(size, steps=LONGER * steps)
    return base_config(size, task, lstm(width=size.width, blocks=2, recurrence=recurrence(name, form)))


def _hypothesis(group: str, name: str) -> Hypothesis:
    return Hypothesis(
        f"{name} can learn {group}: longer and with growing lengths, a seed in ten holds at {HOLDS_AT}x.",
        f"no seed has 90% at {HOLDS_AT}x.",
        [Level(task=group, arm=f"{name}: {GROWING}", at=HOLDS_AT, least=0.1)],
    )
