"""Compute the figures and tables of README.md and docs/ from the files in results/.

A page names a figure by an expression over the functions here, for example `mean("paper/joint", 3)`, which docs/fill.py
evaluates. An arm is FILE/ARM, or FILE:TASK/ARM where the task is not the composite one. A multiple is a tested length
divided by the training length. Arms are shown in the words of the table in docs/results/README.md.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from latebloom.evaluation import Count, Evaluation
from latebloom.evaluation.result import HOLDS_AT
from latebloom.report import study_tables
from latebloom.report.settings import Settings, run_settings
from latebloom.report.statistics import SETTLED_AT, Comparison, Estimate, compare_arms, holm, mean_interval
from latebloom.results.file import read_results
from latebloom.results.record import CHOICE, RunRecord

Condition = Callable[[Any], bool]
ROOT = Path(__file__).parent.parent
NEAR, FAR = 3, 16
EXACT = 0.99
FIRST_ROUND = (1000, 1001)
"""The tuning seeds on which every setting of the study `paper` was tried."""
UNSEEN_SEEDS = range(10, 100)
"""The seeds of the OLMo-Hybrid example on which nothing was chosen."""


# Reading


@cache
def records(source: str) -> list[RunRecord]:
    """Return the runs of FILE or FILE:TASK."""
    name, _, task = source.partition(":")
    path = ROOT / "results" / f"{name}.parquet"
    if path.exists():
        return [run for run in read_results([path]) if run.task == (task or "composite")]
    return [_record(name, run) for run in json.loads(path.with_suffix(".json").read_text())["runs"]]


def _record(study: str, run: Mapping[str, Any]) -> RunRecord:
    """Return a run of a JSON file in the form of those in a parquet file."""
    if "evaluation" in run:
        arm, evaluation = run.get("arm", "dat"), Evaluation.from_json(run["evaluation"])
        if "learning_rate" in run and run["seed"] not in UNSEEN_SEEDS:
            arm += f"{CHOICE}{run['learning_rate']:g}"
    else:  # the demo's file has accuracies over 1,024 sequences
        arm, right = run["name"], run["accuracy"]
        counts = tuple(
            Count(int(n), 1024, round(1024 * both), {name: round(1024 * right[name][n]) for name in ("sum", "recall")})
            for n, both in right["both"].items()
        )
        evaluation = Evaluation(run["training_length"], counts, {"sum": 1 / 5, "recall": 1 / 32}, 1 / 160)
    return RunRecord(
        study=study, task="composite", arm=arm, seed=run["seed"], training_length=evaluation.training_length,
        evaluation=evaluation, config="{}", config_hash="", command="",
    )  # fmt: skip


@cache
def evaluations(arm: str) -> dict[int, Evaluation]:
    """Return the evaluation of each seed of an arm."""
    source, _, name = arm.partition("/")
    found = {run.seed: run.evaluation for run in records(source) if run.arm == name and run.evaluation is not None}
    if not found:
        raise KeyError(f"{arm} has no runs; {source} has {', '.join({run.arm: 0 for run in records(source)})}")
    return found


def at(run: Evaluation, multiple: float, answer: str | None = None) -> float:
    return run.accuracy(round(multiple * run.training_length), answer)


def by_seed(arm: str, multiple: float, answer: str | None = None) -> dict[int, float]:
    return {seed: at(run, multiple, answer) for seed, run in evaluations(arm).items()}


@cache
def label(arm: str) -> str:
    """Return the plain words for an arm, from the table in docs/results/README.md."""
    name, page = arm.partition("/")[2], (ROOT / "docs" / "results" / "README.md").read_text()
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", page, re.MULTILINE)).get(name, name)


def tried(arm: str, seeds: Sequence[int] = ()) -> list[tuple[Settings, list[Evaluation]]]:
    """Return each setting that was tried for an arm of the study `paper`, with its runs on (some) tuning seeds."""
    found: dict[str, list[RunRecord]] = {}
    for run in records("paper-tuning"):
        if run.arm.rpartition(CHOICE)[0] == arm and run.evaluation and (run.seed in seeds or not seeds):
            found.setdefault(run.arm, []).append(run)
    return [(run_settings(runs[0]), [run.evaluation for run in runs if run.evaluation]) for runs in found.values()]


@cache
def chosen(arm: str) -> tuple[Settings, list[Evaluation]]:
    """Return the setting that was chosen for an arm of the study `paper`, with its runs on tuning seeds."""
    wanted = next(run_settings(run) for run in records("paper") if run.arm == arm)
    return next(one for one in tried(arm) if one[0] == wanted)


@cache
def compare(first: str, second: str, multiple: float, from_seed: int = 0) -> Comparison:
    a, b = ({seed: x for seed, x in by_seed(arm, multiple).items() if seed >= from_seed} for arm in (first, second))
    found = compare_arms(first, second, a, b)
    assert found is not None, "a comparison needs two shared seeds"
    return found


def planned(study: str, multiple: float, from_seed: int = 0) -> list[Comparison]:
    """Return every comparison that a study plans, with Holm's correction for all of them."""
    runs = [(source, run) for source in (study, f"{study}:modular_sum") for run in records(source)]
    pairs = {(f"{source}/{run.arm}", f"{source}/{other}"): 0 for source, run in runs for other in run.against}
    return holm([compare(*pair, multiple, from_seed) for pair in pairs])


