"""The paper's three mechanisms, each confirmed, refuted or undecided in some runs, from the tables of the probes.

Each mechanism has one number per seed, which says how strong the effect is, and `RULE` says what follows from them. A
bootstrap over few seeds is not to be trusted, so with few of them every single one must agree. Runs that have not
learned to track state at their training length do not count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from latebloom.evaluation.result import HOLDS_AT
from latebloom.probes.ablation import ATTENTION_OFF, INTACT
from latebloom.probes.interference import conflicts, mean_cosine
from latebloom.probes.sharpness import MAJORITY, best_head_weights, majority_lost
from latebloom.report.statistics import mean_interval, paired
from latebloom.report.study_tables import estimate_cell
from latebloom.results.probes import Probed

MARGIN = 0.1
"""The smallest effect that counts: a tenth of all answers, measurements or weight."""
FEW = 5
"""With fewer seeds than this, all must agree."""
RULE = (
    "With five seeds or more, a mechanism is confirmed if the 95% interval of its mean effect over seeds lies above "
    f"{MARGIN}, and refuted if it lies below. With two to four seeds, it is confirmed if the effect is above {MARGIN} "
    "in every seed, and refuted if it is below in every seed. Otherwise, and always with one seed, it is undecided. An "
    f"effect of {MARGIN} is {100 * MARGIN:.0f} percentage points of accuracy or of weight, or a cosine of {MARGIN}."
)
"""The rule of `decide`, as the page and docs/probes.md state it."""
Word = Literal["confirmed", "refuted", "undecided"]
Tables = Mapping[str, Sequence[Probed]]


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one mechanism."""

    mechanism: str
    word: Word
    sentences: tuple[str, ...]
    effect: Mapping[int, float] = field(default_factory=dict)
    """The number of each seed that the verdict is on; empty if no run counts."""

    def __str__(self) -> str:
        return f"{self.mechanism}: {self.word}. {' '.join(self.sentences)}"


def compared_arms(tables: Tables) -> list[dict[str, str]]:
    """Return the arms that verdicts are about: the first with joint training, with each that has a delay."""
    arms: dict[str, list[str]] = {"joint": [], "delayed": []}
    for runs in tables.values():
        for run in runs:
            if run.arm not in arms[run.training]:
                arms[run.training].append(run.arm)
    joint = {"joint": arms["joint"][0]} if arms["joint"] else {}
    return [joint | {"delayed": arm} for arm in arms["delayed"]] or [joint]


def verdicts(tables: Tables, state_answer: str | None, arms: Mapping[str, str] | None = None) -> list[Verdict]:
    """Return the verdict on each mechanism, given the tables of one task's runs by probe; `arms` are one of
    `compared_arms`, by default the first."""
    names = (compared_arms(tables)[0] if arms is None else arms).values()
    tables = {name: [run for run in runs if run.arm in names] for name, runs in tables.items()}
    return [_shortcut(tables, state_answer), _gradients(tables, state_answer), _dilution(tables)]


def decide(values: Iterable[float]) -> Word:
    """Return what the effects in some seeds say, by `RULE`."""
    values = list(values)
    found = mean_interval(values)
    if found.low is None or found.high is None:
        return "undecided"
    low, high = (min(values), max(values)) if len(values) < FEW else (found.low, found.high)
    return "confirmed" if low > MARGIN else "refuted" if high < MARGIN else "undecided"


def _decided(mechanism: str, counts: str, effect: Mapping[int, float], sentences: Iterable[str]) -> Verdict:
    """Return the verdict from the effect in each seed, with a sentence on what it counts."""
    seeds = f"{len(effect)} seeds" if len(effect) > 1 else "one seed, which is too few"
    said = (*sentences, f"The verdict is on {counts}, in {seeds}.")
    return Verdict(mechanism, decide(effect.values()), said, effect)


