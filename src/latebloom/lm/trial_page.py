"""The page of a trial: the recommendation, loss and probes by context, what was gained and lost, and the cost."""

import json
import shlex
from collections.abc import Sequence
from html import escape
from math import hypot
from statistics import mean
from typing import Any

import numpy as np

from latebloom.evaluation.interval import binomial_interval
from latebloom.lm.compare import estimate, over_seeds, paired_losses
from latebloom.lm.tables import context_heads
from latebloom.lm.traces import TITLES
from latebloom.report.charts import Row, Spec, curves_chart
from latebloom.report.context_charts import context_chart, context_point
from latebloom.report.page import Page
from latebloom.report.statistics import Estimate
from latebloom.report.tables import EMPTY, Cell, Table, as_html

NAMES = {"joint": "joint training", "delayed": "delayed attention"}
FEWEST_SEEDS = 5
"""With fewer, the interval of a difference of accuracies spans almost all that is possible, or is far too narrow."""
TIMES = ("seconds", "cpu_seconds")


def accuracy_difference(delayed: np.ndarray, joint: np.ndarray) -> Estimate:
    """Return delayed - joint of right answers (seeds, probes), with an interval from `FEWEST_SEEDS` seeds on.

    Of two intervals it has the outer bounds: Student's over seeds and probes, which is too narrow where all answers
    are alike, and Newcombe's from the exact intervals of both arms, which knows nothing of seeds.
    """
    difference = float(delayed.mean() - joint.mean())
    if len(delayed) < FEWEST_SEEDS:
        return Estimate(difference, None, None, len(delayed))
    (low1, high1), (low2, high2) = (binomial_interval(int(one.sum()), one.size) for one in (delayed, joint))
    first, second = float(delayed.mean()), float(joint.mean())
    low = difference - hypot(first - low1, high2 - second)
    high = difference + hypot(high1 - first, second - low2)
    student = estimate(delayed - joint)
    if student.low is not None and student.high is not None:
        low, high = min(low, student.low), max(high, student.high)
    return Estimate(difference, max(-1.0, low), min(1.0, high), len(delayed))


