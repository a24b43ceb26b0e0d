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
from latebloom.report.statistics import Comparison, Estimate, compare_arms, holm, mean_interval
from latebloom.results.file import read_results
from latebloom.results.record import CHOICE, RunRecord

Summary = Callable[[Iterable[float]], float]
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
        arm, evaluation = run["arm"], Evaluation.from_json(run["evaluation"])
        if run["seed"] not in UNSEEN_SEEDS:
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
def labels() -> dict[str, str]:
    """Return the plain words for each arm's name in the files, from the table in docs/results/README.md."""
    page = (ROOT / "docs" / "results" / "README.md").read_text()
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", page, re.MULTILINE))


def label(arm: str) -> str:
    name = arm.partition("/")[2]
    return labels().get(name, name)


# Figures in sentences


def mean(arm: str, multiple: float, answer: str | None = None, digits: int = 0, of: Summary = fmean) -> str:
    """Return the mean accuracy over seeds, or what `of` makes of them."""
    return f"{of(by_seed(arm, multiple, answer).values()):.{digits}%}"


def seeds(arm: str, condition: Callable[[Evaluation], bool]) -> str:
    """Count the seeds that meet a condition: "13 of 20"."""
    return count(evaluations(arm).values(), condition)


def count(runs: Iterable[Evaluation], condition: Callable[[Evaluation], bool]) -> str:
    found = [condition(run) for run in runs]
    return f"{sum(found)} of {len(found)}"


def holds(run: Evaluation) -> bool:
    """Return whether accuracy is at least 90% at three times the training length."""
    return at(run, NEAR) >= HOLDS_AT


def exact(run: Evaluation) -> bool:
    """Return whether accuracy is at least 99% at three and at sixteen times the training length."""
    return min(at(run, NEAR), at(run, FAR)) >= EXACT


def cliff(run: Evaluation) -> bool:
    return run.cliff is not None


def always(seed: int) -> bool:
    return True


@cache
def compare(first: str, second: str, multiple: float, only: Callable[[int], bool] = always) -> Comparison:
    a, b = ({seed: x for seed, x in by_seed(arm, multiple).items() if only(seed)} for arm in (first, second))
    found = compare_arms(first, second, a, b)
    assert found is not None, "a comparison needs two shared seeds"
    return found


def points(first: str, second: str, multiple: float) -> str:
    """Return the size of a paired difference in whole percentage points."""
    return f"{abs(100 * compare(first, second, multiple).difference.mean):.0f}"


def p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def apart(arms: Sequence[str], multiple: float) -> str:
    """Return by how many points a seed differs at most between repetitions of an arm."""
    first, *others = (by_seed(arm, multiple) for arm in arms)
    return f"{100 * max(abs(other[seed] - first[seed]) for other in others for seed in first):.0f}"


def made(study: str, *tasks: str) -> str:
    """Say where and by which command the runs of a study were made."""
    runs = [run for task in ("", *tasks) for run in records(f"{study}{task}")]
    ((machine, versions, commit),) = {(run.machine, run.versions, run.commit) for run in runs}
    command = f"`latebloom study {study} --scale paper`"
    return f"{len(runs)} runs of {command}: {machine}, {versions}, commit {(commit or '')[:7]}."


def tried(arm: str, only_first: bool = False) -> list[list[RunRecord]]:
    """Return the tuning runs of an arm of the study `paper`, one list per setting."""
    found: dict[str, list[RunRecord]] = {}
    for run in records("paper-tuning"):
        if run.arm.rpartition(CHOICE)[0] == arm and (run.seed in FIRST_ROUND or not only_first):
            found.setdefault(run.arm, []).append(run)
    return list(found.values())


def scored(runs: Iterable[RunRecord]) -> list[Evaluation]:
    return [run.evaluation for run in runs if run.evaluation is not None]