def _effect(runs: Sequence[Probed], number: Callable[[Probed], float | None]) -> dict[str, dict[int, float]]:
    """Return the number of each run that has one, for joint and delayed runs by seed."""
    groups: dict[str, dict[int, float]] = {}
    for run in runs:
        if (value := number(run)) is not None:
            groups.setdefault(run.training, {})[run.seed] = value
    return groups


def _left_out(runs: Sequence[Probed], groups: Mapping[str, Mapping[int, float]], reason: str) -> list[str]:
    without = len(runs) - sum(map(len, groups.values()))
    return [f"{without} of {len(runs)} runs do not count: {reason}."] if without else []


def _accuracy(run: Probed, change: str, answer: str | None) -> float | None:
    """Return the accuracy of an answer at the shortest length of an ablation."""
    found = run.table.values("accuracy", change=change, answer=answer, length=min(run.table.values("length")))
    return found[0] if found else None


def _said(values: Iterable[float], form: str = ".1%", scale: float = 1, unit: str = "") -> str:
    """Say a mean with its interval; that of one run has none."""
    found = mean_interval(values)
    cell = estimate_cell(found, form, scale)
    return f"{cell.plain}{unit}{f' over {found.seeds} seeds' * bool(cell.interval)}"


def _points(values: Iterable[float]) -> str:
    """Say the mean of differences of shares, in percentage points."""
    return _said(values, ".1f", 100, " percentage points")


def _shortcut(tables: Tables, state_answer: str | None) -> Verdict:
    mechanism = "Attention takes over state tracking (a shortcut that ends with the training length)"
    runs = tables.get("ablation", ())
    if not runs:
        return Verdict(mechanism, "undecided", ("The probe ablation was not run.",))
    if state_answer is None:
        return Verdict(mechanism, "undecided", ("The task has no state to track.",))

    def loss(run: Probed) -> float | None:
        intact, off = (_accuracy(run, change, state_answer) for change in (INTACT, ATTENTION_OFF))
        return None if intact is None or off is None or intact < HOLDS_AT else intact - off

    groups = _effect(runs, loss)
    reason = (
        f"they have no attention, or get the {state_answer} right in less than {HOLDS_AT:.0%} at the training length"
    )
    sentences = _left_out(runs, groups, reason)
    for name, values in groups.items():
        sentences.append(
            f"Without attention, {name} runs lose {_points(values.values())} of accuracy in the {state_answer} at the "
            "training length."
        )
    if not groups:
        return Verdict(mechanism, "undecided", tuple(sentences))
    effect = paired(groups.get("joint", {}), groups.get("delayed", {}))
    if effect:
        sentences.append(f"Paired difference joint - delayed: {_points(effect.values())}.")
        counts = "the paired difference"
    else:
        which = "joint" if "joint" in groups else "delayed"
        effect, counts = groups[which], f"the loss in {which} runs"
    return _decided(mechanism, counts, effect, (*sentences, *_positions(tables)))


def _positions(tables: Tables) -> list[str]:
    """Say how much of the heads' patterns distance explains."""
    groups: dict[str, list[float]] = {}
    for run in tables.get("positions", ()):
        shortest = min(run.table.values("length"))
        shares = [v for v in run.table.values("value", measure="distance", length=shortest) if v is not None]
        if shares:
            groups.setdefault(run.training, []).append(max(shares))
    return [
        f"In {name} runs, distance alone explains {_said(shares)} of the pattern of the head that "
        "follows distance most."
        for name, shares in groups.items()
    ]


