"""The hypotheses of a study beside what was seen, with a verdict that the statistics decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from latebloom.evaluation.interval import binomial_interval
from latebloom.report.losses import loss_change
from latebloom.report.panel import Panel
from latebloom.report.statistics import SETTLED_AT, Comparison, compare_arms, holm
from latebloom.report.study_tables import p_value, points
from latebloom.report.tables import Cell, Table
from latebloom.results.stated import Difference, Hypothesis, Level, LossChange, Prediction, Stated

Verdict = Literal["supported", "refuted", "undecided"]
FEWEST = 10
"""Seeds below which a prediction about a share of them is undecided."""
FEWEST_FOR_LOSS = 5
"""Seeds below which a prediction about a loss is undecided."""


@dataclass(frozen=True)
class Judged:
    """A prediction beside what was seen."""

    prediction: Prediction
    seen: str
    verdict: Verdict


@dataclass(frozen=True)
class Verdicts:
    """The hypotheses of a study: a sentence for each, and a table of their predictions beside what was seen."""

    sentences: tuple[str, ...]
    table: Table


def verdicts(panels: Sequence[Panel]) -> Verdicts | None:
    """Return the hypotheses of one study with their verdicts; None without any. `panels` are those of the study."""
    hypotheses = next((found for panel in panels if (found := _stated(panel).hypotheses)), ())
    if not hypotheses:
        return None
    sentences, rows = [], []
    for number, (hypothesis, judged) in enumerate(judge(hypotheses, panels), start=1):
        verdict, claim = overall(judged), hypothesis.claim
        sentences.append(f"Hypothesis {number}, {verdict}: {claim} It is refuted if {hypothesis.refuted_if}")
        rows += [(str(number), describe(one.prediction), one.seen, one.verdict) for one in judged]
    table = Table(
        title=f"Hypotheses, stated before the runs: {panels[0].study}",
        head=("hypothesis", "prediction", "seen", "verdict"),
        rows=tuple(tuple(map(Cell, row)) for row in rows),
        note=(
            "A hypothesis is supported if all of its predictions are, refuted if one of them is, and else undecided. A "
            "difference of at least so many points is supported if it is that large and significant "
            f"(p < {SETTLED_AT:g}, Holm's correction over all predicted differences of the study), and refuted if the "
            "95% bootstrap interval lies below it. No difference of so many points is supported if the interval lies "
            "within them, and refuted if the difference is that large and significant. Both stay undecided with so few "
            "seeds that no difference could be significant. A share of seeds is decided by counting them, from "
            f"{FEWEST} seeds on; brackets have the exact 95% interval. A change of loss is supported if Student's 95% "
            f"interval over seeds lies below the bound, and refuted if it lies above, from {FEWEST_FOR_LOSS} seeds on; "
            "these intervals are not corrected for multiple comparisons."
        ),
        names=4,
    )
    return Verdicts(tuple(sentences), table)


def judge(hypotheses: Sequence[Hypothesis], panels: Sequence[Panel]) -> Iterator[tuple[Hypothesis, list[Judged]]]:
    """Yield each hypothesis with its judged predictions."""
    predicted = [one for hypothesis in hypotheses for one in hypothesis.predictions if isinstance(one, Difference)]
    compared = [_compare(one, panels) for one in predicted]
    corrected = iter(holm([one for one in compared if one is not None]))
    found = {id(one): None if pair is None else next(corrected) for one, pair in zip(predicted, compared, strict=True)}

    def judged(one: Prediction) -> Judged:
        if isinstance(one, Difference):
            return judge_difference(one, found[id(one)])
        return judge_loss(one, panels) if isinstance(one, LossChange) else _judge_level(one, panels)

    for hypothesis in hypotheses:
        yield hypothesis, list(map(judged, hypothesis.predictions))


def overall(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict on a hypothesis."""
    verdicts = [one.verdict for one in judged]
    if "refuted" in verdicts:
        return "refuted"
    return "supported" if set(verdicts) == {"supported"} else "undecided"


