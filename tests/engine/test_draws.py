"""What attention draws in training: positions and windows, as a pure function of seed and batch."""

from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from latebloom import SequenceModel, hybrid
from latebloom.engine.draws import attention_draws
from latebloom.engine.extension import extension_obstacle
from latebloom.errors import ConfigError
from latebloom.layers.attention import Randomised, RandomWindow
from latebloom.models.block import residual_parts
from latebloom.models.settings import Attention

STEPS = 200


PARTS = residual_parts(SequenceModel(hybrid(width=8, blocks=2, heads=2), 20), "attention")


def drawn(settings: Attention, seed: int | torch.Tensor, index: int, tokens: int = 7) -> dict[str, torch.Tensor]:
    with attention_draws(PARTS, settings, seed, torch.tensor(index), tokens, STEPS):
        assert PARTS[0].drawn is PARTS[1].drawn  # a token has one position in all layers
        found = dict(PARTS[0].drawn)
    assert all(part.drawn == {} for part in PARTS)
    return found


def test_positions_are_distinct_in_order_and_of_the_whole_range():
    settings = Attention(positions=Randomised(context=40))
    times = torch.stack([drawn(settings, 3, index)["times"] for index in range(STEPS)])
    assert (times.diff(dim=1) > 0).all()
    assert times.min() == 0
    assert times.max() == 39
    assert times.double().mean() == pytest.approx(19.5, abs=1)
    assert torch.equal(drawn(settings, 3, 5)["times"], times[5])
    assert not torch.equal(drawn(settings, 4, 5)["times"], times[5])
    assert drawn(settings, 3, 5, tokens=40)["times"].tolist() == list(range(40))


def test_windows_are_short_in_a_share_of_the_batches_and_full_at_the_end():
    settings = Attention(window=6, random_window=RandomWindow(tokens=2, probability=0.25, full_share=0.2))
    windows = [int(drawn(settings, 1, index)["window"]) for index in range(STEPS)]
    assert set(windows) == {2, 6}
    assert windows[160:] == [6] * 40
    assert windows[:160].count(2) / 160 == pytest.approx(0.25, abs=0.1)
    everything = replace(settings, window=None)
    assert [int(drawn(everything, 1, index)["window"]) for index in range(160)] == [
        2 if window == 2 else 7 for window in windows[:160]
    ]


def test_stacked_runs_draw_what_they_draw_alone():
    settings = Attention(positions=Randomised(context=40), random_window=RandomWindow(tokens=2))
    together = vmap(lambda seed: drawn(settings, seed, 9))(torch.arange(5))
    for seed in range(5):
        alone = drawn(settings, seed, 9)
        assert all(torch.equal(together[name][seed], value) for name, value in alone.items())


def test_attention_that_draws_nothing_is_given_nothing():
    assert drawn(Attention(), 1, 0) == {}


@pytest.mark.parametrize("encoding", ["learned", "rotary"])
def test_randomised_positions_encode_what_was_drawn_and_tests_spread_the_tokens(encoding):
    torch.manual_seed(0)
    model = SequenceModel(hybrid(width=8, blocks=1, heads=2, positions=Randomised(context=21, encoding=encoding)), 20)
    (part,) = residual_parts(model, "attention")
    attention, x = part.body.eval(), torch.randn(2, 7, 8)
    even = torch.tensor([1, 4, 7, 10, 13, 16, 19])
    torch.testing.assert_close(attention(x), attention(x, times=even))
    shifted = attention(x, times=even + 1)
    assert torch.allclose(attention(x), shifted, atol=1e-5) == (encoding == "rotary")  # it sees distances alone
    assert not torch.allclose(attention(x), attention(x, times=torch.arange(7)), atol=1e-5)
    with pytest.raises(ConfigError, match=r"positions.context: 21 randomised positions do not cover 22 tokens"):
        attention(torch.randn(1, 22, 8))
    attention.train()  # a training loop of another kind: torch's generator
    torch.manual_seed(1)
    first = attention(x)
    assert not torch.equal(first, attention(x))
    torch.manual_seed(1)
    assert torch.equal(first, attention(x))


def test_a_random_window_is_drawn_in_other_training_loops_too():
    torch.manual_seed(0)
    model = SequenceModel(hybrid(width=8, blocks=1, heads=2, random_window=RandomWindow(tokens=1)), 20)
    attention, x = residual_parts(model, "attention")[0].body, torch.randn(2, 7, 8)
    full = attention.eval()(x)
    found = [torch.allclose(attention.train()(x), full, atol=1e-6) for _ in range(20)]
    assert set(found) == {False, True}


def test_a_range_shorter_than_the_sequences_is_refused(tiny):
    def with_context(context: int):
        model = replace(tiny.model, attention=replace(tiny.model.attention, positions=Randomised(context=context)))
        return replace(tiny, model=model)

    tokens = {length: tiny.task.token_count(length) for length in (5, 15)}
    with pytest.raises(ConfigError, match=f"randomised covers 4 tokens, and training has {tokens[5]}; raise the limit"):
        with_context(4)
    with pytest.raises(ConfigError, match=f"covers {tokens[5]} tokens, and the tests have {tokens[15]}"):
        with_context(tokens[5])
    with_context(tokens[15])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"window": 0}, "window: 0 is not possible; it must be 1 or more, or null"),
        ({"window": 4, "random_window": RandomWindow(tokens=4)}, "random_window.tokens: 4 is not possible; it must be"),
        ({"positions": Randomised(encoding="rotary"), "width": 6}, "attention.positions: rotary rotates pairs"),
    ],
)
def test_settings_that_make_no_attention_are_refused(settings, sentence):
    with pytest.raises(ConfigError) as caught:
        hybrid(heads=2, **settings)
    assert str(caught.value).startswith(sentence)


def test_a_run_whose_windows_would_have_ended_elsewhere_is_not_extended(tiny):
    attention = replace(tiny.model.attention, random_window=RandomWindow(tokens=2, full_share=0.5))
    full = replace(tiny.training.full, schedule="constant")
    training = replace(tiny.training, full=full, delayed=full, steps=24)
    found = replace(tiny, model=replace(tiny.model, attention=attention), training=training)
    wanted = replace(found, training=replace(training, steps=40))
    assert extension_obstacle(found, wanted, 12, 12) == ""
    assert "the short windows end at step 20 instead of 12" in extension_obstacle(found, wanted, 13, 12)