def _gradients(tables: Tables, state_answer: str | None) -> Verdict:
    mechanism = "Attention's presence spoils the recurrence's gradients"
    runs = [run for run in tables.get("interference", ()) if max(run.table.values("step")) >= 0]
    if not runs:
        reason = "No run has recorded its gradients over training; training.probe_every=100 records them."
        return Verdict(mechanism, "undecided", (reason,))
    if not tables.get("ablation"):
        reason = "The probe ablation was not run, so it is not known which runs have learned to track state."
        return Verdict(mechanism, "undecided", (reason,))
    learned = {
        run.config_hash
        for run in tables["ablation"]
        if (accuracy := _accuracy(run, INTACT, state_answer)) is not None and accuracy >= HOLDS_AT
    }

    def excess(run: Probed) -> float | None:
        with_attention, without = (mean_cosine(run.table, f"alone_{name}") for name in ("with", "without"))
        if with_attention is None or without is None or run.config_hash not in learned:
            return None
        return without - with_attention

    groups = _effect(runs, excess)
    sentences = _left_out(runs, groups, f"they have not learned the {state_answer}, or attention took no part")
    for name in groups:
        shares = {
            column: _said([share for run in runs if run.training == name and run.config_hash in learned
                           and (share := conflicts(run.table, column)) is not None])
            for column in ("alone_with", "alone_without", "cosine")
        }  # fmt: skip
        sentences += [
            f"In {name} runs, while attention takes part, a step along the joint gradient raises the loss of the "
            f"recurrence alone beyond the training length in {shares['alone_with']} of the measurements, and one along "
            f"the gradient without attention in {shares['alone_without']}.",
            f"The two gradients conflict (cosine below 0) in {shares['cosine']} of them.",
        ]
    if not groups:
        return Verdict(mechanism, "undecided", tuple(sentences))
    which = "joint" if "joint" in groups else "delayed"
    sentences.append(
        "The gradient without attention points better towards that goal than the joint one by a cosine of "
        f"{_said(groups[which].values(), '.3f')} in {which} runs."
    )
    return _decided(mechanism, f"this cosine in {which} runs", groups[which], (*_state(tables), *sentences))


def _state(tables: Tables) -> list[str]:
    """Say how well the state can be read from the recurrences at the longest length."""
    groups: dict[str, list[float]] = {}
    longest = 0
    for run in tables.get("state", ()):
        longest = max(run.table.values("length"))
        found = run.table.values("accuracy", feature="best", control="none", length=longest)
        groups.setdefault(run.training, []).extend(found)
    return [
        f"At length {longest} a linear classifier reads the state from the recurrence of {name} runs with an accuracy "
        f"of {_said(values)}."
        for name, values in groups.items()
        if values
    ]


def _dilution(tables: Tables) -> Verdict:
    mechanism = "Attention loses its sharpness on long sequences"
    runs = tables.get("sharpness", ())
    if not runs:
        return Verdict(mechanism, "undecided", ("The probe sharpness was not run.",))
    lost: dict[str, list[str]] = {}

    def fall(run: Probed) -> float | None:
        best = majority_lost(run.table)
        if best is None:
            return None
        weights = best_head_weights(run.table, *best[:2])
        if weights[0][1] < MAJORITY or len(weights) < 2:
            return None
        length = "never" if best[2] is None else str(best[2])
        lost.setdefault(run.training, []).append(length)
        return weights[0][1] - weights[-1][1]

    groups = _effect(runs, fall)
    reason = (
        "nothing is asked to be recalled, or no head gives most of its weight to the item that is asked for at the "
        "training length"
    )
    sentences = _left_out(runs, groups, reason)
    for name, values in groups.items():
        counts = {length: lost[name].count(length) for length in dict.fromkeys(lost[name])}
        words = ", ".join(f"{length} ({count} of {len(lost[name])})" for length, count in counts.items())
        longest = max(max(run.table.values("length")) for run in runs)
        sentences.append(
            f"In {name} runs the best head's weight on the item falls by {_points(values.values())} from "
            f"the training length to length {longest}; length at which it loses its majority: {words}."
        )
    if not groups:
        return Verdict(mechanism, "undecided", tuple(sentences))
    which = "delayed" if "delayed" in groups else "joint"
    return _decided(mechanism, f"the fall in {which} runs", groups[which], sentences)
