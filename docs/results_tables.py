"""What docs/results.md and the README say of the studies, from results/*.parquet.

python docs/results_tables.py            write it, draw the pictures, and make results/report.html
python docs/results_tables.py --check    fail if a page says something else (a test does this)
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from figures import ROOT, write_or_check
from results_files import (
    EXACT,
    FAR,
    NEAR,
    PAGE,
    README,
    at,
    cliffs,
    composite,
    config_of,
    exact,
    held,
    noisy,
    read,
    results_of,
    without_seed,
)

from latebloom.evaluation.result import HOLDS_AT, Evaluation
from latebloom.report.arms import arms_figure, effects_figure
from latebloom.report.charts import save_chart
from latebloom.report.compared import comparison_tables, comparisons
from latebloom.report.figures import accuracy_figure
from latebloom.report.panel import Panel
from latebloom.report.statistics import Comparison, compare_arms
from latebloom.report.study import read_sections
from latebloom.report.study_page import study_page
from latebloom.report.study_tables import accuracy_cell, accuracy_table, p_value, points, reach_table
from latebloom.report.switches import switch_table
from latebloom.report.tables import Cell, Table, as_markdown
from latebloom.report.words import row
from latebloom.results.settings import flat
from latebloom.studies.find import known_studies, plan_of

STUDIES = ("paper", "timing", "holding")
REPORT = ROOT / "results" / "report.html"
APART = 0.05
"""How far two means lie apart that are told of as different."""


# paper: every model on every task


def paper() -> str:
    parts, told = [f"{_made('paper')}\n"], set[str]()
    for panel in read("paper"):
        parts.append(f"### {panel.task}\n")
        parts += [_once(table, told) for table in (accuracy_table(panel), reach_table(panel))]
        parts.append(" ".join([_chosen(panel), _exact(panel, panel.shown), *_dat_ahead(panel)]) + "\n")
    return "\n".join(parts)


def paper_in_short() -> str:
    panel = composite("paper")
    return " ".join([f"{as_markdown(accuracy_table(panel))}\n{_exact(panel, panel.shown)}", *_dat_ahead(panel)])


def _dat_ahead(panel: Panel) -> list[str]:
    """Delayed attention less each way of training jointly, and these with each other."""
    joint = [arm for arm in panel.shown if arm.startswith("joint")]
    return [_ahead(panel, *pair) for pair in [*(("dat", arm) for arm in joint), *combinations(joint, 2)]]


EARLIER = ("paper-less-noise", "paper-sharpened", "paper-all-asked", "paper-width-128")
"""Earlier forms of the study, of the composite task."""


def paper_before(form: str) -> str:
    """An earlier form of the study, in short."""
    (panel,) = read(form)
    now = composite("paper")
    told = []
    for multiple in (NEAR, FAR):
        length = at(panel, multiple)
        one = compare_arms("dat", "joint", now.by_seed("dat", length), panel.by_seed("joint", length))
        if one is not None:
            told.append(f"{points(one.difference).plain} points at {multiple}x")
    return (
        f"> {_chosen(panel)} {_levels(panel)} {_exact(panel, panel.shown)} {_ahead(panel, 'dat', 'joint')} "
        f"The first study's dat less this joint: {', '.join(told)}."
    )


def plain_in_short() -> str:
    """Our plain form, for the README."""
    (panel,) = read("paper-all-asked")
    return f"{_levels(panel)} {_exact(panel, ['joint', 'dat'])} {_ahead(panel, 'dat', 'joint')}"


def _levels(panel: Panel) -> str:
    levels = (
        f"{arm} {accuracy_cell(panel, arm, at(panel, multiple)).plain} at {multiple}x"
        for arm in ("joint", "dat")
        for multiple in (NEAR, FAR)
    )
    return f"All answers right: {', '.join(levels)}."


def _exact(panel: Panel, arms: list[str]) -> str:
    """How many seeds hold near, and are exact near and far."""
    near, both = (
        ", ".join(f"{count(panel, arm)} of {len(panel.finished[arm])} ({arm})" for arm in arms)
        for count in (held, exact)
    )
    return (
        f"Seeds at {HOLDS_AT:.0%} or more at {NEAR}x: {near}. "
        f"Seeds at {EXACT:.0%} or more both at {NEAR}x and at {FAR}x: {both}."
    )


def _ahead(panel: Panel, first: str, second: str) -> str:
    """One arm less another at both distances, seed by seed."""
    told = []
    for multiple in (NEAR, FAR):
        one = _difference(panel, first, second, at(panel, multiple))
        if one is not None:
            told.append(f"{points(one.difference).plain} points at {multiple}x (p {p_value(one.p)})")
    return f"{first} less {second}, seed by seed: {', '.join(told)}." if told else ""


def _cliffs(panel: Panel, arm: str) -> str:
    return f"a cliff in {cliffs(panel, arm)} of {len(panel.finished[arm])} seeds"


def _difference(panel: Panel, first: str, second: str, length: int) -> Comparison | None:
    return compare_arms(first, second, *(panel.by_seed(arm, length) for arm in (first, second)))


def _chosen(panel: Panel) -> str:
    """What was chosen for each arm on held-out seeds."""
    told = []
    for arm in panel.shown:
        config = config_of(next(run for run in panel.runs if run.arm == arm))
        weigh = f", weighed by {config['training']['weigh']}" if len(panel.answers) > 1 else ""
        told.append(f"{arm} {config['training']['full']['learning_rate']:g}, {_form(config)}{weigh}")
    return f"Chosen on held-out seeds: {'; '.join(told)}."


def _form(config: dict[str, Any]) -> str:
    """What is chosen besides rate and weighing: noise, or the Transformer's positions, and sharpened scores."""
    attention = config["model"]["attention"]
    sharp = ", sharpened" if "a" in config["model"]["layout"] and attention.get("sharpen") else ""
    if "r" not in config["model"]["layout"]:
        positions = attention["positions"]
        return f"{'no' if positions == 'none' else positions} positions{sharp}"
    noise = config["training"].get("state_noise", 0.0)
    return f"{f'noise {noise:g}' if noise else 'no noise'}{sharp}"