def first_round(arm: str, condition: Callable[[Evaluation], bool]) -> str:
    """Count the settings of an arm that meet a condition on both seeds of the first round."""
    found = [all(map(condition, scored(runs))) for runs in tried(arm, only_first=True)]
    return f"{sum(found)} of {len(found)}"


def chosen(arm: str) -> list[Evaluation]:
    """Return the tuning runs of the setting that was chosen for an arm of the study `paper`."""
    wanted = next(_settings(run) for run in records("paper") if run.arm == arm)
    return next(scored(runs) for runs in tried(arm) if _settings(runs[0]) == wanted)


def _settings(run: RunRecord) -> dict[str, Any]:
    return {**json.loads(run.config), "seed": None}


# Tables


def rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(one: Estimate, signed: bool = False) -> str:
    form = "+.1f" if signed else ".1f"
    middle, low, high = (format(100 * (end or 0.0), form) for end in (one.mean, one.low, one.high))
    return f"{middle}{'' if signed else '%'}" + (f" [{low}, {high}]" if one.seeds > 2 else "")


def accuracies(
    arms: Sequence[str] | Mapping[str, str], multiples: Sequence[float] = (1, NEAR, FAR), answer: str | None = None
) -> str:
    """Return a row for each arm with its accuracy at each multiple; a mapping names the rows."""
    named = arms if isinstance(arms, Mapping) else {label(arm): arm for arm in arms}
    counts = {"90% at 3x": holds, "exact": exact} if FAR in multiples else {"90% at 3x": holds}
    counts = counts if answer is None else {}
    cells = [
        [name, str(len(evaluations(arm)))]
        + [interval(mean_interval(by_seed(arm, multiple, answer).values())) for multiple in multiples]
        + [seeds(arm, condition) for condition in counts.values()]
        for name, arm in named.items()
    ]
    return rows(["", "seeds", *(f"{multiple}x" for multiple in multiples), *counts], cells)


def reaches(*arms: str) -> str:
    """Return the reach of each arm, and how many seeds have a cliff."""
    cells = []
    for arm in arms:
        found = [run.reach for run in evaluations(arm).values()]
        one = mean_interval(found)
        cells.append([label(arm), f"{one.mean:.1f}x [{one.low:.1f}, {one.high:.1f}]"])
        cells[-1] += [
            f"{min(found):g}x to {max(found):g}x",
            seeds(arm, lambda run: run.reach >= FAR),
            seeds(arm, cliff),
        ]
    return rows(["", "mean reach", "range", "hold to 16x", "with a cliff"], cells)


def differences(
    pairs: Sequence[tuple[str, str]] | Mapping[str, tuple[str, str]], multiples: Sequence[float] = (NEAR, FAR)
) -> str:
    """Return the paired difference of each pair of arms, in percentage points; a mapping names the rows."""
    named = pairs if isinstance(pairs, Mapping) else {f"{label(a)} − {label(b)}": (a, b) for a, b in pairs}
    cells = []
    for name, pair in named.items():
        found = [compare(*pair, multiple) for multiple in multiples]
        cells.append([name, *(text for one in found for text in (interval(one.difference, True), p_value(one.p)))])
    return rows(["", *(text for multiple in multiples for text in (f"{multiple}x", "p"))], cells)


def planned(study: str, multiple: float, only: Callable[[int], bool] = always) -> list[Comparison]:
    """Return every comparison that a study plans, over some seeds, with Holm's correction for all of them."""
    sources = (study, f"{study}:modular_sum")
    runs = [(source, run) for source in sources for run in records(source)]
    pairs = {(f"{source}/{run.arm}", f"{source}/{other}"): 0 for source, run in runs for other in run.against}
    return holm([compare(*pair, multiple, only=only) for pair in pairs])


def corrected(first: str, second: str, multiple: float) -> str:
    """Return the corrected p of a planned comparison."""
    study = first.partition("/")[0].partition(":")[0]
    return next(p_value(o.p_corrected) for o in planned(study, multiple) if (o.first, o.second) == (first, second))


