"""Write the figures of README.md and docs/ from results/, and draw the pictures.

python docs/fill.py            write the values, draw the pictures, make results/report.html
python docs/fill.py --check    fail if a page, a picture or the report does not agree with results/ (a test does this)

A value stands between marks, <!-- = EXPRESSION -->VALUE<!-- / -->; the expression uses the names of docs/values.py,
api_tables.py, component_tables.py, language_tables.py, mechanism_tables.py, model_tables.py and performance_tables.py.
A line must not begin with such a mark, because Markdown would take the whole line for HTML. Percentages, counts of
seeds and differences outside marks are refused, unless they are settings.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import api_tables
import component_tables
import language_tables
import mechanism_tables
import model_tables
import performance_tables
import values

from latebloom.report.charts import as_svg
from latebloom.report.compared import comparisons
from latebloom.report.figures import all_figures
from latebloom.report.panel import panels
from latebloom.report.study import read_sections, study_page

ROOT = Path(__file__).parent.parent
MODULES = (
    api_tables, component_tables, language_tables, mechanism_tables, model_tables, performance_tables, values,
)  # fmt: skip
NAMES = {name: value for module in MODULES for name, value in vars(module).items()}
MARK = re.compile(r"<!-- = (.+?) -->(.*?)<!-- / -->", re.DOTALL)
FIGURE = re.compile(r"\d+(?:\.\d+)?%|\b\d+ of (?:the )?\d+\b|[+−-]\d+(?:\.\d+)? points|\bp (?:of |= ?)?0?\.\d+")
SETTINGS = ("90%", "95%", "99%")
"""Thresholds and interval levels."""
FRONT = {
    "LSTM": "paper/lstm", "Transformer": "paper/transformer", "hybrid, joint training": "paper/joint",
    "hybrid, DAT, plain": "paper-all-asked/dat", "hybrid, DAT, tuned variant": "paper/dat",
}  # fmt: skip
PICTURES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "results": ("accuracy", ("paper", "paper-all-asked"), FRONT),
    "demo-seeds": ("accuracy", ("demo-seeds",), {}),
    "paper": ("accuracy", ("paper",), {}),
    "timing": ("arms", ("timing",), {}),
    "holding": ("effects", ("holding",), {}),
    "olmo-hybrid": ("accuracy", ("olmo-hybrid",), {"joint": "olmo-hybrid/joint", "DAT": "olmo-hybrid/dat"}),
}
"""The name of the figure in the report, the files that it is drawn from, and its arms if not all."""
MADE = {ROOT / "docs" / "images" / f"{name}.svg": sources for name, (_, sources, _) in PICTURES.items()}
MADE |= {
    ROOT / "docs" / "images" / f"{name}.svg": ("mechanism", "mechanism-probes/*") for name in mechanism_tables.CHARTS
}
MADE[ROOT / "results" / "report.html"] = ("paper", "timing", "holding", "paper-tuning")
"""The pictures and the report, with the files that each is made from."""


def filled(text: str) -> str:
    """Return a page with every value computed anew."""

    def value(mark: re.Match[str]) -> str:
        found = str(eval(mark[1], NAMES))
        around = "\n\n" if "\n" in found else ""
        return f"<!-- = {mark[1]} -->{around}{found}{around}<!-- / -->"

    return MARK.sub(value, text)


def mistakes(page: Path) -> Iterator[str]:
    """Say which values of a page are not those of the results, and which figures have no mark."""
    text = page.read_text()
    for mark, now in zip(MARK.finditer(text), MARK.finditer(filled(text)), strict=True):
        if mark[2] != now[2]:
            yield f"{mark[1]} is {now[2].strip()}, but the page says {mark[2].strip()}"
        if "\n" not in now[2] and re.search(r"(?:^|\n)[ \->]*$", text[: mark.start()]):
            yield f"a line begins with the mark of {mark[1]}"
    plain = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", MARK.sub("", text), flags=re.DOTALL)
    for figure in FIGURE.findall(plain):
        if figure not in SETTINGS:
            yield f"{figure} stands outside a mark"


def stamp(sources: tuple[str, ...]) -> str:
    """Return a line that ties a picture or the report to the results it was made from."""
    files = [file for source in sources for file in sorted((ROOT / "results").glob(f"{source}.[pj]*"))]
    found = [file.read_bytes() for file in files]
    return f"<!-- made from results {sha256(b''.join(found)).hexdigest()} -->\n"


def draw(name: str) -> str:
    """Return a picture of the report, with the arms in plain words."""
    if name in mechanism_tables.CHARTS:
        return as_svg(mechanism_tables.CHARTS[name]())
    figure, sources, arms = PICTURES[name]
    shown = {arm: text for text, arm in arms.items()}
    runs = [(f"{source}/{run.arm}", run) for source in sources for run in values.records(source)]
    runs = [(arm, run) for arm, run in runs if arm in shown or (not shown and values.CHOICE not in arm)]
    names = {arm: shown.get(arm, values.label(arm)) for arm, _ in runs}
    order = [*arms] or [*names.values()]
    renamed = [
        replace(run, study=sources[0], arm=names[arm], against=tuple(names[f"{sources[0]}/{a}"] for a in run.against))
        for arm, run in runs
    ]
    (panel,) = panels(sorted(renamed, key=lambda run: order.index(run.arm)))
    return as_svg(next(one.chart for one in all_figures(panel, *comparisons([panel])) if one.name == figure))


def main() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "--check" in sys.argv[1:]:
        wrong = [f"{page.relative_to(ROOT)}: {mistake}" for page in pages for mistake in mistakes(page)]
        for file, sources in MADE.items():
            if not (file.exists() and file.read_text().endswith(stamp(sources))):
                wrong.append(f"{file.relative_to(ROOT)} was made from other results; run python docs/fill.py")
        sys.exit("\n".join(wrong) or None)
    for page in pages:
        page.write_text(filled(page.read_text()))
    for file, sources in MADE.items():
        results = [ROOT / "results" / f"{source}.parquet" for source in sources]
        text = draw(file.stem) if file.suffix == ".svg" else study_page(read_sections(results))
        file.write_text(text.rstrip("\n") + "\n" + stamp(sources))


if __name__ == "__main__":
    main()