def tuning() -> str:
    """How every choice did on the held-out seeds."""
    return "\n\n".join(_tuning_of(panel) for panel in read("paper-tuning"))


def _tuning_of(panel: Panel) -> str:
    rows: dict[tuple[str, str, str], dict[float, list[Evaluation]]] = {}
    tried = plan_of(known_studies()["paper"], "paper").tuning_seeds
    for run in panel.runs:
        if run.seed not in tried:
            continue
        config = config_of(run)
        training = config["training"]
        row = rows.setdefault((run.arm.partition(", ")[0], _form(config), training["weigh"]), {})
        if run.evaluation is not None:
            row.setdefault(training["full"]["learning_rate"], []).append(run.evaluation)
    rates = sorted({rate for row in rows.values() for rate in row})
    # One answer is weighed alike both ways.
    heads = ("arm", "with", "weighed by") if len(panel.answers) > 1 else ("arm", "with")
    lines = [f"<details><summary>{panel.task}: every choice</summary>", ""]
    for multiple in (NEAR, FAR):
        lines += [
            f"All answers right at {multiple}x on each held-out seed, by rate:",
            "",
            f"| {' | '.join([*heads, *(f'{rate:g}' for rate in rates)])} |",
            "|---" * (len(heads) + len(rates)) + "|",
        ]
        length = at(panel, multiple)
        for names, row in rows.items():
            cells = (", ".join(f"{run.accuracy(length):.1%}" for run in row.get(rate, [])) for rate in rates)
            lines.append(f"| {' | '.join([*names[: len(heads)], *cells])} |")
        lines.append("")
    lines += [as_markdown(_second_round(panel)), "</details>", ""]
    return "\n".join([*lines, f"{panel.task}: {_tuning_in_short(rows)}"])


