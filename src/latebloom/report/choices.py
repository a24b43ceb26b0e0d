"""How an arm's settings were chosen: what was tried on held-out seeds, and by how much the chosen ones won."""

from statistics import mean

from latebloom.report.differences import Settings, as_written, settings_of
from latebloom.report.panel import Panel
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.results.record import CHOICE


def choices_table(panel: Panel, tuning: Panel) -> Table:
    """A row an arm of a study that chose; `tuning` holds the runs on which it did."""
    tried: dict[str, dict[str, Settings]] = {}
    for name in dict.fromkeys(run.arm for run in tuning.runs):
        tried.setdefault(name.rpartition(CHOICE)[0], {})[name] = settings_of(tuning, name)
    rows = [(Cell(arm), *_chosen(panel, tuning, arm, tried.get(arm, {}))) for arm in panel.arms]
    return Table(
        title=f"How settings were chosen: {panel.title}",
        head=("arm", "chosen", "of", "on held-out seeds", "mean beyond", "next best"),
        rows=tuple(rows),
        note=(
            "Of the settings that were tried for an arm those are chosen that have the highest mean accuracy over the "
            "tested lengths beyond the training length, on seeds that are not reported. Next best: the highest among "
            "the others that were tried on as many seeds. Being chosen flatters these figures; the other tables' are "
            "of other seeds. Of the settings only those are named in which the tried ones differ."
        ),
        names=2,
    )


def _chosen(panel: Panel, tuning: Panel, arm: str, tried: dict[str, Settings]) -> tuple[Cell, ...]:
    if not tried:
        return (EMPTY,) * 5
    seeds = {name: len(tuning.finished[name]) for name in tried}
    counts = sorted({count for count in seeds.values() if count})
    said = [
        Cell(f"{len(tried)} setting{'s' * (len(tried) > 1)}"),
        Cell(", the best on ".join(map(str, counts))) if counts else EMPTY,
    ]
    mine = settings_of(panel, arm)
    won = next((name for name, settings in tried.items() if settings == mine), None)
    if won is None or not seeds[won]:
        return (EMPTY, *said, EMPTY, EMPTY)
    scores = {name: _score(tuning, name) for name in tried if seeds[name] == seeds[won]}
    others = [score for name, score in scores.items() if name != won]
    differ = {name for name, value in mine.items() if any(other.get(name) != value for other in tried.values())}
    return (
        as_written({name: value for name, value in mine.items() if name in differ}),
        *said,
        Cell(f"{scores[won]:.1%}"),
        Cell(f"{max(others):.1%}") if others else EMPTY,
    )


def _score(tuning: Panel, name: str) -> float:
    return mean(evaluation.mean_beyond for evaluation in tuning.finished[name].values())
