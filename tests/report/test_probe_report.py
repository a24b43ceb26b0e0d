"""Verdicts from planted tables, the files of probes, and the command."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from latebloom import run
from latebloom.checks import check_components
from latebloom.cli import main
from latebloom.commands.probe import default_place
from latebloom.errors import ConfigError, ResultsError
from latebloom.probes import NAMES, load_probes
from latebloom.probes.ablation import ATTENTION_OFF, INTACT, Ablation
from latebloom.probes.horizon import MemoryHorizon
from latebloom.probes.interference import GradientInterference
from latebloom.probes.probe import Probe
from latebloom.probes.sharpness import Sharpness
from latebloom.probes.table import Table
from latebloom.report.mechanisms import FEW, MARGIN, RULE, compared_arms, decide, verdicts
from latebloom.report.page import Page
from latebloom.report.probe_charts import draw
from latebloom.report.probe_page import probe_sections, write_page
from latebloom.report.probe_section import add_probe_section, measured_once, probe_section
from latebloom.report.study import read_sections
from latebloom.report.tables import MISSING
from latebloom.results.find_runs import find_runs
from latebloom.results.probe_runs import ProbeResults, probe_runs
from latebloom.results.probes import Probed, read_probe, write_probe


def probed(probe, training: str, seed: int, rows: list[dict]) -> Probed:
    table = Table.of(probe.columns, rows)
    return Probed("s", "composite", training, training, seed, 25, f"{training}{seed}", "{}", table)


def ablation(training: str, seed: int, off: float, intact: float = 1.0) -> Probed:
    same = {"answer": "sum", "length": 25, "sequences": 8}
    rows = [{"part": "nothing", "change": INTACT, "accuracy": intact} | same]
    return probed(
        Ablation, training, seed, [*rows, {"part": "attention", "change": ATTENTION_OFF, "accuracy": off} | same]
    )


def interference(training: str, seed: int, with_attention: float, without: float, gate: float = 1.0) -> Probed:
    same = {"layer": "all", "part": "total", "attention": gate, "cosine": 0.5}
    numbers = {"alone_with": with_attention, "alone_without": without}
    return probed(GradientInterference, training, seed, [{"step": step} | same | numbers for step in (100, 200)])


def sharpness(training: str, seed: int, weights: dict[int, float]) -> Probed:
    same = {"layer": 0, "head": 0, "entropy": 1.0, "largest": 0.5, "sequences": 8}
    rows = [{"length": length, "right": weight} | same for length, weight in weights.items()]
    return probed(Sharpness, training, seed, rows)


def words(**tables) -> list[str]:
    return [verdict.word for verdict in verdicts(tables, "sum")]


def test_each_mechanism_is_confirmed_where_it_is_planted_and_refuted_where_its_opposite_is():
    seeds = range(6)
    planted = {
        "ablation": [ablation("joint", s, 0.2 + s / 100) for s in seeds] + [ablation("delayed", s, 1.0) for s in seeds],
        "interference": [interference("joint", s, -0.2 - s / 100, 0.4) for s in seeds],
        "sharpness": [sharpness("delayed", s, {25: 0.9, 100: 0.4 + s / 100}) for s in seeds],
    }
    assert words(**planted) == ["confirmed"] * 3
    opposite = {
        "ablation": [ablation("joint", s, 1.0 - s / 100) for s in seeds] + [ablation("delayed", s, 1.0) for s in seeds],
        "interference": [interference("joint", s, 0.5 + s / 100, 0.4) for s in seeds],
        "sharpness": [sharpness("delayed", s, {25: 0.9, 100: 0.88 + s / 1000}) for s in seeds],
    }
    assert words(**opposite) == ["refuted"] * 3
    text = " ".join(sentence for verdict in verdicts(planted, "sum") for sentence in verdict.sentences)
    assert re.search(r"lose 77\.5 \[76\.\d, 78\.\d\] percentage points over 6 seeds of accuracy in the sum", text)
    assert re.search(r"falls by 47\.5 \[46\.\d, 48\.\d\] percentage points over 6 seeds from", text)
    assert "raises the loss of the recurrence alone beyond the training length in 100.0%" in text
    assert "loses its majority: 100 (6 of 6)" in text


def test_runs_that_disagree_leave_it_undecided_and_few_runs_must_agree():
    assert decide([0.5, 0.0]) == "undecided"
    assert decide([0.5, 0.4]) == "confirmed"
    assert decide([0.05, 0.0]) == "refuted"
    assert decide([0.9, 0.0, 0.0, 0.05, 0.02, 0.0]) == "undecided"


def test_one_seed_decides_nothing():
    assert decide([0.9]) == decide([0.0]) == "undecided"
    planted = {
        "ablation": [ablation("joint", 0, 0.2), ablation("delayed", 0, 1.0)],
        "interference": [interference("joint", 0, -0.2, 0.4)],
        "sharpness": [sharpness("delayed", 0, {25: 0.91, 100: 0.56}), sharpness("joint", 0, {25: 0.9, 100: 0.81})],
    }
    found = verdicts(planted, "sum")
    assert [verdict.word for verdict in found] == ["undecided"] * 3
    assert found[0].sentences[0] == (
        "Without attention, joint runs lose 80.0 percentage points of accuracy in the sum at the training length."
    )
    assert "falls by 35.0 percentage points from the training length to length 100;" in found[2].sentences[0]
    assert [verdict.sentences[-1] for verdict in found] == [
        "The verdict is on the paired difference, in one seed, which is too few.",
        "The verdict is on this cosine in joint runs, in one seed, which is too few.",
        "The verdict is on the fall in delayed runs, in one seed, which is too few.",
    ]


def test_a_verdict_says_which_runs_it_is_on():
    delayed = [sharpness("delayed", s, {25: 0.91, 100: 0.56}) for s in range(2)]
    joint = [sharpness("joint", s, {25: 0.9, 100: 0.81}) for s in range(2)]
    for runs, word, kind in ((delayed + joint, "confirmed", "delayed"), (joint, "refuted", "joint")):
        verdict = verdicts({"sharpness": runs}, "sum")[2]
        assert verdict.word == word
        assert verdict.sentences[-1] == f"The verdict is on the fall in {kind} runs, in 2 seeds."
    alone = verdicts({"ablation": [ablation("delayed", s, 1.0) for s in range(2)]}, "sum")[0]
    assert alone.word == "refuted"
    assert alone.sentences[-1] == "The verdict is on the loss in delayed runs, in 2 seeds."


def test_joint_training_is_compared_with_each_delayed_arm():
    seeds = range(6)
    tables = {
        "ablation": [ablation("joint", s, 0.2 + s / 100) for s in seeds]
        + [ablation("delayed", s, 1.0) for s in seeds]
        + [replace(ablation("delayed", s, 0.25 + s / 100), arm="plain") for s in seeds],
    }
    assert compared_arms(tables) == [{"joint": "joint", "delayed": arm} for arm in ("delayed", "plain")]
    section = probe_section(tables, [Probe.named("ablation")], "sum")
    assert section.verdicts[0].word == "confirmed"
    assert [verdict.word for verdict in section.others["plain"]] == ["refuted", "undecided", "undecided"]
    page = Page("p")
    add_probe_section(page, "p", section)
    assert "<summary>The same with plain: refuted, undecided, undecided</summary>" in page.html()


def test_the_docs_state_the_rule_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "probes.md").read_text()
    assert RULE in " ".join(page.split())
    assert (FEW, MARGIN) == (5, 0.1)  # RULE names the first in words


def test_what_was_not_learned_or_not_measured_is_undecided():
    assert words() == ["undecided"] * 3
    unlearned = [ablation("joint", s, 0.1, intact=0.2) for s in range(6)]
    gradients = [interference("joint", s, -0.5, 0.5) for s in range(6)]
    assert words(ablation=unlearned, interference=gradients) == ["undecided"] * 3
    delayed = [interference("delayed", s, -0.5, 0.5, gate=0.0) for s in range(6)]
    learned = [ablation("delayed", s, 1.0) for s in range(6)]
    assert words(ablation=learned, interference=delayed)[1] == "undecided"  # attention took no part in these steps
    assert words(interference=gradients)[1] == "undecided"  # what these runs have learned is not known
    several = [ablation("joint", s, 0.1) for s in range(3)]
    sentences = verdicts({"ablation": several, "interference": gradients}, "sum")[1].sentences
    assert sentences[0].startswith("3 of 6 runs do not count")
    blind = [sharpness("joint", s, {25: 0.3, 100: 0.1}) for s in range(6)]
    assert words(sharpness=blind) == ["undecided"] * 3


def test_files_keep_tables_and_refuse_others(tmp_path):
    runs = [sharpness("joint", s, {25: 0.9, 50: 0.1 * s}) for s in range(2)] + [sharpness("joint", 3, {25: 0.5})]
    path = tmp_path / "sharpness.parquet"
    write_probe(path, "sharpness", Sharpness.columns, runs)
    assert read_probe(path, {"sharpness": Sharpness.columns}) == ("sharpness", runs)
    with pytest.raises(ResultsError, match="holds no results of a probe that is known: ablation"):
        read_probe(path, {"ablation": Ablation.columns})
    path.write_bytes(b"no parquet")
    with pytest.raises(ResultsError, match="not a parquet file"):
        read_probe(path, {"sharpness": Sharpness.columns})


def test_a_table_has_the_types_of_its_columns():
    with pytest.raises(TypeError, match=r"length: 2\.5 is not a whole"):
        Table.of(Sharpness.columns, [{"length": 2.5}])
    with pytest.raises(TypeError, match="layer: None is not a whole"):
        Table.of(Sharpness.columns, [{"length": 2}])


def test_lines_have_the_mean_over_seeds_with_intervals():
    runs = [interference("joint", s, 0.1 * s, 0.5) for s in range(4)]
    ((_, chart),) = draw(GradientInterference.chart, runs, ["joint"])
    points = chart["datasets"]["points"]
    assert [point["x"] for point in points] == [100, 200]
    assert points[0]["value"] == pytest.approx(0.15)
    assert points[0]["low"] < 0.15 < points[0]["high"]


def test_a_map_leaves_room_for_the_button_above_its_cells():
    ((_, chart),) = draw(Sharpness.chart, [sharpness("joint", 0, {25: 0.9, 50: 0.5})], ["joint"])
    assert chart["title"]["offset"] >= 20


def shown(results: ProbeResults, probes: Sequence[Probe], out: Path) -> str:
    return write_page(probe_sections(results, probes, {}), results, out).read_text()


def test_gradients_that_were_measured_once_are_a_table_without_charts(tmp_path):
    rows = [
        {"step": -1, "attention": 1.0, "layer": layer, "part": part, "cosine": 0.25, "norm_with": 2.0}
        for layer in ("0", "all")
        for part in ("sum", "total")
    ]
    once = [probed(GradientInterference, "joint", 0, [row | {"alone_with": -0.125} for row in rows])]
    table = measured_once(once, ["joint"])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["joint", part, "0.25", "2", MISSING, "-0.125", MISSING] for part in ("sum", "total")
    ]
    probes = [GradientInterference()]
    page = shown(ProbeResults({"interference": once}, {}), probes, tmp_path / "once")
    assert "1 run without a record over training: measured once" in page
    assert page.count("training.probe_every") == 1
    assert "nothing to draw" not in page
    assert 'class="chart"' not in page
    assert not (tmp_path / "once" / "figures").exists()
    mixed = [*once, interference("delayed", 0, 0.1, 0.2)]
    page = shown(ProbeResults({"interference": mixed}, {}), probes, tmp_path / "mixed")
    assert "-0.125" in page
    assert 'class="chart"' in page
    assert '"x": -1' not in page


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """Two arms of two seeds, trained for some steps."""
    from latebloom import Composite, Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid

    folder = tmp_path_factory.mktemp("runs")
    phase = Phase(learning_rate=5e-3, warmup=2, batch_size=8)
    config = RunConfig(
        task=Composite(modulus=3, keys=16, values=4),
        model=hybrid(width=8, blocks=1, heads=2),
        training=Training(length=4, steps=6, delayed=phase, full=phase, probe_every=2),
        evaluation=Evaluating(multiples=(1,), sequences=8),
    )
    for name, delay in (("joint", None), ("dat", Delay(until=at_step(3)))):
        for seed in (0, 1):
            run(replace(config, delay=delay, seed=seed), folder / name / f"seed-{seed}", device="cpu")
    return folder


def test_the_command_probes_runs_and_keeps_what_it_has_measured(trained, tmp_path, capsys):
    out = tmp_path / "out"
    runs = [str(trained / name) for name in ("joint", "dat")]
    main(["probe", *runs, "--what", "interference,sharpness,horizon", "--out", str(out)])
    said = capsys.readouterr().out
    assert "Attention's presence spoils the recurrence's gradients" in said
    page = (out / "index.html").read_text()
    for words_of_page in ("Shortcut report", RULE, "joint: 2 seeds; dat: 2 seeds.", "undecided", "Does a step along"):
        assert words_of_page in page
    files = {file.name: file.read_bytes() for file in out.glob("*.parquet")}
    assert files.keys() == {"interference.parquet", "sharpness.parquet", "horizon.parquet"}
    assert {path.suffix for path in (out / "figures").iterdir()} == {".svg", ".png"}
    _, kept = read_probe(out / "interference.parquet", {"interference": GradientInterference.columns})
    assert {(one.arm, one.training, one.seed) for one in kept} == {
        ("joint", "joint", 0), ("joint", "joint", 1), ("dat", "delayed", 0), ("dat", "delayed", 1),
    }  # fmt: skip
    assert sorted(set(kept[0].table.values("step"))) == [2, 4, 6]
    main(["probe", runs[0], "--what", "sharpness", "--out", str(out)])  # measured before
    assert (out / "sharpness.parquet").read_bytes() == files["sharpness.parquet"]


def test_a_report_has_the_probes_of_its_runs_with_one_chart_each(trained, tmp_path, capsys):
    """Under the names that the runs have in the report, from a folder of probes or from the folder of the runs."""
    runs, out = [str(trained / name) for name in ("joint", "dat")], tmp_path / "probed"
    main(["probe", *runs, "--what", "interference,horizon", "--out", str(out)])
    shortcut = (out / "index.html").read_text()
    capsys.readouterr()
    main(["report", *runs, str(out), "--out", str(tmp_path / "report")])
    said = capsys.readouterr().out
    assert "Attention's presence spoils the recurrence's gradients: undecided" in said
    page = (tmp_path / "report" / "index.html").read_text()
    for part in ('<h2 id="runs-composite-4-probes">Probes: composite', "Does a step along", "<h3>horizon</h3>", RULE):
        assert part in page
    names = ("interference", "horizon-0", "horizon-1")
    for name in names:
        assert f'id="runs-composite-4-probes-{name}"' in page
        assert f'id="runs-composite-{name}"' in shortcut
        assert (tmp_path / "report" / "figures" / f"runs-composite-4-probes-{name}.pdf").exists()
    (section,) = read_sections([*map(Path, runs), *out.glob("*.parquet")])
    assert section.probed is not None
    assert section.probed.seeds == {"joint": 2, "dat": 2}
    shutil.copytree(out, trained / "joint" / "probes")
    (beside,) = read_sections([Path(one) for one in runs])
    assert beside.probed == section.probed
    with pytest.raises(ResultsError, match="and in another file of horizon"):
        read_sections([*map(Path, runs), out])
    with pytest.raises(ConfigError, match="has results of a probe; name the results or folders of its runs too"):
        read_sections([out])
    shutil.rmtree(trained / "joint" / "probes")
    (without,) = read_sections([Path(one) for one in runs])
    assert without.probed is None


def test_runs_that_are_probed_at_once_have_the_tables_of_single_ones(trained, tmp_path):
    found, probes = (
        find_runs([trained / "joint", trained / "dat"]),
        [Sharpness(multiples=(1,)), MemoryHorizon(tokens=8)],
    )
    said: list[str] = []
    at_once = probe_runs(found, probes, tmp_path / "a", at_once=3, report=lambda what, share: said.append(what))
    assert {"3 runs: sharpness", "dat, seed 1: sharpness"} <= set(said)
    single = probe_runs(found, probes, tmp_path / "b")
    for name, runs in single.tables.items():
        for one, other in zip(runs, at_once.tables[name], strict=True):
            assert replace(one, table=other.table) == other
            for row, expected in zip(other.table.rows, one.table.rows, strict=True):
                numbers = [cell for cell in expected if isinstance(cell, float)]
                assert [cell for cell in row if isinstance(cell, float)] == pytest.approx(numbers, rel=1e-5, abs=1e-5)
    with pytest.raises(ConfigError, match="at_once: 0 is not possible"):
        probe_runs(found, probes, tmp_path / "c", at_once=0)


def test_a_study_can_probe_its_runs_at_the_end(trained, tmp_path, monkeypatch):
    from latebloom.engine.folder import RunFolder
    from latebloom.studies.plan import Arm, Plan
    from latebloom.study import run_study

    monkeypatch.setattr("latebloom.probes.NAMES", ("interference", "horizon"))
    config = RunFolder(trained / "joint" / "seed-0").read_config()
    run_study("mine", Plan([Arm("joint", config)], [0], probed=True), tmp_path, "tiny", workers=1, device="cpu")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<h3>horizon</h3>" in page
    assert "Attention&#x27;s presence spoils the recurrence&#x27;s gradients: undecided" in page
    assert {file.stem for file in (tmp_path / "probes").glob("*.parquet")} == {"interference", "horizon"}


def test_mistakes_are_one_sentence(trained, tmp_path):
    from latebloom.cli import parse

    with pytest.raises(ConfigError, match="probe: give the folder of a run"):
        parse(["probe"])()
    with pytest.raises(ConfigError, match="what: 'sharp' is not known; did you mean 'sharpness'"):
        parse(["probe", str(trained / "joint"), "--what", "sharp"])()
    (tmp_path / "begun").mkdir()
    config = json.loads((trained / "joint" / "seed-0" / "config.json").read_text())
    (tmp_path / "begun" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResultsError, match="holds no finished run"):
        find_runs([tmp_path / "begun"])


def test_arms_of_runs_in_different_folders_are_told_apart(trained, tmp_path):
    for name, source in (("one", "joint"), ("two", "dat")):
        shutil.copytree(trained / source / "seed-0", tmp_path / name / "run")
    runs = [tmp_path / "one" / "run", tmp_path / "two" / "run"]
    assert [run.arm for run in find_runs(runs)] == ["one/run", "two/run"]
    assert [run.arm for run in find_runs([trained / "joint", trained / "dat" / "seed-1"])] == ["joint", "joint", "dat"]
    shutil.copytree(runs[0], tmp_path / "three")
    with pytest.raises(ResultsError, match=r"one/run and .*three hold the same run; give one of them"):
        find_runs([runs[0], tmp_path / "three"])
    assert len(find_runs([runs[0], runs[0]])) == 1


def test_the_study_records_gradients_in_every_run():
    from latebloom.studies.find import find_study, plan_of
    from latebloom.studies.mechanism import MATCHED

    study = find_study("mechanism")
    assert "small" in study.scales
    for scale in study.scales:
        plan = plan_of(study, scale)
        assert min(plan.seeds) == 5_000
        names = ["joint", "dat"]
        if scale == "paper":  # its settings are those that the study `paper` chose
            names.append(MATCHED)
        else:
            assert min(plan.tuning[0].seeds) == 1_000
        assert {(arm.task, arm.name) for arm in plan.arms} == {
            (task, name) for task in ("composite", "modular_sum") for name in names
        }
        for arm in plan.arms:
            assert all(0 < choice.training.probe_every <= 100 for choice in (arm.config, *arm.choices))
            assert (arm.config.delay is None) == (arm.name == "joint")
        assert plan.probed
    assert len(plan_of(study, "paper").seeds) >= 20


def test_the_example_of_the_page_works(capsys):
    page = (Path(__file__).parents[2] / "docs" / "probes.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert "'entropy'" in capsys.readouterr().out
    load_probes()
    for name, probe in Probe.members.items():
        assert f"\n### {name}\n" in page
        for column in probe.columns:
            assert column.about
        for chart in (probe.chart, *probe.more):
            assert "`" not in chart.title + chart.note  # the report shows them as they are
    for column in GradientInterference.columns[4:]:
        assert f"`{column.name}`" in page


def test_probes_are_listed_and_keep_their_contract(capsys):
    main(["list"])
    listed = capsys.readouterr().out
    for name in NAMES:
        assert name in listed
        assert not [finding for finding in check_components(name) if finding.outcome == "fails"]


def test_runs_of_one_study_are_probed_into_its_folder(tmp_path, monkeypatch):
    """There its report finds them; runs of several studies, or one run, are probed into the folder of the first."""
    for study in ("one", "two"):
        (tmp_path / study / "dat").mkdir(parents=True)
        (tmp_path / study / "study.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    first, second, other = (Path(name) for name in ("one/dat/seed-0", "one/dat/seed-1", "two/dat/seed-0"))
    assert default_place([first, second]) == Path("one")
    assert default_place([first]) == default_place([first, other]) == first
