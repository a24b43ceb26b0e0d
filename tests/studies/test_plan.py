"""What a study may be, and where it is found."""

from dataclasses import replace

import pytest

from latebloom.errors import ConfigError
from latebloom.results.settings import comparable
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.plan import Arm, Plan

FILE = """
from dataclasses import replace
from latebloom import recipe
from latebloom.studies.plan import Arm, Plan, study

@study("mine")
def mine(scale):
    '''Whether a longer delay helps.'''
    return Plan([Arm("joint", recipe("demo-joint")), Arm("dat", recipe("demo-dat"))], seeds=range(3))
"""


@pytest.mark.parametrize("name", ["paper", "timing", "holding", "capability"])
def test_the_named_studies_are_whole_at_every_scale(name):
    study = find_study(name)
    for scale in study.scales:
        plan = plan_of(study, scale)
        assert len(plan.arms) >= 7
        for arm in plan.arms:  # every tested length can be made: a configuration refuses one that cannot
            assert arm.config.test_lengths[-1] >= 3 * arm.config.training.length


def test_the_paper_tunes_every_arm_of_a_task_on_one_grid():
    study = find_study("paper")
    for scale in study.scales:
        plan = plan_of(study, scale)
        for task in {arm.task for arm in plan.arms}:
            arms = {arm.name: arm for arm in plan.arms if arm.task == task}
            late = {"joint (asked late)"} if task == "composite" else set()  # what is asked late takes two answers
            assert arms.keys() == {"lstm", "transformer", "joint", "dat"} | late
            rates = {name: {choice.training.full.learning_rate for choice in arm.choices} for name, arm in arms.items()}
            assert len(set(map(frozenset, rates.values()))) == 1
            sizes = {name: len(set(arm.choices)) for name, arm in arms.items()}
            # An LSTM has no attention scores to choose.
            assert 2 * sizes.pop("lstm") == sizes["dat"]
            assert len(set(sizes.values())) == 1
    assert len(plan_of(find_study("paper"), "paper").seeds) >= 10


def test_holding_says_of_every_arm_what_it_differs_from_and_in_one_part_alone():
    plan = plan_of(find_study("holding"), "paper")
    configs = {arm.name: arm.config for arm in plan.arms}
    for arm in plan.arms:
        assert arm.others or arm.name in ("dat", "staged")
        for other in arm.others:
            mine, theirs = comparable([configs[arm.name], configs[other]])
            differing = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
            if ("delay" in mine) != ("delay" in theirs):  # no delay at all is one change
                differing = {name for name in differing if not name.startswith("delay")} | {"delay"}
            # A delay brings a second warm-up and decay, which this arm of joint training has too.
            expected = {"delay", "training.full.cycles"} if other == "joint (restarted)" else None
            if arm.name == "ramp":
                expected = {"delay.hold", "delay.ramp_steps"}
            assert differing == expected if expected else len(differing) == 1, (arm.name, other, differing)