def settled(study: str, only: Callable[[int], bool] = always) -> list[str]:
    """Return the comparisons at 3x whose corrected p is below 0.05."""
    found = [one for one in planned(study, NEAR, only) if one.p_corrected < 0.05]
    return [f"{label(one.first)} against {label(one.second)}" for one in found]


def effects(study: str) -> str:
    """Return every planned comparison near and far with its corrected p; bold where p is below 0.05."""
    cells = []
    for near, far in zip(planned(study, NEAR), planned(study, FAR), strict=True):
        texts = []
        for one in (near, far):
            mark = "**" if one.p_corrected < 0.05 else ""
            texts += [f"{mark}{interval(one.difference, signed=True)}{mark}", p_value(one.p_corrected)]
        cells.append([label(near.first), label(near.second), *texts])
    return rows(["arm", "compared with", "3x", "p", "16x", "p"], cells)


def switches(source: str, rate: str) -> str:
    """Return when each arm at a learning rate switches, and how far it is behind the best fixed switch at 16x."""
    arms = [f"{source}/{name}" for name in dict.fromkeys(run.arm for run in records(source)) if f"({rate})" in name]
    best = max((arm for arm in arms if "/at " in arm), key=lambda arm: fmean(by_seed(arm, FAR).values()))
    cells = []
    for arm in arms:
        steps = [run.switch_step for run in records(source) if f"{source}/{run.arm}" == arm and run.switch_step]
        spread = f" [{min(steps):,}, {max(steps):,}]" if len(set(steps)) > 1 else ""
        behind = "" if arm == best else interval(compare(best, arm, FAR).difference, signed=True)
        cells.append([label(arm).partition(" (")[0], f"{median(steps):,.0f}{spread}" if steps else "none"])
        cells[-1] += [interval(mean_interval(by_seed(arm, multiple).values())) for multiple in (NEAR, FAR)] + [behind]
    return rows(["switch", "at step", "3x", "16x", "best fixed − this, 16x"], cells)


def tuning(*arms: str) -> str:
    """Return what was chosen for each arm of the study `paper`, and its accuracy on the tuning seeds."""
    cells = []
    for arm in arms:
        config = next(_settings(run) for run in records("paper") if run.arm == arm)
        training, model = config["training"], config["model"]
        first = [run for runs in tried(arm, only_first=True) for run in scored(runs)]
        cells.append([
            label(f"paper/{arm}"), f"{training['full']['learning_rate']:g}", f"{training['state_noise']:g}",
            "log-n" if model["attention"]["sharpen"] and "a" in model["layout"] else "plain",
            {"answers": "answer", "positions": "token"}[training["weigh"]],
            first_round(arm, holds), count(first, cliff),
            *(f"{fmean(at(run, multiple) for run in chosen(arm)):.1%}" for multiple in (NEAR, FAR)),
        ])  # fmt: skip
    head = ["", "rate", "state noise", "scores", "loss per", "settings at 90% at 3x", "runs with a cliff", "3x", "16x"]
    return rows(head, cells)


def noise() -> str:
    """Return DAT's mean accuracy at 16x on the tuning seeds by learning rate, without and with state noise."""
    found: dict[tuple[float, bool], list[float]] = {}
    for runs in tried("dat"):
        training = _settings(runs[0])["training"]
        key = training["full"]["learning_rate"], training["state_noise"] > 0
        found.setdefault(key, []).extend(at(run, FAR) for run in scored(runs))
    cells = []
    for rate in sorted({rate for rate, _ in found}):
        each = (found[rate, False], found[rate, True])
        cells.append([f"{rate:g}", *(f"{fmean(one):.0%} ({min(one):.0%} to {max(one):.0%})" for one in each)])
    return rows(["rate", "without noise", "with noise"], cells)
