"""One self-contained page about a comparison: the sentence, the chart, the table, the settings. Works offline."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from latebloom.evaluation.result import Evaluation
from latebloom.report.charts import accuracy_chart

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #ffffff; --soft: #5c6975; --line: #d9dee3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14181c; --soft: #9aa5af; --line: #333b43; }
}
body { margin: 2rem auto; max-width: 46rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.seen { font-size: 1.1rem; }
#chart { background: #fff; border-radius: 8px; padding: 0.75rem; overflow-x: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
small, .interval { color: var(--soft); }
pre { overflow-x: auto; border: 1px solid var(--line); padding: 0.75rem; border-radius: 8px; font-size: 0.8rem; }
"""


def comparison_page(
    evaluations: Mapping[str, Evaluation], *, title: str, seen: str, notes: str, settings: Mapping[str, Any]
) -> str:
    """The page as one string of HTML. Names, sentences and settings are data: markup in them shows as text."""
    from vl_convert import javascript_bundle

    spec = accuracy_chart(evaluations).to_dict()
    configurations = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(json.dumps(data, indent=2))}</pre></details>"
        for name, data in settings.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="seen">{escape(seen)}</p>
<div id="chart"></div>
<p><small>{escape(notes)}</small></p>
<h2>Accuracy by length</h2>
<div class="wide">{_table(evaluations)}</div>
<h2>Settings</h2>
{configurations}
<script type="module">{javascript_bundle("window.vegaEmbed = vegaEmbed;")}</script>
<script type="module">vegaEmbed("#chart", {_as_script(spec)}, {_as_script(_OPTIONS)});</script>
</body></html>
"""


_OPTIONS = {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}


def _as_script(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data).replace("<", "\\u003c")


def _table(evaluations: Mapping[str, Evaluation]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in evaluations)
    lengths = sorted({length for evaluation in evaluations.values() for length in evaluation.lengths})
    start = next(iter(evaluations.values())).training_length
    rows = []
    for length in lengths:
        cells = []
        for evaluation in evaluations.values():
            count = next((count for count in evaluation.counts if count.length == length), None)
            if count is None:
                cells.append("<td>-</td>")
                continue
            low, high = count.interval
            cells.append(f'<td>{count.accuracy:.1%} <span class="interval">{low:.1%} to {high:.1%}</span></td>')
        rows.append(f"<tr><td>{length} <small>{length / start:g}x</small></td>{''.join(cells)}</tr>")
    return f"<table><tr><th>length</th>{heads}</tr>{''.join(rows)}</table>"
