"""Compute the tables of docs/models.md from results/models.json, and the arguments of docs/your-model.md from the code.

`python tests/integrations/survey.py` makes the results; docs/fill.py writes the tables.
"""

import json
import re
from inspect import Parameter, getdoc, signature
from typing import Any

from values import ROOT, table

from latebloom import DelayedAttention

REPORT = json.loads((ROOT / "results" / "models.json").read_text())
ROWS: list[dict[str, Any]] = REPORT["rows"]


FLA = "flash-linear-attention: "
"""How the names of its models begin in the results."""


def tried_models(library: str = "") -> str:
    """Return a row for each model of a library that was tried, with what is held back and the outcome of each check."""
    rows = [row for row in ROWS if _library(row) == library and "cells" in row]
    lines = []
    for row in rows:
        outcomes = [cell.partition(":")[0] for cell in row["cells"].values()]
        lines.append("|".join([_name(row), _paths(row["held"]), *outcomes]))
    return _left_aligned("|".join(["model", "held back", *rows[0]["cells"]]), lines)


def refused_models() -> str:
    """Return the models that are refused, with the reason in the words of the error."""
    rows = (f"{_name(row)}|{row['refused']}" for row in ROWS if "refused" in row)
    return _left_aligned("model|why it is refused", rows)


def model_notes() -> str:
    """Return the cells that say more than yes or no, one to a line."""
    cells = ((row, column, cell) for row in ROWS for column, cell in row.get("cells", {}).items() if ":" in cell)
    return "\n".join(f"- {_name(row)}, *{column}*: {cell}." for row, column, cell in cells) + "\n"


def made_models() -> str:
    """Say by which command and with which versions the table was made."""
    versions = ", ".join(f"{name} {version}" for name, version in REPORT["versions"].items())
    return f"{len(ROWS)} models, by `{REPORT['command']}` with {versions}"


def arguments() -> str:
    """Return the arguments of DelayedAttention with their defaults and what its docstring says of them."""
    meanings = dict(re.findall(r"^(\w+): (.+)$", getdoc(DelayedAttention) or "", re.MULTILINE))
    parameters = signature(DelayedAttention).parameters
    if differing := meanings.keys() ^ parameters.keys():
        raise KeyError(f"the docstring of DelayedAttention and its arguments differ in {', '.join(differing)}")
    rows = []
    for name, one in parameters.items():
        default = "required" if one.default is Parameter.empty else f"`{one.default!r}`".replace("'", '"')
        rows.append(f"`{name}`|{default}|{meanings[name]}")
    return _left_aligned("argument|default|meaning", rows)


def _left_aligned(head: str, rows: Any) -> str:
    return table(head, rows).replace("---:", "---")


def _library(row: dict[str, Any]) -> str:
    """Return the library that a model comes from; empty for the models of the tests."""
    return "fla" if row["name"].startswith(FLA) else "transformers" if row["family"] else ""


def _name(row: dict[str, Any]) -> str:
    return f"`{row['name'].removeprefix(FLA)}`" if row["family"] else row["name"]


def _paths(paths: list[str]) -> str:
    """Return paths in short: those in the same place are joined."""
    places: dict[str, list[str]] = {}
    for path in paths:
        place, dot, name = path.rpartition("}.") if "}." in path else path.rpartition(".")
        places.setdefault(place + dot, []).append(name)
    joined = {place: names[0] if len(names) == 1 else f"{{{','.join(names)}}}" for place, names in places.items()}
    return ", ".join(f"`{place}{names}`" for place, names in joined.items())
