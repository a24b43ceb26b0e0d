"""How the settings of each arm were chosen on tuning seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from latebloom.report.differences import Settings, as_overrides, run_settings
from latebloom.report.panel import Panel
from latebloom.report.study_tables import percent
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.report.words import join_words
from latebloom.results.record import CHOICE, RunRecord


@dataclass(frozen=True)
class Tried:
    """Settings that were tried for an arm."""

    settings: Settings
    runs: tuple[RunRecord, ...]

    @cached_property
    def score(self) -> float | None:
        """The mean accuracy beyond the training length, by which settings are chosen; None if a run failed."""
        found = [run.evaluation.mean_beyond for run in self.runs if run.evaluation is not None]
        return mean(found) if len(found) == len(self.runs) else None


@dataclass(frozen=True)
class Tuning:
    """Everything that was tried for one arm."""

    arm: str
    tried: tuple[Tried, ...]
    """Those with the most seeds first, and of these the best first."""
    chosen: Tried | None
    """The settings of the arm's runs; None if they were not tried, or if a configuration cannot be read."""

    @cached_property
    def fields(self) -> set[str]:
        """The fields in which the tried settings differ, without those of a phase that the arm does not have."""
        fields = {field for one in self.tried for field in one.settings}
        differ = {field for field in fields if len({one.settings.get(field) for one in self.tried}) > 1}
        has_delay = any(one.settings.get("delay") != "null" for one in self.tried)
        return differ if has_delay else {field for field in differ if not field.startswith("training.delayed.")}

    @property
    def next_best(self) -> float | None:
        """The best score of the other settings that were tried on as many seeds."""
        rivals = [one for one in self.tried if self.chosen and one is not self.chosen]
        scores = [one.score for one in rivals if self.chosen and len(one.runs) == len(self.chosen.runs)]
        return max((score for score in scores if score is not None), default=None)

    @property
    def at_an_end(self) -> list[str]:
        """The fields whose chosen value is the smallest or the largest of at least three numbers."""
        found: dict[str, None] = {}
        for field in sorted(self.fields) if self.chosen else ():
            values = {_number(one.settings.get(field)) for one in self.tried}
            numbers = [value for value in values if value is not None]
            ends = (min(numbers), max(numbers)) if len(numbers) == len(values) > 2 else ()
            if self.chosen and _number(self.chosen.settings.get(field)) in ends:
                found[field.rpartition(".")[2]] = None
        return list(found)

    def overrides(self, one: Tried) -> Cell:
        """Return the settings in which the tried ones differ."""
        return as_overrides({name: value for name, value in one.settings.items() if name in self.fields})


def choices_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """Return the chosen settings of each arm; `tuning` has the runs on tuning seeds."""
    arms = _tunings(panel, tuning)
    ends = [f"{one.arm} ({', '.join(one.at_an_end)})" for one in arms if one.at_an_end]
    more = f" Chosen at an end of the tried range, so values beyond it may be better: {join_words(ends)}." * bool(ends)
    return Table(
        title=f"Chosen settings: {panel.title}",
        head=("arm", "chosen", "of", "tuning seeds", "mean beyond", "next best"),
        rows=tuple((Cell(one.arm), *_chosen(one)) for one in arms),
        note=(
            "Each arm has the settings with the highest mean accuracy over the tested lengths beyond the training "
            "length, on tuning seeds that are not reported. Next best: the highest of the others that were tried on as "
            "many seeds. It can be higher if failed runs were repeated after the choice. These figures are biased "
            "upwards by the choice; those of the other tables are from other seeds. "
            f"Only settings that differ between the tried ones are shown.{more}"
        ),
        names=2,
    )


def _chosen(one: Tuning) -> tuple[Cell, ...]:
    if not one.tried:
        return (EMPTY,) * 5
    many = Cell("the only one" if len(one.tried) == 1 else f"{len(one.tried)} settings")
    rounds = Cell(", the best on ".join(map(str, sorted({len(tried.runs) for tried in one.tried}))))
    if one.chosen is None or one.chosen.score is None:
        return (EMPTY, many, rounds, EMPTY, EMPTY)
    return (one.overrides(one.chosen), many, rounds, _score(one.chosen.score), _score(one.next_best))


def tried_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """Return all settings that were tried, the best of an arm first."""
    rows = []
    for arm in _tunings(panel, tuning):
        for one in arm.tried:
            done = sum(run.evaluation is not None for run in one.runs)
            seeds = str(done) if done == len(one.runs) else f"{done} of {len(one.runs)}"
            name = f"{arm.arm}{' (chosen)' * (one is arm.chosen)}"
            rows.append((Cell(name), arm.overrides(one), Cell(seeds), _score(one.score)))
    return Table(
        title=f"All tried settings: {panel.title}",
        head=("arm", "setting", "tuning seeds", "mean beyond"),
        rows=tuple(rows),
        note="Settings that were tried on more seeds come first. Settings with a failed run are not chosen.",
        names=2,
    )


def _tunings(panel: Panel, tuning: Sequence[RunRecord]) -> list[Tuning]:
    """Return what was tried for each arm of a panel."""
    by_choice: dict[str, list[RunRecord]] = {}
    for run in tuning:
        by_choice.setdefault(run.arm, []).append(run)
    tried: dict[str, list[Tried]] = {}
    for name, runs in by_choice.items():
        tried.setdefault(name.rpartition(CHOICE)[0], []).append(Tried(run_settings(runs[0]), tuple(runs)))
    found = []
    for arm in panel.arms:
        own = run_settings(next(run for run in panel.runs if run.arm == arm))
        mine = sorted(tried.get(arm, []), key=lambda one: (-len(one.runs), 1.0 if one.score is None else -one.score))
        found.append(Tuning(arm, tuple(mine), next((one for one in mine if own and one.settings == own), None)))
    return found


def _number(value: str | None) -> float | None:
    try:
        return float(value or "none")
    except ValueError:
        return None


def _score(score: float | None) -> Cell:
    return EMPTY if score is None else percent(score)