# Figures in sentences


def mean(arm: str, multiple: float, answer: str | None = None, digits: int = 0, of: Callable[..., Any] = fmean) -> str:
    """Return the mean accuracy over seeds, or what `of` makes of them."""
    return f"{of(by_seed(arm, multiple, answer).values()):.{digits}%}"


def count(items: Iterable[Any], condition: Condition) -> str:
    """Count the items that meet a condition: "13 of 20"."""
    found = list(map(condition, items))
    return f"{sum(found)} of {len(found)}"


def seeds(arm: str, condition: Condition) -> str:
    """Count the seeds of an arm that meet a condition."""
    return count(evaluations(arm).values(), condition)


def first_round(arm: str, condition: Condition) -> str:
    """Count the settings of an arm that meet a condition on both seeds of the first round."""
    return count(tried(arm, FIRST_ROUND), lambda one: all(map(condition, one[1])))


def holds(run: Evaluation) -> bool:
    """Return whether accuracy is at least 90% at three times the training length."""
    return at(run, NEAR) >= HOLDS_AT


def exact(run: Evaluation) -> bool:
    """Return whether accuracy is at least 99% at three and at sixteen times the training length."""
    return min(at(run, NEAR), at(run, FAR)) >= EXACT


def cliff(run: Evaluation) -> bool:
    return run.cliff is not None


def points(first: str, second: str, multiple: float) -> str:
    """Return the size of a paired difference in whole percentage points."""
    return f"{abs(100 * compare(first, second, multiple).difference.mean):.0f}"


def p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def corrected(first: str, second: str, multiple: float) -> str:
    """Return the corrected p of a planned comparison."""
    study = re.split("[/:]", first)[0]
    return next(p_value(o.p_corrected) for o in planned(study, multiple) if (o.first, o.second) == (first, second))


def settled(study: str, from_seed: int = 0) -> list[str]:
    """Return the comparisons at 3x that are significant after correction."""
    found = [one for one in planned(study, NEAR, from_seed) if one.p_corrected < SETTLED_AT]
    return [f"{label(one.first)} against {label(one.second)}" for one in found]


def apart(arms: Sequence[str], multiple: float) -> str:
    """Return by how many points a seed differs at most between repetitions of an arm."""
    first, *others = (by_seed(arm, multiple) for arm in arms)
    return f"{100 * max(abs(other[seed] - first[seed]) for other in others for seed in first):.0f}"


def made(study: str) -> str:
    """Say where and by which command the runs of a study were made."""
    runs = read_results([ROOT / "results" / f"{study}.parquet"])
    ((machine, versions, commit),) = {(run.machine, run.versions, run.commit) for run in runs}
    command = f"`latebloom study {study} --scale paper`"
    changed = " with uncommitted changes" * (commit or "").endswith("+")
    return f"{len(runs)} runs of {command}: {machine}, {versions}, commit {(commit or '')[:7]}{changed}."


# Tables


def table(head: str, rows: Iterable[str]) -> str:
    """Return a Markdown table; cells are separated by `|`."""
    lines = (head, "---" + "|---:" * head.count("|"), *rows)
    return "\n".join(f"| {line.replace('|', ' | ')} |" for line in lines)


def interval(one: Estimate, signed: bool = False) -> str:
    cell = study_tables.points(one) if signed else study_tables.percent(one.mean, one.low, one.high)
    return cell.plain if one.seeds > 2 else cell.text


def accuracy(arm: str, multiples: Sequence[float], answer: str | None = None) -> str:
    """Return the cells with an arm's accuracy at each multiple."""
    return "|".join(interval(mean_interval(by_seed(arm, multiple, answer).values())) for multiple in multiples)


def accuracies(
    arms: Sequence[str] | Mapping[str, str], multiples: Sequence[float] = (1, NEAR, FAR), answer: str | None = None
) -> str:
    """Return a row for each arm with its accuracy at each multiple; a mapping names the rows."""
    named = arms if isinstance(arms, Mapping) else {label(arm): arm for arm in arms}
    counts = {"90% at 3x": holds, "exact": exact} if FAR in multiples else {"90% at 3x": holds}
    counts = counts if answer is None else {}
    rows = []
    for name, arm in named.items():
        cells = [name, str(len(evaluations(arm))), accuracy(arm, multiples, answer)]
        rows.append("|".join(cells + [seeds(arm, condition) for condition in counts.values()]))
    return table("|".join(["", "seeds", *(f"{multiple}x" for multiple in multiples), *counts]), rows)


