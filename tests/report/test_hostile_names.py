"""Names that break scripts or layouts: the page works with each of them, in a real browser."""

from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from synthetic import evaluation, record

from latebloom.report.names import shown_name
from latebloom.report.page import MOST_RUNS, study_page
from latebloom.report.study import read_sections
from latebloom.results.file import write_results

NAMES = (
    "constructor",
    "toString",
    "__proto__",
    "hasOwnProperty",
    "line\u2028separator",
    "a\nb",
    "\x00\x1b[31m",
    "x" * 10_000,
)
LEVELS = {10: 1.0, 25: 0.9, 50: 0.8, 75: 0.7}
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages with")


def page_of(folder: Path, names, seeds: int = 2) -> Path:
    records = [
        record(name, seed, evaluation({n: level - 0.01 * seed / seeds for n, level in LEVELS.items()}), study=names[0])
        for name in names
        for seed in range(seeds)
    ]
    write_results(folder / "a.parquet", records)
    (folder / "page.html").write_text(study_page(read_sections([folder / "a.parquet"])))
    return folder / "page.html"


@needs_browser
def test_every_chart_is_drawn_whatever_the_arms_are_called(tmp_path):
    page = page_of(tmp_path, NAMES)
    with Browser(1000, 800) as browser:
        browser.open(page)
        browser.value("document.querySelectorAll('details.more').forEach(part => { part.open = true; })")
        browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('svg'))")
        assert browser.complaints == []
        assert browser.value("document.documentElement.scrollWidth") <= 1000
        labels = browser.value("[...document.querySelectorAll('svg text')].map(text => text.textContent)")
        assert shown_name("constructor") in labels


@needs_browser
def test_many_runs_are_unpacked_when_they_are_searched_for(tmp_path):
    page = page_of(tmp_path, ("dat", "joint"), seeds=MOST_RUNS)
    with Browser() as browser:
        browser.open(page)
        browser.wait_for("document.getElementById('count').textContent !== ''")
        told = f"{2 * MOST_RUNS} of {2 * MOST_RUNS} runs; the first 100 are shown"
        assert browser.value("document.getElementById('count').textContent") == told
        browser.value("""(() => {
            const search = document.getElementById("search");
            search.value = "JOINT seed";
            search.dispatchEvent(new Event("input"));
        })()""")
        browser.wait_for("document.querySelectorAll('.run').length === 100")
        browser.value("document.querySelector('details.run').open = true")
        browser.wait_for("document.querySelector('pre.config').textContent.includes('\\n')")
        assert browser.complaints == []


def test_two_names_never_become_one():
    long = ["x" * 10_000 + end for end in "ab"]
    assert shown_name(long[0]) != shown_name(long[1])
    assert max(len(shown_name(name)) for name in (*NAMES, *long)) <= 61
    assert shown_name("dat") == "dat"
