"""The committed table of models has a row for every model, is right, and would show what is wrong."""

import json
from typing import Any

import pytest
import survey
from survey import RESULTS, Subject, row_of, subjects
from torch import Tensor, nn

from latebloom.delay.gate import Gate, GatedForward
from latebloom.delay.hooks import DelayedAttention

MODELS = survey.foreign.MODELS
ROWS = {row["name"]: row for row in json.loads(RESULTS.read_text())["rows"]}


def test_every_model_that_is_found_has_a_row():
    assert list(ROWS) == list(subjects())


def test_every_class_of_the_foreign_models_is_in_a_model():
    models = MODELS | survey.foreign_forms.FORMS
    used = {type(module) for make in models.values() for module in make().modules()}
    bases = {base for kind in used for base in kind.__mro__}
    for file in (survey.foreign, survey.foreign_forms):
        classes = {one for one in vars(file).values() if isinstance(one, type) and one.__module__ == file.__name__}
        assert {one for one in classes if issubclass(one, nn.Module)} <= bases


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "cells" in row])
def test_no_cell_is_wrong(name):
    cells = ROWS[name]["cells"]
    assert list(cells) == subjects()[name].columns
    for column, cell in cells.items():
        # The library fails without a delay too; or attention in the forward of a block runs, and is left out behind it.
        assert cell.startswith(("yes", "as without Latebloom")) or column == "not computed", (column, cell)


@pytest.mark.parametrize(
    "name",
    ["lfm2", "falcon_mamba", "torch's encoder layer", "attention that returns its weights first", "sigmoid attention"],
)
@pytest.mark.filterwarnings("ignore")
def test_rows_are_reproduced(name):
    assert row_of(subjects()[name]) == ROWS[name]


@pytest.mark.filterwarnings("ignore")
def test_a_cache_that_is_not_read_is_seen(monkeypatch):
    original: Any = GatedForward._original

    def forgetful(self: GatedForward, *positional: Any, past_key_values: Any = None, **named: Any) -> Any:
        return original(self, *positional, past_key_values=None, **named)

    family = subjects()["lfm2"]
    assert survey.generates_with_a_cache(family) == "yes"
    monkeypatch.setattr(GatedForward, "_original", forgetful)
    assert survey.generates_with_a_cache(family).startswith("no: after it logits differ by ")
    monkeypatch.undo()

    def build(seed: int) -> Any:
        model = family.make(seed)
        attention = model.get_submodule("model.layers.2.self_attn")
        attend = attention.forward
        attention.forward = lambda *args, past_key_values=None, **named: attend(*args, past_key_values=None, **named)
        return model

    says = survey.generates_with_a_cache(Subject("broken", build, True))
    assert says.startswith("as without Latebloom: logits differ by ")


def leaking(self: GatedForward, zeros: Tensor, arguments: Any) -> Tensor:
    return zeros + sum(parameter.sum() for module in self.held for parameter in module.parameters())


def unmoved(self: DelayedAttention, parameter: Tensor) -> None:
    parameter.grad = None


@pytest.mark.filterwarnings("ignore:latebloom. these weights were trained without attention")  # rightly so
@pytest.mark.parametrize(
    ("column", "owner", "method", "replacement", "says"),
    [
        ("bit-identical", GatedForward, "_tie", leaking, "no: the output depends on what is held back"),
        ("trains after", DelayedAttention, "_drop", unmoved, "no: blocks.1.body.c_attn.bias"),
        ("deep copy", Gate, "__deepcopy__", lambda self, memo: Gate(0.0), "no: it differs after the switch"),
        ("equal after remove()", GatedForward, "remove", lambda self: None, "no: a forward method is still replaced"),
    ],
)
def test_a_mistake_is_seen(monkeypatch, column, owner, method, replacement, says):
    subject = subjects()["a hand-written recurrence"]
    assert survey.CHECKS[column](subject) == "yes"
    monkeypatch.setattr(owner, method, replacement)
    assert survey.CHECKS[column](subject).startswith(says)
