"""The pages in a real browser: they draw, answer, and ask nobody for anything."""

import json
import re
import shlex
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from synthetic import evaluation, record, study

from latebloom.report.page import study_page
from latebloom.report.study import read_sections
from latebloom.results.file import write_results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages with")
HOSTILE = "<script>alert(1)</script>"
FALLS = evaluation({10: 1.0, 25: 1.0, 50: 0.45, 75: 0.25, 200: 0.2})
HOLDS = evaluation({10: 1.0, 25: 1.0, 50: 1.0, 75: 0.98, 200: 0.85})


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


@pytest.fixture
def opened(browser):
    """Opens a page at a size; afterwards nothing was asked of the network and nothing was complained of."""

    def open_page(page: Path, width: int = 1100, dark: bool = False) -> Browser:
        browser.look(width, 900, dark)
        browser.open(page)
        return browser

    browser.complaints.clear()
    yield open_page
    browser.value("1")  # whatever was still on its way has arrived
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [browser.value("location.href")]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    records = study(study=f"Study {HOSTILE}", tasks=("composite", f"other {HOSTILE}"), arms=("joint", HOSTILE), seeds=3)
    records.append(record("mamba", 0, None, study=f"Study {HOSTILE}", failure=HOSTILE))
    write_results(folder / "a.parquet", records)
    (folder / "page.html").write_text(study_page(read_sections([folder / "a.parquet"])))
    return folder / "page.html"


def hover(browser: Browser, run: str) -> str:
    """Put the pointer on a run's first point; what the tooltip says."""
    place = browser.value(f"""(() => {{
        const points = [...document.querySelectorAll(".chart .mark-symbol.role-mark path")];
        const point = points.find((one) => one.getAttribute("aria-label").includes({json.dumps(run)}));
        point.scrollIntoView({{block: "center"}});
        const box = point.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }})()""")
    browser.point_at(place[0] - 30, place[1] + 9)
    browser.point_at(*place)
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible') !== null")
    return browser.value("document.querySelector('#vg-tooltip-element').innerText")


def test_charts_are_drawn_and_a_point_tells_its_value(opened, page):
    browser = opened(page)
    assert browser.value("[...document.querySelectorAll('section > figure svg.marks')].length") == 4
    text = hover(browser, "joint")
    assert re.search(r"run:?\s+joint\s+length:?\s+10\s+accuracy:?\s+\d\d\.\d%\s+95% interval:?\s+\d\d\.\d% to", text)
    assert "3 seeds" in text


def test_markup_in_names_is_text(opened, page):
    browser = opened(page)
    assert browser.value("document.title") == f"Study {HOSTILE}"
    assert browser.value("document.querySelector('h1').textContent") == f"Study {HOSTILE}"
    assert browser.value("document.querySelectorAll('script').length") == 3
    labels = browser.value("[...document.querySelectorAll('svg text')].map(text => text.textContent)")
    assert HOSTILE in labels
    cells = browser.value("[...document.querySelectorAll('td.name')].map(cell => cell.textContent)")
    assert HOSTILE in cells
    assert HOSTILE in hover(browser, HOSTILE)
    assert browser.value("document.querySelectorAll('#vg-tooltip-element script').length") == 0


PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "getComputedStyle(document.querySelector('svg .role-axis-label text')).fill"


def test_the_page_follows_the_system_and_the_button_overrules_it(opened, page):
    browser = opened(page, dark=True)
    dark_paper, dark_labels = browser.value(PAPER), browser.value(INK)
    browser.click("#theme")
    browser.wait_for("document.documentElement.dataset.drawn === 'light'")
    assert browser.value("document.documentElement.dataset.theme") == "light"
    light_paper, light_labels = browser.value(PAPER), browser.value(INK)
    assert light_paper == "rgb(255, 255, 255)"
    assert dark_paper != light_paper
    assert dark_labels != light_labels
    browser.click("#theme")
    browser.wait_for("document.documentElement.dataset.drawn === 'dark'")
    assert browser.value(PAPER) == dark_paper


