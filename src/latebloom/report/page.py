"""Self-contained pages: text, tables and charts in one file that works offline and asks nobody for anything."""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from latebloom.evaluation.result import Evaluation
from latebloom.report.charts import Spec, accuracy_chart
from latebloom.report.tables import as_html, length_table
from latebloom.report.theme import chart_config


@dataclass
class Page:
    """A page in the making: HTML added piece by piece, and the charts that its script will draw.

    Names, sentences and settings are data: whatever is given to `text`, `table` and the like shows as text.
    """

    title: str
    body: list[str] = field(default_factory=list)
    charts: dict[str, Spec] = field(default_factory=dict)

    def add(self, html: str) -> None:
        """HTML that is ready; the only way in for markup."""
        self.body.append(html)

    def text(self, text: str, kind: str = "") -> None:
        self.add(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")

    def chart(self, name: str, chart: Spec, titled: bool = True) -> None:
        """A chart as wide as its place. `name` is its element's id and the name of the file that it is saved as."""
        fitting = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        left_out = {"config"} if titled else {"config", "title"}  # the script gives it the theme's configuration
        self.charts[name] = {key: value for key, value in chart.items() if key not in left_out} | fitting
        self.add(f'<figure><div class="chart" id="{escape(name)}"></div></figure>')

    def settings(self, heading: str, data: Any) -> None:
        """Settings that unfold."""
        text = json.dumps(data, indent=2)
        self.add(f'<details class="more"><summary>{escape(heading)}</summary><pre>{escape(text)}</pre></details>')

    def html(self) -> str:
        """The whole page as one string."""
        data = {"charts": self.charts, "config": {"light": chart_config(), "dark": chart_config(dark=True)}}
        scripts = (_vega(), _asset("page.js"))
        # Nothing may be loaded from anywhere, and no script may run but these two; Vega compiles its expressions.
        allowed = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
        policy = (
            f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
        )
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(self.title)}</title><link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head><body>
<header><h1>{escape(self.title)}</h1><button id="theme" type="button">Dark</button></header>
{chr(10).join(self.body)}
<noscript><p class="note">The charts are drawn by a script; without one they are missing here.</p></noscript>
<script type="application/json" id="data">{_as_script(data)}</script>
<script type="module">{scripts[0]}</script>
<script type="module">{scripts[1]}</script>
</body></html>
"""


def comparison_page(
    evaluations: Mapping[str, Evaluation], *, title: str, seen: str, notes: str, settings: Mapping[str, Any]
) -> str:
    """A few runs side by side: the sentence, the chart, the table, the settings."""
    page = Page(title)
    page.text(seen, "seen")
    page.chart("accuracy", accuracy_chart(evaluations))
    page.text(notes, "note")
    page.add("<h2>Accuracy by length</h2>")
    page.add(as_html(length_table(evaluations)))
    page.text("All answers right, with exact 95% intervals over the tested sequences; one seed.", "note")
    page.add("<h2>Settings</h2>")
    for name, data in settings.items():
        page.settings(name, data)
    return page.html()


def chart_page(chart: Spec) -> str:
    """A chart and nothing else."""
    page = Page(chart["title"]["text"] or "Accuracy by length")
    page.chart("chart", chart, titled=False)
    return page.html()


@cache
def _vega() -> str:
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _asset(name: str) -> str:
    return (files("latebloom.report") / name).read_text()


def _as_script(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data).replace("<", "\\u003c")
