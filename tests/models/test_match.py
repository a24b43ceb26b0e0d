"""The width that matches the parameters of a reference, against a search over all widths."""

from dataclasses import replace

import pytest

from latebloom import RunConfig, SequenceModel, hybrid, lstm, match_parameters, transformer
from latebloom.config import config_from, with_overrides
from latebloom.errors import ConfigError
from latebloom.models.match import count_parameters, nearest_width
from latebloom.models.settings import Model


def count(settings, vocabulary: int) -> int:
    return sum(parameter.numel() for parameter in SequenceModel(settings, vocabulary).parameters())


@pytest.mark.parametrize("vocabulary", [11, 300])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(hybrid, {"heads": 2}), (transformer, {"heads": 3}), (lstm, {}), (hybrid, {"layout": "(ra)m rm", "heads": 1})],
)
def test_the_count_is_the_nearest_that_any_width_has(kind, settings, vocabulary):
    layout = settings.pop("layout", None)
    model = kind(width=36, blocks=2, **settings)
    model = model if layout is None else replace(model, layout=layout)
    wanted = count(lstm(width=10, blocks=2), vocabulary)
    distances = {}
    for width in range(1, 40):
        try:
            distances[width] = abs(count(replace(model, width=width), vocabulary) - wanted)
        except ConfigError:
            continue
    found = match_parameters(model, "lstm-10", vocabulary)
    assert distances[found.width] == min(distances.values())
    assert replace(found, width=36) == model


def test_a_model_matches_itself():
    assert match_parameters(lstm(width=8, blocks=1), "lstm-24", 50).width == 24


def test_a_configuration_has_the_width_in_place_of_the_field():
    asked = with_overrides(RunConfig(), ["model.match_parameters=lstm-16", "model.blocks=1"])
    width = match_parameters(hybrid(blocks=1), "lstm-16", RunConfig().task.vocabulary_size).width
    assert asked == with_overrides(RunConfig(), [f"model.width={width}", "model.blocks=1"])
    assert config_from(asked.to_json()).hash == asked.hash
    assert "match_parameters" not in asked.to_json()["model"]


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("lstn-64", "model.match_parameters: 'lstn' is not known; did you mean 'lstm'?"),
        ("lstm", "model.match_parameters: 'lstm' is not possible; it must be a recurrence and a width, such as"),
        ("lstm-0", "model.match_parameters: 'lstm-0' is not possible; it must be a recurrence and a width, such as"),
    ],
)
def test_a_reference_that_is_none_is_refused(reference, sentence):
    with pytest.raises(ConfigError) as caught:
        with_overrides(RunConfig(), [f"model.match_parameters={reference}"])
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    "model", [hybrid(width=16), Model(layout="rm rm am", blocks=6, width=16), lstm(width=24, blocks=3)]
)
def test_parameters_are_counted_without_building_the_whole_model(model):
    for vocabulary in (5, 40):
        assert count_parameters(model, vocabulary) == count(model, vocabulary)


def test_the_nearest_width_is_a_multiple_of_a_number():
    wanted, gated = count(hybrid(width=48, blocks=1), 40), hybrid(width=48, blocks=1, heads=1, gate_bias=-4)
    for multiple in (1, 16):
        widths = range(multiple, 100, multiple)
        best = min(widths, key=lambda width: abs(count(replace(gated, width=width), 40) - wanted))
        assert nearest_width(gated, wanted, 40, multiple).width == best