@pytest.mark.parametrize("width", [390, 700, 1400])
def test_nothing_is_wider_than_the_window(opened, page, width):
    browser = opened(page, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    widest = browser.value(
        "Math.max(...[...document.querySelectorAll('svg.marks')].map(s => s.getBoundingClientRect().right))"
    )
    assert width / 2 < widest <= width


def test_parts_that_unfold_draw_their_charts(opened, page):
    browser = opened(page, 390)
    hidden = "[...document.querySelectorAll('details.more .chart')].filter(chart => !chart.querySelector('svg')).length"
    assert browser.value(hidden) == 2 * (2 + 5)
    browser.value("document.querySelectorAll('details.more').forEach(part => { part.open = true; })")
    browser.wait_for(f"{hidden} === 0")
    assert browser.value("document.documentElement.scrollWidth") <= 390


def test_runs_can_be_searched_and_tell_how_to_repeat_them(opened, page):
    browser = opened(page)
    shown = "[...document.querySelectorAll('.run')].filter(run => !run.hidden).length"
    assert browser.value(shown) == 13
    browser.value("""(() => {
        const search = document.getElementById("search");
        search.value = "other JOINT";
        search.dispatchEvent(new Event("input"));
    })()""")
    assert browser.value(shown) == 3
    assert browser.value("document.getElementById('count').textContent") == "3 of 13 runs"
    command = browser.value("document.querySelector('.run:not([hidden]) pre.command').textContent")
    assert "latebloom train --config -" in command


def test_the_configuration_of_a_run_is_laid_out_when_it_is_opened(opened, page):
    browser = opened(page)
    browser.value("document.querySelectorAll('details.run').forEach(run => { run.open = true; })")
    browser.wait_for("[...document.querySelectorAll('pre.config')].every(config => config.textContent)")
    shown = browser.value("[...document.querySelectorAll('pre.config')].map(config => config.textContent)")
    commands = browser.value("[...document.querySelectorAll('pre.command')].map(command => command.textContent)")
    for config, command in zip(shown, commands, strict=True):
        assert json.loads(config) == json.loads(shlex.split(command)[2])
        assert "\n  " in config


@pytest.mark.parametrize(("form", "magic"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_a_chart_saves_itself_as_a_picture(opened, page, tmp_path, form, magic):
    browser = opened(page)
    browser.save_downloads_in(tmp_path)
    links = "[...document.querySelectorAll('section .chart')][0].querySelectorAll('.vega-actions a')"
    labels = browser.value(f"[...{links}].map(link => link.textContent)")
    assert labels == ["Save as SVG", "Save as PNG"]
    link = f"{links}[{('svg', 'png').index(form)}]"
    browser.value(f"{link}.dispatchEvent(new MouseEvent('mousedown', {{bubbles: true}}))")
    browser.wait_for(f"/^(data|blob):/.test({link}.href)")
    browser.value(f"{link}.click()")
    saved = tmp_path / f"study-script-alert-1-script-composite-25-accuracy.{form}"
    end = time.monotonic() + 20
    while not (saved.exists() and saved.stat().st_size):
        assert time.monotonic() < end, list(tmp_path.iterdir())
        time.sleep(0.05)
    assert magic in saved.read_bytes()[:200]


def test_a_page_of_single_runs_with_a_title_and_an_introduction_is_drawn_too(opened, tmp_path):
    write_results(tmp_path / "a.parquet", [record("joint", 0, FALLS), record(HOSTILE, 0, HOLDS)])
    html = study_page(read_sections([tmp_path / "a.parquet"]), f"Title {HOSTILE}", [f"Seen {HOSTILE}"])
    (tmp_path / "page.html").write_text(html)
    browser = opened(tmp_path / "page.html")
    assert browser.value("document.title") == f"Title {HOSTILE}"
    assert browser.value("document.querySelector('p.seen').textContent") == f"Seen {HOSTILE}"
    text = hover(browser, HOSTILE)
    assert "100.0%" in text
    assert "99.6% to 100.0%" in text
    assert "sequences of one seed" in text
