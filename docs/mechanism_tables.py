"""Compute the tables and draw the charts of docs/results/mechanism.md; docs/fill.py writes them."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr
from values import (
    FAR,
    ROOT,
    accuracy,
    at,
    by_seed,
    count,
    evaluations,
    exact,
    label,
    p_value,
    records,
    seeds,
    table,
)

from latebloom.probes.ablation import ATTENTION_OFF, INTACT
from latebloom.probes.interference import mean_cosine
from latebloom.probes.sharpness import best_head_weights, majority_lost
from latebloom.probes.table import Chart, Table
from latebloom.report.charts import Spec, by_run, layer, layered, legend_of, nominal, quantity
from latebloom.report.compared import comparisons
from latebloom.report.figures import all_figures
from latebloom.report.hypotheses import judge, overall
from latebloom.report.mechanisms import Verdict
from latebloom.report.page import Section
from latebloom.report.panel import panels
from latebloom.report.probe_charts import draw as draw_probe
from latebloom.report.probe_section import ProbeSection
from latebloom.report.statistics import mean_interval
from latebloom.report.study import read_sections
from latebloom.results.probes import Probed, read_probes
from latebloom.results.stated import Difference
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.mechanism import MATCHED

STUDY = "mechanism"
ARMS = ("joint", "dat", MATCHED)
TASKS = {"composite": "sum and recall", "modular_sum": "sum alone"}
"""The tasks of the study, and their names on the page."""
VALUES, RESET = "values of another sequence", "state reset"
"""Ablations that the page names."""


def arm(task: str, name: str) -> str:
    return f"{STUDY}:{task}/{name}"


@cache
def _sections() -> dict[str, Section]:
    found = read_sections([ROOT / "results" / f"{STUDY}.parquet", ROOT / "results" / f"{STUDY}-probes"])
    return {section.panel.task: section for section in found}


def _probed(task: str) -> ProbeSection:
    probed = _sections()[task].probed
    assert probed is not None
    return probed


@cache
def _tables(probe: str) -> list[Probed]:
    return read_probes([ROOT / "results" / f"{STUDY}-probes" / f"{probe}.parquet"])[probe]


def _runs(probe: str, task: str) -> list[Probed]:
    return [run for run in _tables(probe) if run.task == task]


# Tables and figures


def sums() -> str:
    """Return the accuracy of the sum of every arm by length on both tasks, and its hypothesis with what was seen."""
    tested = hypotheses()
    rows = []
    for task in reversed(TASKS):
        for name in ARMS:
            cells = [f"{TASKS[task]}: {label(arm(task, name))}", accuracy(arm(task, name), (1, 3, FAR), "sum")]
            rows.append("|".join([*cells, seeds(arm(task, name), exact), tested.get((task, name), "")]))
    return table("|1x|3x|16x|exact|ahead of joint at 16x", rows)


def exact_seeds(task: str, name: str) -> str:
    """Count the exact seeds of an arm."""
    return seeds(arm(task, name), exact)


def _verdicts(task: str, name: str) -> list[Verdict]:
    probed = _probed(task)
    return list(probed.verdicts if name == probed.arms["delayed"] else probed.others[name])


def mechanisms() -> str:
    """Return the verdict on each of the paper's mechanisms with its number, by task and arm with a delay."""
    columns = [(task, name) for task in TASKS for name in ARMS[1:]]
    found = [_verdicts(*column) for column in columns]
    rows = [
        "|".join([verdicts[0].mechanism.partition(" (")[0], *map(_verdict_cell, verdicts)])
        for verdicts in zip(*found, strict=True)
    ]
    return table("|".join(["", *(f"{TASKS[task]}: {label(arm(task, name))}" for task, name in columns)]), rows)


def _verdict_cell(verdict: Verdict) -> str:
    if not verdict.effect:
        return "nothing to measure"
    found = mean_interval(verdict.effect.values())
    return f"{verdict.word}: {found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def hypotheses() -> dict[tuple[str, str], str]:
    """Return what was seen of the hypothesis on each task and arm, and its verdict."""
    panels = [section.panel for section in _sections().values()]
    found = {}
    for one, (judged,) in judge(plan_of(find_study(STUDY), "paper").hypotheses, panels):
        (test,) = one.predictions
        assert isinstance(test, Difference)
        seen = judged.seen.replace(" points over 20 seeds", "")
        found[test.task, test.arm] = f"{seen}: {overall([judged])}"
    return found


