"""Scores: each against its formula, a token at a time in plain Python; sharpness, tiles, windows, stacks, precision."""

from math import exp, log, log1p, tanh

import entmax as entmax_package
import pytest
import torch
from torch.func import functional_call, vmap

from latebloom.errors import ConfigError
from latebloom.layers.attention import (
    Alibi,
    ASEntmax,
    Entmax,
    Forgetting,
    Learned,
    LogN,
    NoPositions,
    Randomised,
    Rotary,
    Scores,
    SelfAttention,
    Sigmoid,
    Softmax,
    SSMax,
    StickBreaking,
    TopK,
    Visibility,
    tiles,
)
from latebloom.layers.attention.alibi import slopes_of
from latebloom.layers.attention.entmax import entmax, threshold_by_newton, threshold_by_sorting

B, H, T, D = 2, 2, 9, 8
SCORES = {
    "softmax": Softmax(),
    "log_n": LogN(),
    "log_n at a length": LogN(reference_length=5),
    "log_n at inference": LogN(reference_length=5, only_at_inference=True),
    "ssmax": SSMax(bias=True),
    "entmax": Entmax(),
    "asentmax": ASEntmax(),
    "sigmoid": Sigmoid(),
    "stick_breaking": StickBreaking(),
    "forgetting": Forgetting(bias=1.0),
    "top_k": TopK(k=3),
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def build(scores: Scores, positions=None, training=False, **settings) -> SelfAttention:
    torch.manual_seed(0)
    attention = SelfAttention(D, H, positions=positions or NoPositions(), scores=scores, **settings).double()
    for parameter in attention.scores.parameters():
        torch.nn.init.normal_(parameter)  # so that no part of the formula is zero
    return attention.train(training)


def softmax(z: list[float]) -> list[float]:
    total = sum(exp(value) for value in z)
    return [exp(value) / total for value in z]


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z))