def describe(one: Prediction) -> str:
    """Return a prediction in words."""
    if isinstance(one, LossChange):
        where = f"at {one.at:g}x{' and beyond' * one.beyond} on {one.task}"
        equal = " at equal loss at 1x" * bool(one.matched)
        return f"loss of {one.arm} - {one.baseline} {where}{equal}: below {one.below:+g} nats"
    answer = f", {one.answer}" if one.answer else ""
    where = f"at {one.at:g}x on {one.task}{answer}"
    if isinstance(one, Difference):
        what = f"within {one.points:g} points" if one.equal else f"at least {one.points:g} points"
        return f"{one.arm} - {one.baseline} {where}: {what}"
    share = f"at least {one.least:.0%}" if one.least is not None else f"at most {one.most:.0%}"
    return f"{one.arm} {where}: {share} of the seeds at {one.accuracy:.0%} or more"


def judge_difference(one: Difference, seen: Comparison | None) -> Judged:
    """Return the verdict on a difference from the comparison of its arms, whose p value is corrected."""
    if seen is None:
        return Judged(one, "not measured", "undecided")
    margin, found = one.points / 100, seen.difference
    low, high = (found.mean if end is None else end for end in (found.low, found.high))
    text = f"{points(found).plain} points over {found.seeds} seeds, p = {p_value(seen.p_corrected)}"
    is_settled = seen.p_corrected < SETTLED_AT
    verdict: Verdict = "undecided"
    if seen.smallest_corrected >= SETTLED_AT:
        return Judged(one, f"{text}: too few seeds for a verdict", verdict)
    if one.equal:
        if -margin < low and high < margin:
            verdict = "supported"
        elif is_settled and abs(found.mean) >= margin:
            verdict = "refuted"
    elif is_settled and found.mean >= margin:
        verdict = "supported"
    elif high < margin:
        verdict = "refuted"
    return Judged(one, text, verdict)


def judge_loss(one: LossChange, panels: Sequence[Panel]) -> Judged:
    """Return the verdict on a change of loss: the interval over seeds lies below the bound, or not."""
    panel = _panel(one, panels)
    found = None if panel is None else loss_change(one, panel)
    if found is None:
        return Judged(one, "not measured", "undecided")
    interval = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    seen = f"{found.mean:+.3f} nats{interval} over {found.seeds} seed{'s' * (found.seeds > 1)}"
    verdict: Verdict = "undecided"
    if found.seeds < FEWEST_FOR_LOSS:
        seen += ": too few seeds for a verdict"
    elif found.low is not None and found.high is not None:
        verdict = "supported" if found.high < one.below else "refuted" if found.low >= one.below else "undecided"
    return Judged(one, seen, verdict)


def _judge_level(one: Level, panels: Sequence[Panel]) -> Judged:
    panel = _panel(one, panels)
    values = list(panel.by_seed(one.arm, _length(one, panel), one.answer).values()) if panel else []
    if not values:
        return Judged(one, "not measured", "undecided")
    right = sum(value >= one.accuracy for value in values)
    low, high = binomial_interval(right, len(values))
    text = f"{right} of {len(values)} seeds [{low:.0%}, {high:.0%}]"
    if len(values) < FEWEST:
        return Judged(one, f"{text}: too few seeds for a verdict", "undecided")
    share = right / len(values)
    holds = share >= one.least if one.least is not None else share <= (one.most or 0.0)
    return Judged(one, text, "supported" if holds else "refuted")


def _compare(one: Difference, panels: Sequence[Panel]) -> Comparison | None:
    panel = _panel(one, panels)
    if panel is None:
        return None
    arms = (panel.by_seed(arm, _length(one, panel), one.answer) for arm in one.arms)
    return compare_arms(one.arm, one.baseline, *arms)


def _panel(one: Prediction, panels: Sequence[Panel]) -> Panel | None:
    """Return the panel of a prediction; None if an arm of it has no run."""
    return next((panel for panel in panels if panel.task == one.task and set(one.arms) <= set(panel.arms)), None)


def _length(one: Prediction, panel: Panel) -> int:
    return round(one.at * panel.training_length)


def _stated(panel: Panel) -> Stated:
    return Stated.from_text(next((run.stated for run in panel.runs if run.stated), ""))
