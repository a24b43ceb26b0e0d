"""Families of components: registration by definition, lookup by name, and settings as data."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

from latebloom import RunConfig, hybrid
from latebloom.cli import main
from latebloom.components import Component, components_in, families, load_entry_points, origin_of
from latebloom.config import with_overrides
from latebloom.errors import ConfigError
from latebloom.fields import check_fields
from latebloom.layers.attention import LogN, Rotary
from latebloom.listing import all_families, first_line, settings_of
from latebloom.tasks import Task
from latebloom.validation import read_settings


class Fruit(Component):
    """Something to eat."""


@pytest.fixture
def apple():
    @dataclass(frozen=True, kw_only=True)
    class Apple(Fruit):
        """A round one."""

        name: Literal["apple"] = "apple"
        seeds: int = 5
        """How many seeds it has."""

    return Apple


@pytest.fixture
def pear():
    @dataclass(frozen=True, kw_only=True)
    class Pear(Fruit):
        name: Literal["pear"] = "pear"
        ripe: bool

    return Pear


@dataclass(frozen=True, kw_only=True)
class Basket:
    fruit: Fruit
    more: tuple[int, ...] = ()
    inner: Fruit | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_member_is_known_by_being_defined(apple):
    assert Fruit.find("apple") is apple
    assert Fruit.named("apple") == apple()
    assert Fruit.kind() == apple.kind() == "fruit"
    assert Fruit in families()


def test_an_unknown_name_lists_the_choices(apple, pear):
    with pytest.raises(
        ConfigError, match=r"^fruit: 'appel' is not known; did you mean 'apple'\? choices: apple, pear$"
    ):
        Fruit.find("appel")


def test_a_second_definition_elsewhere_names_both(apple):
    with pytest.raises(ConfigError, match=r"fruit: 'apple' is defined twice, as .*Apple in .* and as Other in orchard"):
        type("Other", (Fruit,), {"__module__": "orchard", "name": "apple"})
    assert Fruit.find("apple") is apple


def test_a_member_may_be_defined_again_where_it_was():
    for seeds in (1, 2):
        body = {"__module__": "orchard", "__annotations__": {"name": str, "seeds": int}, "name": "plum", "seeds": seeds}
        dataclass(frozen=True, kw_only=True)(type("Plum", (Fruit,), body))
    assert vars(Fruit.named("plum")) == {"name": "plum", "seeds": 2}


def test_a_member_that_is_no_dataclass_is_refused_in_words():
    type("Bare", (Fruit,), {"__module__": "orchard", "name": "bare"})
    with pytest.raises(
        ConfigError, match=r"Bare in orchard is no dataclass with a name; write @dataclass\(frozen=True"
    ):
        Fruit.named("bare")


def test_a_name_stands_for_the_member_with_its_defaults_in_python_and_in_data(apple):
    made = Basket(fruit=apple())
    assert Basket(fruit="apple") == made  # type: ignore[arg-type]
    for data in ("apple", {"name": "apple"}, {"name": "apple", "seeds": 5}):
        assert read_settings(Basket, {"fruit": data}) == made
    assert read_settings(Basket, {"fruit": "apple", "inner": "apple"}).inner == apple()


def test_a_name_without_the_settings_it_needs_says_which(pear):
    with pytest.raises(ConfigError, match="fruit: pear needs ripe"):
        Basket(fruit="pear")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"fruit\.ripe: this field is needed and was not given"):
        read_settings(Basket, {"fruit": {"name": "pear"}})


def test_settings_of_a_member_are_checked_without_a_line_of_its_own(apple):
    with pytest.raises(ConfigError, match="seeds: 'many' is not possible; it must be a whole number"):
        apple(seeds="many")


def test_components_are_found_at_any_depth(apple):
    basket = Basket(fruit=apple(), inner=apple(seeds=1))
    assert list(components_in(basket)) == [basket.fruit, basket.inner]
    kinds = [type(component).__name__ for component in components_in(hybrid(positions="rotary", scores="log_n"))]
    assert kinds == ["LSTM", "Rotary", "LogN"]
    assert origin_of(Rotary) is None
    assert origin_of(apple) == apple.__module__


def test_on_the_command_line_a_name_switches_the_member_in_any_order():
    config = with_overrides(RunConfig(), ["model.attention.positions.context=400", "model.attention.positions=learned"])
    assert config.model.attention.positions.max_tokens == 400
    config = with_overrides(config, ["model.attention.positions.name=rotary", "model.attention.scores=log_n"])
    assert (config.model.attention.positions, config.model.attention.scores) == (Rotary(), LogN())
    assert with_overrides(config, ["task=recall"]).task == Task.named("recall")
    kept = with_overrides(config, ["task.modulus=7", "task=composite"])
    assert getattr(kept.task, "modulus", None) == 7


def test_the_list_has_every_family_with_settings_defaults_and_their_lines():
    listed = {family.kind(): family.members for family in all_families()}
    assert list(listed)[:8] == ["task", "recurrence", "scores", "positions", "trigger", "study", "recipe", "tracker"]
    assert {"at_tokens", "when_plateau", "when"} <= set(listed["trigger"])
    assert list(settings_of(listed["positions"]["learned"])) == [("context=1024", "The largest number of tokens.")]
    for kind in list(listed)[:8]:
        for name, member in listed[kind].items():
            assert first_line(member), (kind, name)
            assert all(summary for _, summary in settings_of(member)), (kind, name)


def test_an_installed_plugin_that_cannot_be_imported_is_named(monkeypatch, capsys):
    broken = EntryPoint("mine", "no_such_module", "latebloom")
    monkeypatch.setattr("latebloom.components.entry_points", lambda group: [broken])
    load_entry_points.cache_clear()
    reason = "plugin mine (no_such_module) cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"
    try:
        main(["list", "task", "--brief"])
        printed = capsys.readouterr()
        assert "composite" in printed.out
        assert printed.err == f"Note: {reason}.\n"
        with pytest.raises(ConfigError, match="'nosuch' is not known") as error:
            Task.named("nosuch")
        assert str(error.value).endswith(reason)
    finally:
        load_entry_points.cache_clear()