def _second_round(panel: Panel) -> Table:
    """The settings that were tried on more held-out seeds, and which of them the study's runs have."""
    of_study = next(other for other in read("paper") if other.task == panel.task)
    chosen = [without_seed(run) for run in of_study.runs]
    most = max(len(seeds) for seeds in panel.finished.values())
    rows: list[tuple[float, str, tuple[Cell, ...]]] = []
    for name, seeds in panel.finished.items():
        if len(seeds) == most:
            one = next(run for run in panel.runs if run.arm == name)
            config = config_of(one)
            training, arm = config["training"], name.partition(", ")[0]
            runs = list(seeds.values())
            score = mean(run.mean_beyond for run in runs)
            name = f"{arm} (chosen)" if without_seed(one) in chosen else arm
            cells = [Cell(name), Cell(_form(config)), Cell(f"{training['full']['learning_rate']:g}")]
            cells += [Cell(training["weigh"])] if len(panel.answers) > 1 else []
            for multiple in (NEAR, FAR):
                reached = [run.accuracy(at(panel, multiple)) for run in runs]
                cells.append(Cell(f"{mean(reached):.1%}, least {min(reached):.1%}"))
            rows.append((score, arm, (*cells, Cell(f"{score:.1%}"))))
    order = of_study.shown
    rows.sort(key=lambda row: (order.index(row[1]), -row[0]))
    return Table(
        title=f"Second round: the best of each arm on {most} held-out seeds",
        head=(
            "arm", "with", "rate", *(("weighed by",) if len(panel.answers) > 1 else ()),
            *(f"{multiple}x" for multiple in (NEAR, FAR)), "mean beyond",
        ),
        rows=tuple(cells for _, _, cells in rows),
        note="",
    )  # fmt: skip


def _tuning_in_short(rows: dict[tuple[str, str, str], dict[float, list[Evaluation]]]) -> str:
    """How many of an arm's settings held on every held-out seed, and how many of its runs had a cliff."""
    held, fallen = [], []
    for name in dict.fromkeys(arm for arm, _, _ in rows):
        settings = [runs for (arm, _, _), row in rows.items() if arm == name for runs in row.values()]
        near = round(NEAR * settings[0][0].training_length)
        every = sum(all(run.accuracy(near) >= HOLDS_AT for run in runs) for runs in settings)
        held.append(f"{every} of {len(settings)} ({name})")
        cliffs = [run.cliff is not None for runs in settings for run in runs]
        fallen.append(f"{sum(cliffs)} of {len(cliffs)} ({name})")
    return (
        f"settings at {HOLDS_AT:.0%} or more at {NEAR}x on every seed of the first round: {', '.join(held)}. "
        f"Of these runs with a cliff: {', '.join(fallen)}."
    )


# timing: when to switch


def timing() -> str:
    parts, told = [f"{_made('timing')}\n"], set[str]()
    for panel in read("timing"):
        parts.append(f"### {panel.task}\n")
        if (switches := switch_table(panel)) is not None:
            parts.append(_once(switches, told))
        for arm in panel.shown:
            if arm.startswith("joint"):
                levels = (f"{accuracy_cell(panel, arm, at(panel, m)).plain} at {m}x" for m in (NEAR, FAR))
                parts.append(f"- {arm}: {', '.join(levels)}; {_cliffs(panel, arm)}")
            elif arm.startswith("when beyond"):
                runs = [run for run in panel.runs if run.arm == arm]
                late = sum(run.switch_step == config_of(run)["delay"]["until"]["latest"] for run in runs)
                parts.append(f"- {arm}: the bar was not met before the latest step in {late} of {len(runs)} seeds")
        parts.append("")
    return "\n".join(parts)


# holding: what each change does


def holding() -> str:
    (panel,) = read("holding")
    (compared,) = comparisons([panel])
    told: set[str] = set()
    fallen = (f"{arm}: {_cliffs(panel, arm)}" for arm in panel.shown if "joint" in arm or "none held" in arm)
    return "\n".join(
        [
            f"{_made('holding')}\n",
            *(_once(table, told) for table in comparison_tables(panel, compared).values()),
            f"- {'; '.join(fallen)}",
            f"- {_before(panel)}",
        ]
    )


def _before(panel: Panel) -> str:
    """The arms with the same settings that came out otherwise when their first seeds were run before."""
    (earlier,) = read("holding-earlier")
    told = []
    for arm in panel.shown:
        if arm in noisy(panel):  # there was less of it then
            continue
        levels = []
        for length in (at(panel, NEAR), at(panel, FAR)):
            then, now = (one.by_seed(arm, length) for one in (earlier, panel))
            levels.append((mean(then.values()), mean(now[seed] for seed in then)))
        if max(abs(then - now) for then, now in levels) >= APART:
            near, far = (f"{then:.0%} then and {now:.0%} now at" for then, now in levels)
            told.append(f"{arm} {near} {NEAR}x, {far} {FAR}x")
    count = len(earlier.by_seed("dat", at(panel, NEAR)))
    return (
        f"The first {count} seeds of the arms without noise were run before, at earlier commits and beside other runs. "
        f"On these the mean of an arm differs by {100 * APART:.0f} points or more in: {'; '.join(told)}."
    )


