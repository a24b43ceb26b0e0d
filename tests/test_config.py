"""Configurations: JSON there and back, overrides, and one sentence for every mistake."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from latebloom import (
    Composite,
    Delay,
    Evaluating,
    ModularSum,
    Phase,
    RunConfig,
    Training,
    at_step,
    at_tokens,
    hybrid,
    load_config,
    recipe,
    when,
    when_beyond,
    when_plateau,
)
from latebloom.config import with_overrides
from latebloom.delay.policy import HOLDS
from latebloom.errors import ConfigError
from latebloom.layers.attention import NoPositions, Rotary
from latebloom.recipes import Recipe
from latebloom.validation import read_settings

DELAYED = RunConfig(delay=Delay(until=when_beyond(latest=900), withhold=("recall",)))


@pytest.mark.parametrize("name", Recipe.members)
def test_every_recipe_survives_json(name, tmp_path):
    config = recipe(name)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    again = load_config(tmp_path / "config.json")
    assert again == config
    assert again.hash == config.hash


def test_the_hash_changes_with_every_setting_and_with_nothing_else():
    hashes = {DELAYED.hash}
    for change in ("seed=1", "training.steps=9000", "task.modulus=7", "model.attention.look_back=true", "delay=null"):
        hashes.add(with_overrides(DELAYED, [change]).hash)
    assert len(hashes) == 6
    assert replace(DELAYED, evaluation=Evaluating(multiples=(1, 2))).hash == (
        replace(DELAYED, evaluation=Evaluating(multiples=(1.0, 2.0))).hash
    )


def test_the_hash_is_the_same_in_another_process():
    script = "from latebloom import recipe; print(recipe('demo-dat').hash)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == recipe("demo-dat").hash


def test_overrides_change_what_they_name():
    config = with_overrides(
        DELAYED,
        ["training.steps=2000", "model.attention.positions=rotary", "delay.hold=freeze", "training.betas=[0.8,0.9]"],
    )
    assert config.training.steps == 2000
    assert config.model.attention.positions == Rotary()
    assert config.delay is not None
    assert config.delay.hold == "freeze"
    assert config.training.betas == (0.8, 0.9)
    assert config.task == DELAYED.task


def test_another_task_or_trigger_starts_from_its_own_defaults():
    config = with_overrides(DELAYED, ["delay.withhold=[]", "task.modulus=7", "task.name=modular_sum"])
    assert config.task == ModularSum(modulus=7)
    config = with_overrides(DELAYED, ["delay.until.name=at_step", "delay.until.step=5"])
    assert config.delay is not None
    assert config.delay.until == at_step(5)
    assert with_overrides(DELAYED, ["delay=none"]).delay is None


@pytest.mark.parametrize("hold", HOLDS)
def test_every_way_to_hold_attention_back_can_be_set(hold):
    more = {"ramp": ["delay.ramp_steps=5"], "freeze": ["model.attention.zero_output=false"]}.get(hold, [])
    config = with_overrides(recipe("demo-dat"), [f"delay.hold={hold}", *more])
    assert config.delay is not None
    assert config.delay.hold == hold


def test_a_single_answer_is_withheld_by_its_name_also_where_there_was_no_delay(tmp_path):
    changes = ["delay.until.name=at_step", "delay.until.step=900", "delay.withhold=recall"]
    delayed = with_overrides(recipe("demo-joint"), changes)
    assert delayed == recipe("demo-dat")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**delayed.to_json(), "delay": {**delayed.to_json()["delay"], "withhold": "recall"}}))
    assert load_config(file) == delayed


def test_none_is_a_word_where_a_field_knows_it():
    rotary = with_overrides(DELAYED, ["model.attention.positions=rotary"])
    assert with_overrides(rotary, ["model.attention.positions=none"]).model.attention.positions == NoPositions()


def test_a_delay_of_nothing_is_refused():
    nothing = ["delay.hold=none", "delay.withhold=[]", "training.restart=false"]
    same = ["training.full.learning_rate=6e-3"]
    with pytest.raises(
        ConfigError, match=r"delay\.hold: none, with nothing withheld and one schedule, is joint training"
    ):
        with_overrides(recipe("demo-dat"), [*nothing, *same])
    with_overrides(recipe("demo-dat"), nothing)  # another rate after the switch is a difference


MISTAKES = {
    "training.setps=3": "training.setps: there is no such field (value 3); did you mean steps? choices: length, steps",
    "task.bla=3": "task.bla: there is no such field (value 3); choices: name, keys, key_tokens, values, order",
    "delay.until.bla=3": "delay.until.bla: there is no such field (value 3); choices: name, latest",
    "model.attention.head=2": "model.attention.head: there is no such field (value 2); did you mean heads?",
    "bla.x=3": 'bla: there is no such field (value {"x": 3}); choices: task, model, delay',
    "training.steps=abc": 'training.steps: "abc" is not possible; it must be a whole number',
    "training.steps=1.5": "training.steps: 1.5 is not possible; it must be a whole number",
    "training.full.warmup=true": "training.full.warmup: true is not possible; it must be a whole number",
    "training.full.schedule=linear": "training.full.schedule: 'linear' is not known; choices: cosine, constant",
    "training.betas=[0.9]": "training.betas: [0.9] is not possible; it must be a list of 2, each a finite number",
    "model=3": "model: 3 is not possible; it is a section, set as model.FIELD=VALUE: layout, width",
    "delay=bypass": 'delay: "bypass" is not possible; it is a section, set as delay.FIELD=VALUE: until, hold',
    "delay.until=at_fraction": "delay.until.fraction: this field is needed and was not given; write for example "
    "delay.until.fraction=0.5",
    "delay.until=500": "delay.until: 500 is not possible; write for example delay.until.name=at_step "
    "delay.until.step=500; choices: at_step, at_fraction, when_beyond",
    "delay.until.fraction=0.5": "delay.until.fraction: there is no such field (value 0.5); it belongs to "
    "name=at_fraction; choices: name, latest",
    "delay.until.name=at_tokens": "delay.until.name: 'at_tokens' cannot be in a configuration; choices: at_step",
    "task=recal": "task.name: 'recal' is not known; did you mean 'recall'? choices: composite, conditional_mqar",
    "task=7": "task: 7 is not possible; write for example task.name=composite; choices: composite, conditional_mqar",
    "training.=5": "'training.=5' is not a change; write field=value, such as training.steps=100",
    "model.attention.heads=3": "model.attention.heads: 3 does not divide width 128; choices: 1, 2, 4, 8",
    "model.layout=rx": "model.layout: 'rx', character 2: 'x' is none of r (recurrence), a (attention), m (MLP)",
    "model.layout=rm": "delay: a model of layout 'rm' has no attention to hold back; set delay=null",
    "model.recurrence=gruu": "model.recurrence.name: 'gruu' is not known; did you mean 'gru'? choices: ",
    "training.length=1": "training.length: 1 is not possible; it must be 2 or more",
    "training.length=600": "training.length: 600 needs task.keys of 300 or more; this task has 256",
    "task.name=foo": "task.name: 'foo' is not known; choices: composite, conditional_mqar",
    "task.order=zig": "task.order: 'zig' is not known; choices: digits-first, pairs-first",
    "task.keys=5": "training.length: 25 needs task.keys of 12 or more; this task has 5, enough for a length of 11",
    "delay.hold=foo": "delay.hold: 'foo' is not known; choices: bypass, freeze, ramp, none",
    "delay.hold=ramp": "delay.ramp_steps: 0 is not possible; it must be 1 or more with hold ramp",
    "delay.until.latest=15000": "delay.until: the switch at step 15000 is not before the last step 15000; choose",
    "delay.until.name=at_step": "delay.until.step: this field is needed and was not given",
    "delay.until.multiple=30": "delay.until.multiple: 750 needs task.keys of 375 or more",
    'delay.withhold=["x"]': "delay.withhold: 'x' is not known; choices: sum, recall, or [] to withhold nothing",
    'delay.withhold=["sum","recall"]': "delay.withhold: sum, recall are all the answers of composite",
    "evaluation.multiples=[]": "evaluation.multiples: () is not possible; it must be at least one number",
    "evaluation.multiples=[40]": "evaluation.multiples: 1000 needs task.keys of 500 or more",
    "seed=-1": "seed: -1 is not possible; it must be from 0 to 2^63 - 1",
    "seed.x=1": "seed.x: seed is 0, which has no fields",
    "training.full.learning_rate=Infinity": "training.full.learning_rate: Infinity is not possible; it must be a",
    "evaluation.multiples=[Infinity]": "evaluation.multiples: [Infinity] is not possible; it must be a list",
    "delay.until={}": "delay.until.name: this field is needed and was not given; write for example "
    "delay.until.name=at_step delay.until.step=500; choices: at_step, at_fraction, when_beyond",
    "steps": "'steps' is not a change; write field=value, such as training.steps=100",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_sentence_with_field_value_and_choices(override):
    with pytest.raises(ConfigError) as caught:
        with_overrides(DELAYED, [override])
    assert str(caught.value).startswith(MISTAKES[override])
    assert "\n" not in str(caught.value)


def test_two_mistakes_are_two_sentences():
    with pytest.raises(ConfigError) as caught:
        read_settings(RunConfig, {"sed": 1, "training": {"stesp": 2}})
    assert len(str(caught.value).splitlines()) == 2


def test_when_beyond_needs_state_to_watch():
    config = RunConfig(task=ModularSum(), delay=Delay(until=when_beyond(latest=900)))
    with pytest.raises(ConfigError, match=r"delay.until: when_beyond watches state tracking, and recall has none"):
        with_overrides(config, ["task.name=recall"])


def test_freezing_an_attention_that_says_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"delay.hold: freeze is the same as bypass"):
        with_overrides(recipe("demo-dat"), ["delay.hold=freeze"])


def test_names_and_numbers_in_a_row_need_no_brackets():
    for nothing in ("[]", "", "none"):
        bare = with_overrides(DELAYED, [f"delay.withhold={nothing}"])
        assert bare.delay == Delay(until=when_beyond(latest=900))
        assert with_overrides(bare, ["delay.withhold=recall"]).delay == DELAYED.delay
    config = with_overrides(DELAYED, ["evaluation.multiples=1,2.5", "training.betas=0.8,0.9"])
    assert (config.evaluation.multiples, config.training.betas) == ((1, 2.5), (0.8, 0.9))
    assert with_overrides(DELAYED, ["evaluation.multiples=2"]).evaluation.multiples == (2,)


@pytest.mark.parametrize("until", [at_tokens(5, latest=9), when_plateau(latest=9), when(lambda moment: True, latest=9)])
def test_a_trigger_that_a_run_would_never_tell_anything_is_refused(until):
    with pytest.raises(ConfigError, match=r"delay.until: \w+ needs your own training loop; choices: at_step"):
        RunConfig(delay=Delay(until=until))


def test_a_ramp_must_be_done_by_the_last_step():
    with pytest.raises(ConfigError, match=r"delay.ramp_steps: 200 after a switch at step 900 .* must be 100 or less"):
        with_overrides(DELAYED, ["training.steps=1000", "delay.hold=ramp", "delay.ramp_steps=200"])


MADE_IN_PYTHON = {
    "order: 'pairs_first' is not known; did you mean 'pairs-first'?": lambda: Composite(order="pairs_first"),  # type: ignore[arg-type]
    "supervision: 'align' is not known; did you mean 'aligned'?": lambda: ModularSum(supervision="align"),  # type: ignore[arg-type]
    "schedule: 'linear' is not known; choices: cosine, constant": lambda: Phase(schedule="linear"),  # type: ignore[arg-type]
    "weigh: 'answer' is not known; did you mean 'answers'?": lambda: Training(weigh="answer"),  # type: ignore[arg-type]
    "positions: 'rope' is not known; choices: alibi, learned, none, rotary": lambda: hybrid(positions="rope"),
    "width: '64' is not possible; it must be a whole number": lambda: hybrid(width="64"),
    "steps: 1.5 is not possible; it must be a whole number": lambda: Training(steps=1.5),  # type: ignore[arg-type]
    "keys: True is not possible; it must be a whole number": lambda: Composite(keys=True),
    "look_back: 1 is not possible; it must be true or false": lambda: hybrid(look_back=1),
    "learning_rate: inf is not possible; it must be a finite number": lambda: Phase(learning_rate=float("inf")),
    "until: 5 is not possible; it must be a Trigger": lambda: Delay(until=5),  # type: ignore[arg-type]
    "delay: AtStep(name='at_step', step=5) is not possible; it must be a Delay or None": lambda: RunConfig(
        delay=at_step(5)  # type: ignore[arg-type]
    ),
    "hold: 'skip' is not known; choices: bypass, freeze, ramp, none": lambda: Delay(until=at_step(5), hold="skip"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("sentence", MADE_IN_PYTHON)
def test_settings_made_in_python_are_checked_too(sentence):
    with pytest.raises(ConfigError) as caught:
        MADE_IN_PYTHON[sentence]()
    assert str(caught.value).startswith(sentence)


def test_lists_are_as_good_as_tuples_in_python():
    assert Delay(until=at_step(5), withhold=["recall"]) == Delay(until=at_step(5), withhold=("recall",))  # type: ignore[arg-type]
    assert Delay(until=at_step(5), withhold="recall").withhold == ("recall",)  # type: ignore[arg-type]
    assert Evaluating(multiples=[1, 2]).multiples == (1, 2)  # type: ignore[arg-type]


def test_learned_positions_must_cover_what_is_watched_while_training():
    config = RunConfig(evaluation=Evaluating(multiples=(1, 2)))
    with pytest.raises(
        ConfigError, match=r"model.attention.positions: learned covers 90 tokens, and the tests have 115"
    ):
        with_overrides(config, ["model.attention.positions=learned", "model.attention.positions.context=90"])


def test_learned_positions_must_cover_the_tests():
    with pytest.raises(
        ConfigError, match=r"model.attention.positions: learned covers 256 tokens, and the tests have 303"
    ):
        with_overrides(RunConfig(), ["model.attention.positions=learned", "model.attention.positions.context=256"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON (line 1"),
        ("[]", "config: [] is not possible"),
        ('{"task": {}}', "task.name: this field is needed"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, sentence):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.json")
    assert sentence in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        load_config(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"is a folder; give a file, such as .*config\.json"):
        load_config(tmp_path)
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "b.json")


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match=r"recipe: 'demo-dta' is not known; did you mean 'demo-dat'\?"):
        recipe("demo-dta")


def test_a_component_that_another_change_made_a_number_is_one_error():
    with pytest.raises(ConfigError, match=r"model.recurrence: recurrence is 3, which has no fields"):
        with_overrides(RunConfig(), ["model.recurrence=3", "model.recurrence=lstm"])