def test_a_file_of_ones_own_is_run_like_a_named_study(tmp_path):
    file = tmp_path / "study_file.py"
    file.write_text(FILE)
    study = find_study(str(file))
    assert study.name == "mine"
    assert [arm.name for arm in plan_of(study, "tiny").arms] == ["joint", "dat"]
    file.write_text(FILE + FILE.replace("mine", "yours"))
    with pytest.raises(ConfigError, match=r"has mine, yours; choose one, such as .*study_file.py:mine"):
        find_study(str(file))
    assert find_study(f"{file}:yours").name == "yours"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "defines no study"),
        ("x = 1\ny = 1 / 0", "line 2: ZeroDivisionError"),
        ("def broken(:", "line 1: SyntaxError: invalid syntax"),
        (FILE.replace("Plan([", "list(["), "study mine: TypeError"),
        (FILE.replace("Plan([", "list(["), "(study_file.py, line "),
        (FILE.replace("return Plan(", "return ("), "SyntaxError"),
        (FILE.replace('Arm("dat"', 'Arm("joint"'), "two arms of a study are called joint in composite"),
        (FILE.replace("seeds=range(3)", "seeds=[1, 1]"), "a seed occurs twice"),
        (FILE.replace('-dat")', "-dat\"), against='jont'"), "arm dat: against: 'jont' is not known"),
        (
            FILE.replace('-dat")', "-dat\"), against=('joint', 'dat')"),
            "arm dat: against: an arm cannot be compared with itself",
        ),
        (FILE.replace('-dat")', "-dat\"), against='joint', seeds=(7, 8)"), "it shares no seed with joint"),
        (FILE.replace('-dat")', '-dat"), against=None'), "arm dat: against: None is neither the name of an arm nor"),
        (FILE.replace('-dat")', "-dat\"), against=('joint', 'joint')"), "compared with joint already"),
        (
            FILE.replace('-joint")', "-joint\"), against='dat'").replace('-dat")', "-dat\"), against='joint'"),
            "arm dat: against: it is compared with joint already",
        ),
        (
            FILE.replace('-dat")', "-dat\"), group='other', against='joint'"),
            "there is no joint, nor any other arm, on other",
        ),
        (FILE.replace('recipe("demo-dat")', 'recipe("demo-dta")'), "'demo-dta' is not known"),
        (FILE.replace('recipe("demo-dat")', 'recipe("demo-dta")'), "(study_file.py, line "),
        (
            FILE.replace('recipe("demo-dat")', "replace(recipe('demo-dat'), trainng=1)"),
            "study mine: RunConfig: 'trainng' is not known; did you mean 'training'? choices: task, ",
        ),
        (FILE.replace("seeds=range(3)", "seeds=3"), "seeds: 3 is not possible; it must be a list of whole numbers,"),
        (
            FILE.replace("seeds=range(3)", "seeds='012'"),
            "seeds: '012' is not possible; it must be a list of whole numbers,",
        ),
        (FILE.replace('-dat")', '-dat"), seeds=5'), "arm dat: seeds: 5 is not possible"),
        (f"def helper():\n    return 1 / 0\n\n{FILE.replace('return', 'helper(); return')}", "(study_file.py, line 2)"),
        (FILE.replace("seeds=range(3)", "sedes=range(3)"), "Plan: 'sedes' is not known; did you mean 'seeds'?"),
        (
            f"{FILE.replace('return', 'import latebloom as lb; lb.Phase(warmpu=1); return')}",
            "Phase: 'warmpu' is not known; did you mean 'warmup'?",
        ),
        (  # a class of the user's own that is called as one of ours
            f"from dataclasses import dataclass\n@dataclass\nclass Phase:\n    mine: int\nPhase(mien=1)\n{FILE}",
            "line 5: TypeError: Phase.__init__() got an unexpected keyword argument 'mien'",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_with_its_place(tmp_path, text, said):
    file = tmp_path / "study_file.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan_of(find_study(str(file)), "tiny")
    assert said in str(caught.value)


def test_a_mistake_is_found_where_it_is_also_in_a_file_that_is_named_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text("x = 1\ny = 1 / 0")
    with pytest.raises(ConfigError, match=r"study: own.py, line 2: ZeroDivisionError"):
        find_study("own.py")
    (tmp_path / "torn.py").write_text("x = 1\ndef broken(:")
    with pytest.raises(ConfigError, match=r"study: torn.py, line 2: SyntaxError: invalid syntax$"):
        find_study("torn.py")
    (tmp_path / "own.py").write_text("x = 1\n\nimport torn")
    with pytest.raises(ConfigError, match=r"study: own.py, line 3: SyntaxError: invalid syntax \(torn.py, line 2\)"):
        find_study("own.py")
    (tmp_path / "theirs.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Phase:\n    mine: int\n"
    )
    (tmp_path / "own.py").write_text("import latebloom\nimport theirs\ntheirs.Phase(mien=1)")
    with pytest.raises(ConfigError, match=r"own.py, line 3: TypeError: Phase"):
        find_study("own.py")


def test_a_scale_that_a_study_does_not_have_is_answered_with_those_that_it_has():
    with pytest.raises(ConfigError, match=r"^study timing: there is no scale small; choices: tiny, paper, large$"):
        plan_of(find_study("timing"), "small")


def test_unknown_names_are_answered_with_the_choices(tmp_path):
    with pytest.raises(ConfigError, match=r"'papr' is not known; did you mean 'paper'"):
        find_study("papr")
    with pytest.raises(ConfigError, match="there is no file"):
        find_study(str(tmp_path / "none.py"))


def test_choices_are_made_on_seeds_that_are_not_reported(tiny):
    arm = Arm("dat", tiny, (tiny, replace(tiny, delay=None)))
    with pytest.raises(ConfigError, match="choices need tuning_seeds"):
        Plan([arm], range(3))
    with pytest.raises(ConfigError, match="use seeds that the study does not report"):
        Plan([arm], range(3), tuning_seeds=[2, 3])
    with pytest.raises(ConfigError, match="second_round: tuning must use seeds that the study does not report"):
        Plan([arm], range(3), tuning_seeds=[9], second_round=[2])
    with pytest.raises(ConfigError, match="second_round: its seeds must differ from tuning_seeds"):
        Plan([arm], range(3), tuning_seeds=[9], second_round=[9, 10])
    with pytest.raises(ConfigError, match="second_round: it needs a first round"):
        Plan([replace(arm, choices=())], range(3), second_round=[10])
    with pytest.raises(ConfigError, match="finalists"):
        Plan([arm], range(3), tuning_seeds=[9], second_round=[10], finalists=0)


def test_the_pairs_that_are_compared_are_those_named_in_a_group_or_all_of_it(tiny):
    def arms(group, *against):
        return [Arm(f"{group} {i}", tiny, group=group, against=others) for i, others in enumerate(against)]

    assert Plan(arms("a", (), (), (), ()), seeds=range(5)).shared_seeds == [5] * 6
    named = arms("b", (), "b 0", "b 0", ("b 0", "b 1"))
    assert Plan(named, seeds=range(5)).shared_seeds == [5] * 4
    assert Plan([*arms("a", (), (), ()), *named], seeds=range(5)).shared_seeds == [5] * (3 + 4)
    longer = replace(tiny, training=replace(tiny.training, length=4))
    apart = [*arms("a", (), ()), Arm("long", longer, group="a")]
    assert Plan(apart, seeds=range(5)).shared_seeds == [5]  # arms of another training length have a chart of their own
    with pytest.raises(ConfigError, match="it is trained up to length 4 and a 0 up to 5"):
        Plan([*apart[:2], replace(apart[2], against="a 0")], seeds=range(5))


def test_an_arm_that_is_alone_cannot_be_held_against_itself_either(tiny):
    with pytest.raises(ConfigError, match="arm dat: against: an arm cannot be compared with itself"):
        Plan([Arm("dat", tiny, against="dat")], seeds=[0])


def test_an_arm_can_have_seeds_of_its_own(tiny):
    few, others = Arm("few", tiny, seeds=range(2)), Arm("others", tiny)
    plan = Plan([few, others], range(5))
    assert [list(plan.seeds_of(arm)) for arm in plan.arms] == [[0, 1], [0, 1, 2, 3, 4]]
    assert plan.run_count == 7
    with pytest.raises(ConfigError, match="arm few: seeds: a seed occurs twice"):
        Plan([Arm("few", tiny, seeds=(1, 1)), others], range(5))
    chosen = Arm("few", tiny, (tiny,), seeds=(9,))
    with pytest.raises(ConfigError, match="use seeds that the study does not report"):
        Plan([chosen], range(5), tuning_seeds=(9,))