# what all share


def _made(study: str) -> str:
    """Where the numbers come from."""
    of = read(study)
    runs = [run for panel in of for run in panel.runs]
    configs = [config_of(run) for run in runs]
    training = [config["training"] for config in configs]
    planned = plan_of(known_studies()[study], "paper").run_count
    failed = sum(run.evaluation is None for run in runs)
    seeds = {len(panel.by_seed(arm, panel.training_length)) for panel in of for arm in panel.shown}
    made: dict[str, dict[str, None]] = {}
    for run in runs:
        made.setdefault(f"{run.machine}, {run.versions}", {})[(run.commit or "")[:12]] = None
    part = "" if len(runs) == planned else f" of the {planned}"
    return (
        f"{len(runs)}{part} runs of `latebloom study {study} --scale paper`"
        f"{f', of which {failed} failed' if failed else ''}, {_either(seeds)} seeds an arm, "
        f"width {_either(config['model']['width'] for config in configs)}, {_either(one['steps'] for one in training)} "
        f"steps in batches of {_either(one['full']['batch_size'] for one in training)}, trained up to length "
        f"{_either(run.training_length for run in runs)}; "
        f"{'; '.join(f'{where}, commit {row(list(commits))}' for where, commits in made.items())}."
    )


def check_planned() -> None:
    """That the runs are those of the studies as they are now, apart from settings that came later."""
    for study in STUDIES:
        runs = [run for panel in read(study) for run in panel.runs]
        for arm in plan_of(known_studies()[study], "paper").arms:
            if arm.choices:
                continue
            now = dict(flat(json.loads(json.dumps(arm.config.to_json()))))
            for run in (run for run in runs if (run.task, run.arm) == (arm.task, arm.name)):
                for name, value in flat(config_of(run)):
                    if name != "seed" and now.get(name) != value:
                        sys.exit(f"{study}.parquet: {arm.name} has {name}={value}, the study {now.get(name)}")


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(numbers)))


def _once(table: Table, told: set[str]) -> str:
    """A table as Markdown, without its note if that is among those told."""
    text = as_markdown(replace(table, note="") if table.note in told else table)
    told.add(table.note)
    return text


def draw(study: str, image: Path) -> None:
    """The composite task's picture: lines by length; the arms side by side where they are many; or what each change
    does, where that is the question."""
    panel = composite(study)
    figure = {
        "paper": accuracy_figure,
        "timing": arms_figure,
        "holding": lambda panel: effects_figure(panel, *comparisons([panel])),
    }[study](panel)
    assert figure is not None
    save_chart(figure.chart, image)


def write_or_check_report() -> None:
    """The page of all three; with --check, fail if it is of other results."""
    files = [results_of(study) for study in (*STUDIES, "paper-tuning")]
    stamp = f"<!-- made from results {hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()} -->\n"
    if "--check" not in sys.argv[1:]:
        REPORT.write_text(study_page(read_sections(files)) + stamp)
    elif not REPORT.read_text().endswith(stamp):
        sys.exit(f"{REPORT.name} was not made from {', '.join(file.name for file in files)}")


def main() -> None:
    check_planned()
    for study, text in zip(STUDIES, (paper, timing, holding), strict=True):
        image = ROOT / "docs" / "images" / f"{study}.svg"
        write_or_check(results_of(study), PAGE, text(), image, partial(draw, study, image))
    write_or_check(results_of("paper-tuning"), PAGE, tuning())
    for form in EARLIER:
        write_or_check(results_of(form), PAGE, paper_before(form))
    write_or_check(results_of("paper"), README, paper_in_short())
    write_or_check(results_of("paper-all-asked"), README, plain_in_short())
    write_or_check_report()


if __name__ == "__main__":
    main()
