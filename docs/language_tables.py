"""Compute the tables of docs/results/language.md from results/language.parquet; docs/fill.py writes them."""

from functools import cache

from values import ROOT, made

from latebloom.lm.study import DELTA, language
from latebloom.report.hypotheses import judge, overall
from latebloom.report.losses import loss_changes_table, loss_table
from latebloom.report.panel import Panel, panels
from latebloom.report.tables import as_markdown
from latebloom.results.file import read_results
from latebloom.studies.plan import describe_cost

FILE = ROOT / "results" / "language.parquet"


@cache
def _panels() -> list[Panel]:
    return panels(read_results([FILE])) if FILE.exists() else []


def language_state() -> str:
    """Say where the runs were made, or that there are none."""
    return made("language") if FILE.exists() else "the study has not been run at this scale yet"


def language_cost() -> str:
    """Return the cost of the study at full scale, as it is stated before it runs."""
    return describe_cost(language("paper"))


def language_verdicts() -> str:
    """Return each hypothesis with its verdict; without results all are undecided."""
    lines = []
    for hypothesis, judged in judge(language("paper").hypotheses, _panels()):
        seen = "; ".join(one.seen for one in judged)
        lines.append(
            f"- **{overall(judged)}**: {hypothesis.claim} It is refuted if {hypothesis.refuted_if} Seen: {seen}."
        )
    return "\n".join(lines)


def language_losses(group: str = DELTA) -> str:
    """Return loss and change of loss by context of one group of arms."""
    found = next((panel for panel in _panels() if panel.task == group), None)
    if found is None:
        return "not measured"
    tables = [loss_table(found), loss_changes_table(found)]
    return "\n\n".join(as_markdown(one) for one in tables if one is not None)