class TrialNumbers:
    """The numbers of a trial, by arm and seed."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.arms = {
            arm: {int(seed): one for seed, one in by_seed.items()} for arm, by_seed in found["evaluations"].items()
        }
        self.first = self.arms["joint"][0]
        self.base, self.contexts = self.first["training_context"], self.first["contexts"]

    def loss(self, arm: str, context: int) -> Estimate:
        """Return the loss of an arm over seeds."""
        return over_seeds([one["loss"][str(context)]["mean"] for one in self.arms[arm].values()])

    def change(self, context: int) -> Estimate:
        """Return delayed - joint at a context, over seeds and documents."""
        return estimate(paired_losses(self.arms, [context]))

    def kind_loss(self, arm: str, kind: str, context: int) -> list[float]:
        rows = (row for one in self.arms[arm].values() for row in one["kinds"])
        return [row["mean"] for row in rows if row["kind"] == kind and row["context"] == context]

    def outcomes(self, arm: str, kind: str, context: int) -> np.ndarray | None:
        """Return 1 for each right answer, by seed and probe; None if the probe was not asked there."""
        rows = (row for one in self.arms[arm].values() for row in one["probes"])
        found = [row["outcomes"] for row in rows if row["kind"] == kind and row["context"] == context]
        return np.array(found) if found else None

    def accuracy(self, arm: str, kind: str, context: int) -> Estimate | None:
        """Return the accuracy over all seeds, with an exact interval over the answers."""
        outcomes = self.outcomes(arm, kind, context)
        if outcomes is None:
            return None
        interval = binomial_interval(int(outcomes.sum()), outcomes.size)
        return Estimate(float(outcomes.mean()), *interval, len(outcomes))

    def probe_change(self, kind: str, context: int) -> Estimate | None:
        """Return delayed - joint of the accuracy; see `accuracy_difference` for the interval."""
        delayed, joint = (self.outcomes(arm, kind, context) for arm in ("delayed", "joint"))
        return None if delayed is None or joint is None else accuracy_difference(delayed, joint)

    def guessing(self, kind: str) -> float:
        return mean(row["guessing"] for row in self.first["probes"] if row["kind"] == kind)

    @property
    def probed(self) -> list[str]:
        asked = {row["kind"] for row in self.first["probes"]}
        return [kind for kind in TITLES if kind in asked]


def change_table(numbers: TrialNumbers) -> Table:
    """Return loss by context of both arms, and the paired difference, of all tokens and of each kind."""
    rows: list[tuple[Cell, ...]] = [
        (Cell(NAMES[arm]), *(_cell(numbers.loss(arm, context)) for context in numbers.contexts)) for arm in NAMES
    ]
    rows.append((Cell("difference"), *(_cell(numbers.change(context), "+.3f") for context in numbers.contexts)))
    for kind in dict.fromkeys(row["kind"] for row in numbers.first["kinds"]):
        cells = []
        for context in numbers.contexts:
            pairs = zip(*(numbers.kind_loss(arm, kind, context) for arm in ("delayed", "joint")), strict=True)
            cells.append(_cell(over_seeds([delayed - joint for delayed, joint in pairs]), "+.3f"))
        rows.append((Cell(f"difference, {kind}"), *cells))
    note = (
        "Nats, mean over seeds with a 95% interval. The difference is delayed - joint on the same tokens; below zero, "
        "the delay is better. Its interval counts seeds and documents as random, that of a kind of tokens seeds only."
    )
    return Table("Loss by context: what was gained and lost", ("", *context_heads(numbers.first)), tuple(rows), note)


def probes_table(numbers: TrialNumbers) -> Table:
    """Return the accuracy of each probe by context, of both arms, and the difference."""
    rows: list[tuple[Cell, ...]] = []
    for kind in numbers.probed:
        for arm, name in NAMES.items():
            values = (numbers.accuracy(arm, kind, context) for context in numbers.contexts)
            rows.append((Cell(f"{kind}, {name}"), *(_share(one, "") for one in values)))
        changes = (numbers.probe_change(kind, context) for context in numbers.contexts)
        rows.append((Cell(f"{kind}, difference"), *(_share(one, "+") for one in changes)))
    note = (
        "Percent of right answers, and the difference in points. The interval of an arm is exact, over the answers of "
        "all seeds together, and leaves out how seeds vary. "
    )
    if len(numbers.arms["joint"]) < FEWEST_SEEDS:
        note += f"The difference has no interval: fewer than {FEWEST_SEEDS} seeds tell too little of how seeds vary."
    else:
        note += (
            "The interval of the difference counts seeds and probes as random, and is no narrower than both arms imply."
        )
    return Table("Probes by context", ("", *context_heads(numbers.first)), tuple(rows), note)


def _share(one: Estimate | None, sign: str) -> Cell:
    if one is None:
        return EMPTY
    low, high = one.low, one.high
    interval = "" if low is None or high is None else f"{100 * low:{sign}.0f}, {100 * high:{sign}.0f}"
    return Cell(f"{100 * one.mean:{sign}.0f}", interval)


def cost_table(found: dict[str, Any]) -> Table:
    """Return time and tokens of each arm."""
    rows = []
    for arm, name in NAMES.items():
        runs = [run for run in found["runs"] if run["arm"] == arm]
        timed = [run for run in runs if not run.get("resumed_at")]  # the others know the time since their resume only
        used = sum(run["cpu_seconds"] for run in timed)
        switch = runs[0]["switch_step"]
        rows.append(
            (
                Cell(name),
                Cell(f"{runs[0]['steps']:,}"),
                Cell(f"{runs[0]['tokens']:,}"),
                Cell("–" if switch is None else f"{switch:,}"),
                *(Cell(f"{mean(run[name] for run in timed):.0f} s") if timed else EMPTY for name in TIMES),
                Cell(f"{sum(run['tokens'] for run in timed) / used:,.0f}") if used else EMPTY,
            )
        )
    head = ("", "steps", "tokens", "switch at step", "time", "CPU time", "tokens per CPU second")
    return Table("Cost of one run", head, tuple(rows), "Mean over seeds; times without runs that were interrupted.")


def _cell(one: Estimate, form: str = ".3f") -> Cell:
    return Cell(f"{one.mean:{form}}", "" if one.low is None else f"{one.low:{form}}, {one.high:{form}}")


def loss_chart(numbers: TrialNumbers) -> Spec:
    points = [_point(NAMES[arm], c, numbers.loss(arm, c)) for arm in NAMES for c in numbers.contexts]
    return context_chart(points, numbers.base, "Loss on the same tokens, by context", "loss (nats)")


def change_chart(numbers: TrialNumbers) -> Spec:
    points = [_point("delayed - joint", context, numbers.change(context)) for context in numbers.contexts]
    title = "Difference delayed - joint (below zero, the delay is better)"
    return context_chart(points, numbers.base, title, "difference (nats)", level=0.0, height=220)


def probe_chart(numbers: TrialNumbers, kind: str) -> Spec:
    found = [(name, c, numbers.accuracy(arm, kind, c)) for arm, name in NAMES.items() for c in numbers.contexts]
    points = [_point(name, context, one) for name, context, one in found if one is not None]
    level = numbers.guessing(kind)
    return context_chart(points, numbers.base, TITLES[kind], "right answers", level=level, domain=(0, 1), height=200)


def _point(line: str, context: int, one: Estimate) -> Row:
    return context_point(line, context, one.mean, one.low, one.high)


def training_chart(found: dict[str, Any]) -> Spec:
    """Draw the training loss of every run, with the switches."""
    rows = [{"run": NAMES[run["arm"]], "seed": run["seed"], **run["curve"]} for run in found["runs"]]
    held = [run for run in found["runs"] if run["switch_step"] is not None]
    switches = [{"run": NAMES[run["arm"]], "what": f"seed {run['seed']}", "step": run["switch_step"]} for run in held]
    return curves_chart(rows, switches, list(NAMES.values()), "Training loss", is_loss=True)


def trial_page(found: dict[str, Any], title: str, command: Sequence[str]) -> str:
    """Return the page as HTML that loads nothing."""
    numbers, said, plan = TrialNumbers(found), found["recommendation"], found["plan"]
    page = Page(title)
    page.text(said["sentence"], "seen")
    page.text(said["advice"])
    page.text(_what_was_done(numbers))
    page.chart("loss", loss_chart(numbers), titled=True)
    page.chart("difference", change_chart(numbers), titled=True)
    _add_table(page, change_table(numbers))
    if numbers.probed:
        page.add("<h2>Probes</h2>")
        page.text(
            "Traces written into windows of every length; the model chooses among the possible answers. The dashed "
            "line is guessing. Needle and dictionary ask for recall, swaps for a state, pointers for both."
            + " Small models that were trained without traces answer none of them."
            * (not found["corpus"]["traces"]["tokens"])
        )
        page.add('<div class="charts">')
        for kind in numbers.probed:
            page.chart(f"probe-{kind}", probe_chart(numbers, kind))
        page.add("</div>")
        _add_table(page, probes_table(numbers))
    page.add("<h2>Training and cost</h2>")
    page.chart("training", training_chart(found), titled=False)
    _add_table(page, cost_table(found))
    page.add("<h2>How the recommendation is made</h2>")
    page.text(
        "A delay helps if the loss at 4x and beyond is lower with an interval clear of zero, while the loss at 1x is "
        "worse by less than 0.02 nats. Both arms have the same seeds, data, steps and learning rate, which was not "
        "tuned for either; a rate that suits one arm better can decide such a comparison. A short training of a "
        "small model tells of the full one only as far as both behave alike."
    )
    with page.fold("Settings and the command that repeats the trial"):
        page.add('<pre class="command">')
        page.add(escape(shlex.join(command)))
        page.add("</pre><pre>")
        page.add(escape(json.dumps({"asked": plan["asked"], "training": plan["training"]}, indent=2)))
        page.add("</pre>")
    return page.html()


def _add_table(page: Page, table: Table) -> None:
    page.add(as_html(table))
    page.text(table.note)


def fewer_seeds(found: dict[str, Any]) -> str:
    """Say that fewer seeds were trained than asked for; empty if all were."""
    seeds, asked = len(found["evaluations"]["joint"]), found["plan"]["asked"]["seeds"]
    if seeds == asked:
        return ""
    return f"There was time for {seeds} of the {asked} seeds that were asked for; more --minutes allow more."


def describe_text(found: dict[str, Any]) -> str:
    """Say how much of the training text is the user's, and how much was added."""
    train, traces = found["corpus"]["splits"]["train"], found["corpus"]["traces"]
    documents, tokens = (train[name] - traces[name] for name in ("documents", "tokens"))
    yours = f"Training text: {documents:,} documents of your text with {tokens:,} tokens"
    if not traces["tokens"]:
        return f"{yours}, and no synthetic traces."
    return (
        f"{yours}, and {traces['documents']:,} synthetic traces with {traces['tokens']:,} tokens "
        f"({traces['tokens'] / train['tokens']:.0%} of all), which were added so that the model can learn to answer "
        "the probes (--traces 0 adds none)."
    )


def _what_was_done(numbers: TrialNumbers) -> str:
    found, plan = numbers.found, numbers.found["plan"]
    run = found["runs"][0]
    left_out = ", ".join(f"{count} {reason}" for reason, count in found["corpus"]["left_out"].items()) or "none"
    seeds, kind = len(numbers.arms["joint"]), plan["training"]["model"]["model_type"]
    fewer = f" ({plan['asked']['seeds']} were asked for, and there was no time for more)" if fewer_seeds(found) else ""
    return (
        f"{'An' if kind[0] in 'aeiou' else 'A'} {kind} with {run['parameters']:,} parameters, trained with {seeds} "
        f"seed{'s' * (seeds > 1)}{fewer} each way for {run['tokens']:,} tokens in windows of {numbers.base}; attention "
        f"was delayed until {plan['until']}. {describe_text(found)} Files left out: {left_out}. Tested on "
        f"{numbers.first['documents']} other documents. The trial took {found['seconds'] / 60:.1f} minutes."
    )