def _accuracy(run: Probed, change: str, answer: str, length: int = 25) -> float:
    (found,) = run.table.values("accuracy", change=change, answer=answer, length=length)
    return found


def ablated(task: str, name: str, change: str, answer: str = "sum") -> str:
    """Return the accuracy of an answer at the training length after a change: the mean over seeds."""
    runs = (run for run in _runs("ablation", task) if run.arm == name)
    return f"{fmean(_accuracy(run, change, answer) for run in runs):.0%}"


def _reliance(task: str) -> list[tuple[float, float]]:
    """Return for each seed of joint training the sum's accuracy without attention at 1x, and intact at 16x."""
    off = {run.seed: _accuracy(run, ATTENTION_OFF, "sum") for run in _runs("ablation", task) if run.arm == "joint"}
    far = by_seed(arm(task, "joint"), FAR, "sum")
    return [(off[seed], far[seed]) for seed in sorted(off)]


def rank_correlation(task: str) -> str:
    """Return Spearman's correlation of both, with its p."""
    off, far = zip(*_reliance(task), strict=True)
    found: Any = spearmanr(off, far)
    return f"{found.statistic:.2f}, p {p_value(found.pvalue)}"


def counted(task: str, relies: bool, fails: bool | None = None) -> int:
    """Count the seeds of joint training whose sum at 1x is below 98% without attention, or is not; if `fails` is given,
    those of them whose sum is below 50% at 16x, or those that are above."""
    found = [far < 0.5 for off, far in _reliance(task) if (off < 0.98) == relies]
    return len(found) if fails is None else found.count(fails)


def incomplete() -> str:
    """Count the seeds of joint training on the sum alone that fail at 16x and are not perfect at 1x."""
    near, far = (by_seed(arm("modular_sum", "joint"), multiple, "sum") for multiple in (1, FAR))
    return count([near[seed] for seed in near if far[seed] < 0.5], lambda accuracy: accuracy < 1)


def fail_without_shortcut() -> str:
    """Count the seeds of DAT, of both arms and tasks, whose sum is below 90% at 16x, of those that need no attention
    for it: the accuracy of the sum at 1x is the same without."""
    found = []
    for task in TASKS:
        for name in ARMS[1:]:
            far = by_seed(arm(task, name), FAR, "sum")
            for run in (run for run in _runs("ablation", task) if run.arm == name):
                if _accuracy(run, INTACT, "sum") == _accuracy(run, ATTENTION_OFF, "sum"):
                    found.append(far[run.seed])
    return count(found, lambda accuracy: accuracy < 0.9)


def sequences() -> str:
    """Return the number of sequences of an ablation."""
    ((number,),) = {tuple(set(run.table.values("sequences"))) for run in _tables("ablation")}
    return str(number)


def recall_first() -> str:
    """Count the seeds of joint training whose recall at 16x is more than two points below their sum."""
    sums, recalls = (by_seed(arm("composite", "joint"), FAR, answer) for answer in ("sum", "recall"))
    return count(sums, lambda seed: recalls[seed] < sums[seed] - 0.02)


def direction(task: str, name: str, column: str) -> str:
    """Return the mean cosine in a column while attention takes part: the mean over seeds."""
    found = (mean_cosine(run.table, column) for run in _runs("interference", task) if run.arm == name)
    return f"{fmean(one for one in found if one is not None):.2f}"


def raised(task: str, name: str, column: str) -> str:
    """Return the share of measurements, while attention takes part, in which a step along a gradient raises the
    loss that its column names: the mean over seeds."""
    shares = []
    for run in _runs("interference", task):
        if run.arm == name:
            rows = [row for row in run.table.records(part="total") if row["attention"] and row[column] is not None]
            shares.append(fmean(row[column] < 0 for row in rows))
    return f"{fmean(shares):.0%}"


def _best_head(run: Probed) -> list[tuple[int, float]]:
    best = majority_lost(run.table)
    return [] if best is None else list(best_head_weights(run.table, *best[:2]))