def by_formula(name: str, attention: SelfAttention, x: torch.Tensor, training: bool, window: int) -> torch.Tensor:
    """The weights by the formula of each score function, with loops over sequences, heads, queries and keys."""
    layer = attention.scores
    given = {key: value.detach() for key, value in layer.named_parameters()}
    q, k, _ = attention.queries_keys_values(x).detach().unflatten(-1, (3, H, D // H)).unbind(2)
    weights = torch.zeros(B, H, T, T, dtype=torch.double)
    for b, h, i in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)).tolist():
        keys = range(max(0, i + 1 - window), i + 1)
        n, token = len(keys), x[b, i]
        z = [float(q[b, i, h] @ k[b, j, h]) / (D // H) ** 0.5 for j in keys]
        scale = {"log_n": log1p(n), "log_n at a length": log1p(n) / log1p(5)}.get(name, 1.0)
        if name == "log_n at inference" and not training:
            scale = log(n + 5) / log(5)
        if name == "ssmax":
            scale = float(given["factor"][h]) * log(n) + float(given["bias"][h])
        if name == "asentmax":
            factor = log1p(exp(float(given["factor.weight"][h] @ token)))
            scale = 1 + factor * log1p(n) ** (2 * tanh(float(given["exponent.weight"][h] @ token)))
        z = [scale * value for value in z]
        if name in ("entmax", "asentmax"):
            row = entmax_package.entmax15(torch.tensor(z, dtype=torch.double), dim=-1).tolist()
        elif name == "sigmoid":
            row = [sigmoid(value - log(n)) for value in z]
        elif name == "stick_breaking":
            row, left = [0.0] * n, 1.0
            for place in reversed(range(n - 1)):
                row[place] = left * sigmoid(z[place])
                left *= 1 - sigmoid(z[place])
            row[-1] = left
        elif name == "forgetting":
            kept = [log(sigmoid(float(given["gate.weight"][h] @ x[b, j] + given["gate.bias"][h]))) for j in keys]
            row = softmax([value + sum(kept[place + 1 :]) for place, value in enumerate(z)])
        elif name == "top_k" and not training:
            least = sorted(z)[-min(3, n)]
            row = softmax([value if value >= least else -1e9 for value in z])
        else:
            row = softmax(z)
        weights[b, h, i, keys.start : keys.stop] = torch.tensor(row, dtype=torch.double)
    return weights


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", SCORES)
def test_the_weights_are_those_of_the_formula_and_attention_mixes_by_them(name, window):
    x = numbers(B, T, D)
    for training in (True, False):
        attention = build(SCORES[name], training=training, window=window)
        weights = attention.weights(x)
        torch.testing.assert_close(weights, by_formula(name, attention, x, training, window or T), rtol=1e-9, atol=1e-9)
        mixed = (weights @ attention.projected(x)[2]).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention(x), attention.output(mixed))


@pytest.mark.parametrize("positions", [NoPositions(), Rotary(), Alibi()], ids=lambda one: one.name)
@pytest.mark.parametrize("window", [None, 3, torch.tensor(3)], ids=["all", "window", "drawn window"])
@pytest.mark.parametrize("name", SCORES)
def test_tiles_without_gradients_and_stacks_compute_the_same(name, window, positions, monkeypatch):
    drawn = {"window": window} if isinstance(window, torch.Tensor) else {}
    models = [build(SCORES[name], positions, window=None if drawn else window) for _ in range(2)]
    for parameter in models[1].parameters():
        torch.nn.init.normal_(parameter)
    x = numbers(2, B, T, D)
    whole = torch.stack([model(part, **drawn) for model, part in zip(models, x, strict=True)])
    if window is not None:
        static = build(SCORES[name], positions, window=3)
        torch.testing.assert_close(whole[0], static(x[0]))
    parameters = {
        key: torch.stack([dict(model.named_parameters())[key].detach() for model in models])
        for key, _ in models[0].named_parameters()
    }
    together = vmap(lambda given, x: functional_call(models[0], given, (x,), drawn))
    torch.testing.assert_close(together(parameters, x), whole)
    monkeypatch.setitem(tiles.NUMBERS_AT_ONCE, "cpu", 2 * B * H * 14)  # 14 scores of a head at a time in the stack
    with torch.no_grad():
        parts = tiles.tiles(numbers(2 * B, H, T, D // H), Visibility())
        assert [tile.queries.stop for tile in parts] == [3, 5, 7, 8, 9]
        torch.testing.assert_close(together(parameters, x), whole)
        torch.testing.assert_close(models[0](x[0], **drawn), whole[0])


@pytest.mark.parametrize("positions", [Learned(context=T), Randomised(context=20), Randomised(encoding="rotary")])
@pytest.mark.parametrize("name", SCORES)
def test_the_other_positions_have_the_same_outputs_in_tiles_and_as_weights(name, positions, monkeypatch):
    attention, x = build(SCORES[name], positions), numbers(B, T, D)
    mixed = (attention.weights(x) @ attention.projected(x)[2]).transpose(1, 2).flatten(2)
    monkeypatch.setitem(tiles.NUMBERS_AT_ONCE, "cpu", 14 * B * H)
    with torch.no_grad():
        torch.testing.assert_close(attention(x), attention.output(mixed))


@pytest.mark.parametrize("window", [None, 64])
def test_a_long_sequence_without_gradients_never_has_a_large_tile(window):
    q = torch.empty(1, 4, 15_000, 1)
    with torch.inference_mode():
        parts = list(tiles.tiles(q, Visibility(window=window)))
    rows = [(tile.queries.start, tile.queries.stop) for tile in parts]
    assert [start for start, _ in rows] == [0, *(stop for _, stop in rows[:-1])]
    assert rows[-1][1] == 15_000
    sizes = []
    for tile in parts:
        assert tile.keys.stop == tile.queries.stop
        assert tile.keys.start == (0 if window is None else max(0, tile.queries.start + 1 - window))
        sizes.append(4 * (tile.queries.stop - tile.queries.start) * (tile.keys.stop - tile.keys.start))
    assert max(sizes) <= tiles.NUMBERS_AT_ONCE["cpu"]
    assert min(sizes[:-1]) > 0.9 * tiles.NUMBERS_AT_ONCE["cpu"]  # or there would be needlessly many


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_entmax_and_its_gradient_are_those_of_the_package_entmax(scale):
    z = (scale * numbers(40, 33)).requires_grad_()
    same = z.detach().clone().requires_grad_()
    upstream = numbers(40, 33, seed=1)
    ours, theirs = entmax(z), entmax_package.entmax15(same, dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ours.backward(upstream)
    theirs.backward(upstream)
    assert z.grad is not None
    torch.testing.assert_close(z.grad, same.grad, rtol=1e-9, atol=1e-9)


def test_the_thresholds_of_entmax_agree_on_scores_of_every_kind():
    many = torch.arange(1, 5001, dtype=torch.double)
    rows = [numbers(5000), 0.05 * numbers(5000), 20 * numbers(5000), -many / 5000, -0.2 * many.sqrt(), -1e-4 * many]
    rows.append(torch.cat([torch.full((10**k,), -2 * d) for k, d in enumerate((0, 0.5, 0.8, 0.95))]).double())
    for row in rows:
        z = ((row - row.max()) / 2).clamp(min=-1)
        torch.testing.assert_close(threshold_by_newton(z), threshold_by_sorting(z), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SCORES)
def test_float32_is_enough_for_ten_thousand_tokens(name):
    """The last rows of a long sequence, in float32 and in float64."""
    tokens, rows = 10_000, slice(9_995, 10_000)
    x = numbers(1, tokens, D)
    attention = build(SCORES[name])
    found = []
    with torch.no_grad():
        for dtype in (torch.double, torch.float32):
            module, given = attention.to(dtype), x.to(dtype)
            q, k, _ = module.projected(given)
            tile = tiles.Tile(rows, slice(0, tokens), Visibility().seen(rows.start, rows.stop, q))
            found.append(module.scores.weights(tiles.scores_of(q, k, tile, Visibility()), tile, given).double())
    assert found[1].isfinite().all()
    off = (found[1] - found[0]).abs().sum(dim=-1)
    assert float((off / found[0].sum(dim=-1)).max()) < 1e-4


def test_log_n_at_the_reference_length_is_plain_softmax():
    x = numbers(B, 5, D)
    scaled, plain = build(LogN(reference_length=5)).weights(x), build(Softmax()).weights(x)
    torch.testing.assert_close(scaled[..., 4, :], plain[..., 4, :])
    assert not torch.allclose(scaled[..., 2, :], plain[..., 2, :])


def test_top_k_keeps_k_tokens_and_entmax_drops_some():
    x = numbers(B, T, D)
    kept = (build(TopK(k=3)).weights(x) > 0).sum(dim=-1)
    assert kept.unique().tolist() == [1, 2, 3]
    sharp = build(Entmax())
    with torch.no_grad():
        sharp.queries_keys_values.weight *= 4
    weights = sharp.weights(x)
    assert (weights.tril() == 0).sum() > (weights.triu(1) == 0).sum() // 2
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.double))


def test_alibi_takes_the_slope_times_the_distance():
    x = numbers(B, T, D)
    attention = build(Softmax(), Alibi())
    q, k, _ = attention.projected(x)
    z = q @ k.mT / (D // H) ** 0.5
    for h, slope in enumerate((2**-4, 2**-8)):
        for i in range(T):
            row = (z[:, h, i, : i + 1] - slope * (i - torch.arange(i + 1))).softmax(-1)
            torch.testing.assert_close(attention.weights(x)[:, h, i, : i + 1], row)


def test_alibi_has_the_slopes_of_the_paper():
    assert slopes_of(8) == [2.0**-i for i in range(1, 9)]
    assert slopes_of(1) == [2.0**-8]
    assert slopes_of(3) == pytest.approx([2.0**-4, 2.0**-8, 2.0**-2])
    assert slopes_of(12) == pytest.approx([*slopes_of(8), *[2.0 ** -(i + 0.5) for i in range(4)]])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TopK(k=0), "k: 0 is not possible; it must be 1 or more"),
        (lambda: LogN(reference_length=1), "reference_length: 1 is not possible; it must be 2 or more, or null"),
        (lambda: LogN(only_at_inference=True), "only_at_inference: True is not possible; it must be false without a"),
        (lambda: SSMax(initial=0), "initial: 0.0 is not possible; it must be above 0"),
        (lambda: Scores.named("entmacks"), "scores: 'entmacks' is not known; did you mean 'entmax'"),
    ],
)
def test_settings_that_make_no_scores_are_refused(make, sentence):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