def reaches(*arms: str) -> str:
    """Return the reach of each arm, and how many seeds have a cliff."""
    rows = []
    for arm in arms:
        found = [run.reach for run in evaluations(arm).values()]
        one, far = mean_interval(found), seeds(arm, lambda run: run.reach >= FAR)
        reach = f"{one.mean:.1f}x [{one.low:.1f}, {one.high:.1f}]|{min(found):g}x to {max(found):g}x"
        rows.append(f"{label(arm)}|{reach}|{far}|{seeds(arm, cliff)}")
    return table("|mean reach|range|hold to 16x|with a cliff", rows)


def differences(pairs: Sequence[tuple[str, str]] | Mapping[str, tuple[str, str]]) -> str:
    """Return the paired difference of each pair of arms, in percentage points; a mapping names the rows."""
    named = pairs if isinstance(pairs, Mapping) else {f"{label(a)} − {label(b)}": (a, b) for a, b in pairs}
    rows = []
    for name, pair in named.items():
        found = (compare(*pair, multiple) for multiple in (NEAR, FAR))
        rows.append("|".join([name, *(f"{interval(one.difference, True)}|{p_value(one.p)}" for one in found)]))
    return table("|3x|p|16x|p", rows)


def effects(study: str) -> str:
    """Return every planned comparison near and far with its corrected p; bold where it is significant."""
    rows = []
    for both in zip(planned(study, NEAR), planned(study, FAR), strict=True):
        cells = [label(both[0].first), label(both[0].second)]
        for one in both:
            bold = "**" * (one.p_corrected < SETTLED_AT)
            cells.append(f"{bold}{interval(one.difference, True)}{bold}|{p_value(one.p_corrected)}")
        rows.append("|".join(cells))
    return table("arm|compared with|3x|p|16x|p", rows)


def switches(source: str, rate: str) -> str:
    """Return when each arm at a learning rate switches, and how far it is behind the best fixed switch at 16x."""
    arms = {f"{source}/{run.arm}": 0 for run in records(source) if f"({rate})" in run.arm}
    best = max((arm for arm in arms if "/at " in arm), key=lambda arm: fmean(by_seed(arm, FAR).values()))
    rows = []
    for arm in arms:
        steps = [run.switch_step for run in records(source) if f"{source}/{run.arm}" == arm and run.switch_step]
        spread = f" [{min(steps):,}, {max(steps):,}]" if len(set(steps)) > 1 else ""
        moment = f"{median(steps):,.0f}{spread}" if steps else "none"
        behind = "" if arm == best else interval(compare(best, arm, FAR).difference, True)
        rows.append(f"{label(arm).partition(' (')[0]}|{moment}|{accuracy(arm, (NEAR, FAR))}|{behind}")
    return table("switch|at step|3x|16x|best fixed − this, 16x", rows)


def tuning(*arms: str) -> str:
    """Return what was chosen for each arm of the study `paper`, and its accuracy on the tuning seeds."""
    rows = []
    for arm in arms:
        config, runs = chosen(arm)
        numbers = (f"{float(config[f'training.{name}']):g}" for name in ("full.learning_rate", "state_noise"))
        scales = config["model.attention.scores.name"] == "log_n" and "a" in config["model.layout"]
        per = {"answers": "answer", "positions": "token"}[config["training.weigh"]]
        cliffs = count((run for _, some in tried(arm, FIRST_ROUND) for run in some), cliff)
        means = (f"{fmean(at(run, multiple) for run in runs):.1%}" for multiple in (NEAR, FAR))
        choice = [*numbers, "log-n" if scales else "plain", per, first_round(arm, holds), cliffs]
        rows.append("|".join([label(f"paper/{arm}"), *choice, *means]))
    return table("|rate|state noise|scores|loss per|settings at 90% at 3x|runs with a cliff|3x|16x", rows)


def noise() -> str:
    """Return DAT's mean accuracy at 16x on the tuning seeds by learning rate, without and with state noise."""
    found: dict[float, tuple[list[float], list[float]]] = {}
    for config, runs in tried("dat"):
        without_and_with = found.setdefault(float(config["training.full.learning_rate"]), ([], []))
        without_and_with[float(config["training.state_noise"]) > 0].extend(at(run, FAR) for run in runs)
    rows = []
    for rate, both in sorted(found.items()):
        cells = (f"{fmean(one):.0%} ({min(one):.0%} to {max(one):.0%})" for one in both)
        rows.append("|".join([f"{rate:g}", *cells]))
    return table("rate|without noise|with noise", rows)