def weight(name: str, multiple: float) -> str:
    """Return the best head's weight on the requested item: the mean over the seeds of the composite task."""
    runs = (run for run in _runs("sharpness", "composite") if run.arm == name)
    return f"{fmean(dict(_best_head(run))[round(25 * multiple)] for run in runs):.0%}"


def state_read(task: str, name: str, length: int = 200) -> str:
    """Return how well a linear classifier reads the state from the best layer: the mean over seeds."""
    runs = (run for run in _runs("state", task) if run.arm == name)
    return (
        f"{fmean(run.table.values('accuracy', feature='best', control='none', length=length)[0] for run in runs):.0%}"
    )


def recall(name: str) -> str:
    return f"{fmean(at(run, FAR, 'recall') for run in evaluations(arm('composite', name)).values()):.1%}"


# Charts


def _named(runs: Iterable[Probed]) -> list[Probed]:
    order = [label(arm("composite", name)) for name in ARMS]
    return sorted(
        (replace(run, arm=label(arm(run.task, run.arm))) for run in runs), key=lambda run: order.index(run.arm)
    )


def _drawn(chart: Chart, runs: list[Probed]) -> Spec:
    ((_, spec),) = draw_probe(chart, runs, list(dict.fromkeys(run.arm for run in runs)))
    return spec


def accuracy_chart() -> Spec:
    """Draw the accuracy of the sum alone by length."""
    names = {name: label(arm("modular_sum", name)) for name in ARMS}
    runs = [
        replace(run, arm=names[run.arm], against=tuple(names[other] for other in run.against))
        for run in records(f"{STUDY}:modular_sum")
    ]
    (panel,) = panels(runs)
    chart = next(one.chart for one in all_figures(panel, *comparisons([panel])) if one.name == "accuracy")
    return chart | {"title": "Sum alone, trained up to length 25"}


def gradients_chart() -> Spec:
    from latebloom.probes.interference import GradientInterference

    return _drawn(GradientInterference.chart, _named(_runs("interference", "composite")))


def state_chart() -> Spec:
    from latebloom.probes.state import State

    return _drawn(State.chart, _named(_runs("state", "composite")))


def sharpness_chart() -> Spec:
    columns = _tables("sharpness")[0].table.columns
    runs = []
    for run in _named(_runs("sharpness", "composite")):
        rows = [
            {"length": n, "right": w, "layer": 0, "head": 0, "entropy": 0.0, "largest": 0.0, "sequences": 1}
            for n, w in _best_head(run)
        ]
        runs.append(replace(run, table=Table.of(columns, rows)))
    chart = Chart(
        kind="lines", title="Weight of the best head on the requested item", x="length", value="right",
        value_title="weight", bounds=(0.0, 1.0), log=True,
    )  # fmt: skip
    return _drawn(chart, runs)


def reliance_chart() -> Spec:
    """Draw each seed of joint training: the sum's accuracy without attention at 1x, and intact at 16x."""
    points = [{"run": TASKS[task], "x": off, "y": far} for task in reversed(TASKS) for off, far in _reliance(task)]
    names = [TASKS[task] for task in reversed(TASKS)]
    legend = legend_of(names, symbolSize=130)
    scale = {"domain": [0, 1]}
    place = {
        "x": quantity(
            "x", title="accuracy of the sum at 1x with attention switched off", scale=scale, axis={"format": "%"}
        ),
        "y": quantity("y", title="accuracy of the sum at 16x", scale=scale, axis={"format": "%"}),
        "color": by_run(names, legend),
        "shape": by_run(names, legend, ("circle", "square")),
        "tooltip": [nominal("run"), quantity("x", format=".1%"), quantity("y", format=".1%")],
    }
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 0.75}
    return layered([layer(mark, place)], points, "Joint training: one point for each seed", height=260)


CHARTS = {
    "mechanism-accuracy": accuracy_chart,
    "mechanism-reliance": reliance_chart,
    "mechanism-gradients": gradients_chart,
    "mechanism-state": state_chart,
    "mechanism-sharpness": sharpness_chart,
}
"""The pictures of the page that the report does not have in this form, by the names of their files."""
