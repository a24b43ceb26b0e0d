"""How an arm's settings were chosen: what was tried on held-out seeds, and by how much the chosen ones won."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from latebloom.report.differences import Settings, as_written, run_settings, settings_of
from latebloom.report.panel import Panel
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.report.words import row
from latebloom.results.record import CHOICE, RunRecord


@dataclass(frozen=True)
class Tried:
    """A setting that was tried for an arm."""

    settings: Settings
    runs: tuple[RunRecord, ...]

    @property
    def score(self) -> float | None:
        """What is chosen by: the mean accuracy beyond the training length; None if a run failed, as in the choice."""
        found = [run.evaluation.mean_beyond for run in self.runs if run.evaluation is not None]
        return mean(found) if len(found) == len(self.runs) else None


def choices_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """A row an arm of a study that chose; `tuning` holds the runs on which it did."""
    tried = _tried(tuning)
    ends = {arm: _at_an_end(panel, arm, tried.get(arm, [])) for arm in panel.arms}
    at_an_end = [f"{arm} ({', '.join(fields)})" for arm, fields in ends.items() if fields]
    beyond = (
        f" Chosen at an end of what was tried, and perhaps better beyond it: {row(at_an_end)}." if at_an_end else ""
    )
    overtaken = [arm for arm in panel.arms if _is_overtaken(panel, arm, tried.get(arm, []))]
    if overtaken:
        beyond += (
            f" Of {row(overtaken)} another setting has done better since, when runs that had failed were tried again; "
            "the runs of the study had begun by then."
        )
    return Table(
        title=f"How settings were chosen: {panel.title}",
        head=("arm", "chosen", "of", "on held-out seeds", "mean beyond", "next best"),
        rows=tuple((Cell(arm), *_chosen(panel, arm, tried.get(arm, []))) for arm in panel.arms),
        note=(
            "Of the settings that were tried for an arm those are chosen that have the highest mean accuracy over the "
            "tested lengths beyond the training length, on seeds that are not reported. Next best: the highest among "
            "the others that were tried on as many seeds. Being chosen flatters these figures; the other tables' are "
            f"of other seeds. Of the settings only those are named in which the tried ones differ.{beyond}"
        ),
        names=2,
    )


def tried_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """A row for every setting that was tried, the best of an arm first."""
    rows, of_arm = [], _tried(tuning)
    for arm in panel.arms:
        tried = of_arm.get(arm, [])
        differ, won = _differing(tried), _won(panel, arm, tried)
        for one in sorted(tried, key=_standing, reverse=True):
            chosen = " (chosen)" if one is won else ""
            done = sum(run.evaluation is not None for run in one.runs)
            seeds = str(done) if done == len(one.runs) else f"{done} of {len(one.runs)}"
            rows.append((Cell(f"{arm}{chosen}"), _named(one.settings, differ), Cell(seeds), _percent(one.score)))
    return Table(
        title=f"Every setting that was tried: {panel.title}",
        head=("arm", "setting", "held-out seeds", "mean beyond"),
        rows=tuple(rows),
        note="Those that were tried on more seeds come first. One with a run that failed is not chosen.",
        names=2,
    )


def _standing(one: Tried) -> tuple[int, float]:
    return len(one.runs), -1.0 if one.score is None else one.score


def _tried(tuning: Sequence[RunRecord]) -> dict[str, list[Tried]]:
    """What was tried, by arm."""
    runs: dict[str, list[RunRecord]] = {}
    for run in tuning:
        runs.setdefault(run.arm, []).append(run)
    tried: dict[str, list[Tried]] = {}
    for name, some in runs.items():
        tried.setdefault(name.rpartition(CHOICE)[0], []).append(Tried(run_settings(some[0]), tuple(some)))
    return tried


def _chosen(panel: Panel, arm: str, tried: list[Tried]) -> tuple[Cell, ...]:
    if not tried:
        return (EMPTY,) * 5
    many = "the only one" if len(tried) == 1 else f"{len(tried)} settings"
    rounds = sorted({len(one.runs) for one in tried})
    said = Cell(many), Cell(", the best on ".join(map(str, rounds)))
    won = _won(panel, arm, tried)
    if won is None or won.score is None:
        return (EMPTY, *said, EMPTY, EMPTY)
    others = [one.score for one in tried if one is not won and len(one.runs) == len(won.runs)]
    next_best = max((score for score in others if score is not None), default=None)
    return (_named(won.settings, _differing(tried)), *said, _percent(won.score), _percent(next_best))


def _is_overtaken(panel: Panel, arm: str, tried: list[Tried]) -> bool:
    won = _won(panel, arm, tried)
    rivals = [one.score for one in tried if won and len(one.runs) == len(won.runs) and one.score is not None]
    return won is not None and won.score is not None and max(rivals) > won.score


def _won(panel: Panel, arm: str, tried: list[Tried]) -> Tried | None:
    """The setting that an arm's runs have; None if none of them or, where a configuration cannot be read, not known."""
    mine = settings_of(panel, arm)
    return next((one for one in tried if mine and one.settings == mine), None)


def _differing(tried: list[Tried]) -> set[str]:
    """The fields in which the settings of an arm differ, those of a phase that it does not have left out."""
    fields = {field for one in tried for field in one.settings}
    differ = {field for field in fields if len({one.settings.get(field) for one in tried}) > 1}
    has_delay = any(one.settings.get("delay") != "null" for one in tried)
    return differ if has_delay else {field for field in differ if not field.startswith("training.delayed.")}


def _at_an_end(panel: Panel, arm: str, tried: list[Tried]) -> list[str]:
    """Of which settings an arm has the least or the greatest number that was tried, where there were three or more."""
    won = _won(panel, arm, tried)
    if won is None:
        return []
    found: dict[str, None] = {}
    for field in sorted(_differing(tried)):
        values = {_number(one.settings.get(field)) for one in tried}
        numbers = [value for value in values if value is not None]
        if len(numbers) == len(values) > 2 and _number(won.settings[field]) in (min(numbers), max(numbers)):
            found[field.rpartition(".")[2]] = None
    return list(found)


def _number(value: str | None) -> float | None:
    try:
        return float(value or "none")
    except ValueError:
        return None


def _named(settings: Settings, fields: set[str]) -> Cell:
    return as_written({name: value for name, value in settings.items() if name in fields})


def _percent(score: float | None) -> Cell:
    return EMPTY if score is None else Cell(f"{score:.1%}")
