"""Every fused kernel computes what its plain form computes in float64, forward and back, within float32's rounding."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.attention import operation as attention
from latebloom.layers.embedding import embedding
from latebloom.layers.gru import operation as gru_module
from latebloom.layers.gru.operation import Weights as GRUWeights
from latebloom.layers.gru.operation import fused_gru, gru_loop
from latebloom.layers.lstm import operation as lstm_module
from latebloom.layers.lstm.operation import Weights, fused_lstm, lstm_loop
from latebloom.layers.mlp import mlp as linear
from latebloom.layers.norm import norm
from latebloom.layers.precision import precision
from latebloom.layers.rows import Rows, gather_rows
from latebloom.layers.slstm import operation as slstm_module
from latebloom.layers.slstm.operation import fused_slstm

pytest.importorskip("triton")
from latebloom.layers.lstm import lstm_triton
from latebloom.layers.mlp import mlp_triton
from latebloom.layers.norm import norm_triton


def check(
    fused: Callable[..., tuple[Tensor, ...]],
    plain: Callable[..., tuple[Tensor, ...]],
    inputs: list[Tensor],
    least: float = 0.0,
    most: float = 2e-6,
):
    """Outputs and gradients agree in norm: to a few units of float32, unless told otherwise."""
    single = [tensor.clone().requires_grad_() for tensor in inputs]
    double = [tensor.double().requires_grad_() for tensor in inputs]
    outputs, expected = fused(*single), plain(*double)
    slopes = [torch.randn_like(output) for output in outputs]
    grads = torch.autograd.grad(outputs, single, slopes)
    expected_grads = torch.autograd.grad(expected, double, [slope.double() for slope in slopes])
    for got, wanted in zip((*outputs, *grads), (*expected, *expected_grads), strict=True):
        assert got.isfinite().all()
        error = float((got.detach() - wanted.detach()).norm() / wanted.detach().norm())
        assert least <= error < most, error


def rows_of_parameters(device: torch.device, models: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Parameters as the stack has them: views into one row a model, so that models stand apart in memory."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.randn(models, sum(sizes) + 3, device=device)[:, 3:]
    views = flat.split(sizes, dim=1)
    return [view.unflatten(1, shape) / max(1, shape[-1]) ** 0.5 for view, shape in zip(views, shapes, strict=True)]


# 24, 80: widths that are no power of two. 80 is wider than the recurrent weights that fit on the chip.
@pytest.mark.parametrize(
    ("models", "batch", "tokens", "width"), [(2, 5, 4, 16), (3, 33, 3, 24), (1, 17, 5, 64), (2, 34, 3, 80)]
)
@pytest.mark.parametrize("uses_state", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_fused_lstm(device, models, batch, tokens, width, uses_state, noisy):
    x = torch.randn(models, batch, tokens, width, device=device)
    weights = rows_of_parameters(device, models, (4 * width, width), (4 * width, width), (4 * width,), (4 * width,))
    state = [torch.randn(models, batch, width, device=device) for _ in range(2)]
    kept = 3 if uses_state else 1  # in training nobody asks for the state after the last token
    noise = 0.3 * torch.randn_like(x) if noisy else None

    def fused(x, *rest):
        return fused_lstm(x, Weights(*rest[:4]), *rest[4:], noise=noise)[:kept]

    def plain(x, *rest):
        exact = None if noise is None else noise.double()
        return lstm_loop(x, Weights(*rest[:4]), *rest[4:], noise=exact)[:kept]

    check(fused, plain, [x, *weights, *state])
    with torch.no_grad():  # nothing is kept for the way back, and the result is the same
        kept_nothing = fused_lstm(x, Weights(*weights), *state, noise=noise)
    tracked = fused_lstm(x.requires_grad_(), Weights(*weights), *state, noise=noise)
    assert all(torch.equal(a, b) for a, b in zip(kept_nothing, tracked, strict=True))


def test_the_fused_lstm_repeats_bit_for_bit_with_tiles_of_either_size(device, monkeypatch):
    x, slope = torch.randn(2, 2, 34, 5, 64, device=device)
    weights = rows_of_parameters(device, 2, (256, 64), (256, 64), (256,), (256,))
    state = [torch.randn(2, 34, 64, device=device) for _ in range(2)]
    found = []
    for programs in (1, 1, 1000):
        monkeypatch.setattr(lstm_triton, "PROGRAMS", programs)
        inputs = [tensor.clone().requires_grad_() for tensor in (x, *state, *weights)]
        with precision("tf32"):
            outputs = fused_lstm(inputs[0], Weights(*inputs[3:]), *inputs[1:3])[0]
            found.append([outputs, *torch.autograd.grad(outputs, inputs, slope)])
    assert all(torch.equal(*pair) for pair in zip(found[0], found[1], strict=True))
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("models", "batch", "tokens", "width", "noisy"),
    [(2, 5, 4, 16, False), (3, 33, 3, 24, True), (1, 17, 1, 64, True), (2, 34, 3, 80, False), (1, 5, 4, 80, True)],
)
def test_the_fused_gru(device, models, batch, tokens, width, noisy):
    x = torch.randn(models, batch, tokens, width, device=device)
    weights = rows_of_parameters(device, models, (3 * width, width), (3 * width, width), (3 * width,), (3 * width,))
    state = torch.randn(models, batch, width, device=device)
    noise = 0.3 * torch.randn_like(x) if noisy else None

    def fused(x, *rest):
        return fused_gru(x, GRUWeights(*rest[:4]), rest[4], noise)

    def plain(x, *rest):
        return gru_loop(x, GRUWeights(*rest[:4]), rest[4], None if noise is None else noise.double())

    check(fused, plain, [x, *weights, state])
    with torch.no_grad():  # nothing is kept for the way back, and the result is the same
        kept_nothing = fused_gru(x, GRUWeights(*weights), state, noise)
    tracked = fused_gru(x.requires_grad_(), GRUWeights(*weights), state, noise)
    assert all(torch.equal(a, b) for a, b in zip(kept_nothing, tracked, strict=True))


@pytest.mark.parametrize(
    ("models", "batch", "tokens", "heads", "size", "noisy"),
    [(2, 5, 4, 2, 8, False), (2, 33, 3, 1, 24, True), (1, 17, 2, 4, 16, True)],
)
def test_the_fused_slstm(device, models, batch, tokens, heads, size, noisy):
    width = heads * size
    gates = torch.randn(models, batch, tokens, 4 * width, device=device)
    (recurrent,) = rows_of_parameters(device, models, (heads, size, 4 * size))
    state = [torch.randn(models, batch, width, device=device) for _ in range(4)]
    noise = 0.3 * torch.randn(models, batch, tokens, width, device=device) if noisy else None

    def fused(gates, recurrent, hidden, cell, growth, maximum):
        return fused_slstm(gates, recurrent, hidden, cell, growth.exp(), maximum, noise)[:4]

    def plain(gates, recurrent, hidden, cell, growth, maximum):
        exact = None if noise is None else noise.double()
        return slstm_module._stacked(gates, recurrent, hidden, cell, growth.exp(), maximum, exact)[:4]

    check(fused, plain, [gates, recurrent, *state])
    with torch.no_grad():  # nothing is kept for the way back, and the result is the same
        kept_nothing = fused_slstm(gates, recurrent, *state[:2], state[2].exp(), state[3], noise)
    tracked = fused_slstm(gates.requires_grad_(), recurrent, *state[:2], state[2].exp(), state[3], noise)
    assert all(torch.equal(a, b) for a, b in zip(kept_nothing, tracked, strict=True))
    zeros = torch.zeros_like(state[0])
    fresh = (zeros, zeros, zeros, torch.full_like(zeros, -torch.inf))  # before the first token
    check(
        lambda *inputs: fused_slstm(*inputs, *fresh, noise)[:1],
        lambda *inputs: slstm_module._stacked(
            *inputs, *(part.double() for part in fresh), None if noise is None else noise.double()
        )[:1],
        [gates.detach(), recurrent],
    )


def test_one_slstm_is_computed_as_a_stack_of_one(device, monkeypatch):
    gates, recurrent = torch.randn(3, 5, 64, device=device), torch.randn(2, 8, 32, device=device) / 4
    expected = slstm_module.slstm_loop(gates, recurrent, slstm_module.first_state(gates[..., :16]))
    monkeypatch.setattr(slstm_module, "uses_fused_kernel", lambda gates, head: True)
    found = slstm_module.slstm(gates, recurrent, slstm_module.first_state(gates[..., :16]))
    torch.testing.assert_close(found, expected)


# 3, 5, 24: sizes that are no power of two. 33 sequences are no multiple of a tile.
def test_no_two_gradients_of_the_gru_share_memory(device, monkeypatch):
    """One model with noise is computed as a stack of one."""
    monkeypatch.setattr(gru_module, "uses_fused_kernel", lambda x: True)
    x, hidden = torch.randn(4, 3, 16, device=device), torch.randn(4, 16, device=device)
    shapes = ((48, 16), (48, 16), (48,), (48,))
    weights = GRUWeights(*(torch.randn(shape, device=device).requires_grad_() for shape in shapes))
    noise = 0.1 * torch.randn_like(x)
    found = gru_module.gru(x, weights, hidden, noise)
    torch.testing.assert_close(found, gru_loop(x, weights, hidden, noise), rtol=1e-3, atol=1e-3)
    found[0].square().sum().backward()
    places = {weight.grad.untyped_storage().data_ptr() for weight in weights if weight.grad is not None}
    assert len(places) == len(weights)


def test_no_two_gradients_of_the_lstm_share_memory(device, monkeypatch):
    """Gradients are clipped in place, all of them at once: what two of them share would be scaled twice, or not."""
    monkeypatch.setattr(lstm_module, "uses_fused_kernel", lambda x: True)
    x, hidden, memory = torch.randn(4, 3, 16, device=device), *torch.zeros(2, 4, 16, device=device)
    shapes = ((64, 16), (64, 16), (64,), (64,))
    weights = Weights(*(torch.randn(shape, device=device).requires_grad_() for shape in shapes))
    noise = 0.1 * torch.randn_like(x)
    found = lstm_module.lstm(x, weights, hidden, memory, noise)
    torch.testing.assert_close(found, lstm_loop(x, weights, hidden, memory, noise), rtol=1e-3, atol=1e-3)
    found[0].square().sum().backward()
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    places = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(places) == len(weights)
    assert torch.equal(*gradients[2:])  # of the two biases


@pytest.mark.parametrize(("sequences", "heads", "tokens", "features"), [(2, 2, 7, 16), (3, 1, 33, 8), (1, 2, 128, 24)])
def test_fused_attention_over_strided_queries_keys_and_values(device, sequences, heads, tokens, features):
    together = torch.randn(sequences, tokens, 3, heads, features, device=device)
    q, k, v = (together[:, :, i].transpose(1, 2) for i in range(3))
    check(
        lambda *qkv: (attention._Fused.apply(*qkv),),
        lambda *qkv: (F.scaled_dot_product_attention(*qkv, is_causal=True),),
        [q, k, v],
    )


@pytest.mark.parametrize(("sequences", "heads", "tokens", "features"), [(2, 2, 7, 16), (3, 1, 33, 8)])
@pytest.mark.parametrize("has_extra", [False, True])
def test_fused_attention_over_one_projection(device, sequences, heads, tokens, features, has_extra):
    width = heads * features
    inputs = [torch.randn(sequences, tokens, size, device=device) for size in (3 * width, width)[: 1 + has_extra]]

    def padded(together, extra=None):
        return together, extra, heads

    check(
        lambda *parts: (attention._FusedJoint.apply(*padded(*parts)),),
        lambda *parts: (attention._joint_library(*padded(*parts)),),
        inputs,
    )


@pytest.mark.parametrize("before", [0, 1])
def test_torch_is_told_to_add_in_a_fixed_order_for_the_library_s_attention_alone(monkeypatch, before):
    seen: list[int] = []

    class EfficientAttention(torch.autograd.Function):
        """What the library's own node is called on a GPU; it looks at what torch is told."""

        @staticmethod
        def forward(ctx, q, k, v):
            return q * 1

        @staticmethod
        def backward(ctx, *grads):
            seen.append(torch.get_deterministic_debug_mode())
            return grads[0], None, None

    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, is_causal: EfficientAttention.apply(q, k, v))
    q = torch.ones(1, 1, 2, 4, requires_grad=True)
    mixed = attention.causal_attention(EfficientAttention.apply(q, q, q), q, q)
    torch.set_deterministic_debug_mode(before)
    try:
        for _ in range(2):
            mixed.sum().backward(retain_graph=True)
        after = torch.get_deterministic_debug_mode()
    finally:
        torch.set_deterministic_debug_mode(0)
    assert seen == [2, before, 2, before]
    assert after == before


@pytest.mark.parametrize(("models", "batch", "tokens", "width"), [(2, 3, 7, 16), (3, 5, 9, 24), (2, 6, 50, 64)])
def test_the_fused_norm(device, models, batch, tokens, width):
    x = torch.randn(models, batch, tokens, width, device=device) * 3 + 1

    def plain(x, weight, bias):
        each = [F.layer_norm(x[i], (width,), weight[i], bias[i]) for i in range(models)]
        return (torch.stack(each),)

    weights = rows_of_parameters(device, models, (width,), (width,))
    check(lambda *inputs: (norm._Fused.apply(*inputs)[1],), plain, [x, *weights])


@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_the_fused_norm_with_one_tile_or_several_in_a_program(device, monkeypatch, programs):
    monkeypatch.setattr(norm_triton, "PROGRAMS", programs)
    x = torch.randn(2, 300, 24, device=device)
    check(
        lambda *inputs: (norm._Fused.apply(*inputs)[1],),
        lambda x, weight, bias: (F.layer_norm(x, (24,)) * weight[:, None] + bias[:, None],),
        [x, *rows_of_parameters(device, 2, (24,), (24,))],
    )


def test_the_fused_fork_adds_what_comes_back_by_the_other_way(device):
    x = torch.randn(2, 6, 5, 24, device=device)

    def plain(x, weight, bias):
        return x * 1, torch.stack([F.layer_norm(x[i], (24,), weight[i], bias[i]) for i in range(2)])

    check(norm._Fused.apply, plain, [x, *rows_of_parameters(device, 2, (24,), (24,))])


# 300 lookups of 3 rows: every one many times, as where sequences are long. 70 rows and width 80 take more than a tile.
@pytest.mark.parametrize(
    ("models", "lookups", "rows", "width"), [(2, (3, 7), 5, 16), (3, (300,), 3, 24), (1, (4, 65), 70, 80)]
)
def test_looked_up_rows(device, models, lookups, rows, width):
    numbers = torch.randint(rows, (models, *lookups), device=device)
    (table,) = rows_of_parameters(device, models, (rows, width))

    def plain(table):
        return (torch.stack([F.embedding(numbers[i], table[i]) for i in range(models)]),)

    check(lambda table: (embedding._FixedOrder.apply(numbers, table),), plain, [table])
    assert torch.equal(embedding._FixedOrder.apply(numbers, table), plain(table)[0])


def test_looked_up_rows_by_numbers_and_with_slopes_that_lie_apart_in_memory(device):
    numbers = torch.randint(5, (7, 2), device=device, dtype=torch.int32).T.expand(3, 2, 7)  # all models share them
    table = torch.randn(3, 5, 16, device=device).requires_grad_()
    slope = torch.randn(3, 7, 2, 16, device=device).transpose(1, 2)
    (found,) = torch.autograd.grad(embedding._FixedOrder.apply(numbers, table), table, slope)
    expected = torch.zeros_like(table)
    for model, row, column in product(range(3), range(2), range(7)):
        expected[model, numbers[model, row, column]] += slope[model, row, column]
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize(("models", "batch", "tokens", "asked", "width"), [(2, 3, 7, 4, 16), (1, 5, 30, 9, 80)])
def test_rows_at_positions(device, models, batch, tokens, asked, width):
    positions = torch.randint(tokens, (models, batch, asked), device=device)
    positions[..., 1] = positions[..., 0]  # a row that is asked for twice
    x = torch.randn(models, batch, tokens, width, device=device)
    check(lambda x: (Rows.apply(positions, x),), lambda x: (gather_rows(positions, x),), [x])


@pytest.mark.parametrize(("models", "rows", "inputs", "outputs"), [(2, 70, 16, 48), (1, 65, 100, 130), (3, 3, 64, 192)])
def test_the_fused_linear_map(device, models, rows, inputs, outputs):
    x = torch.randn(models, rows, inputs, device=device)
    weights = rows_of_parameters(device, models, (outputs, inputs), (outputs,))

    def plain(x, weight, bias):
        return (torch.stack([F.linear(x[i], weight[i], bias[i]) for i in range(models)]),)

    check(lambda *inputs: (linear._FusedLinear.apply(*inputs),), plain, [x, *weights])


# With few programs each takes several tiles of rows: 300 rows are 5 tiles, in 1, 2 or 5 parts.
@pytest.mark.parametrize("programs", [2, 4, 132])
@pytest.mark.parametrize(
    ("models", "rows", "width", "hidden"), [(2, 70, 16, 64), (2, 300, 24, 128), (1, 65, 64, 256), (3, 280, 20, 64)]
)
def test_the_fused_mlp(device, monkeypatch, models, rows, width, hidden, programs):
    monkeypatch.setattr(mlp_triton, "PROGRAMS", programs)
    x = torch.randn(models, rows, width, device=device)
    weights = rows_of_parameters(device, models, (hidden, width), (hidden,), (width, hidden), (width,))

    def plain(x, up, up_bias, down, down_bias):
        each = [F.linear(F.gelu(F.linear(x[i], up[i], up_bias[i])), down[i], down_bias[i]) for i in range(models)]
        return (torch.stack(each),)

    check(lambda *inputs: (linear._FusedMLP.apply(*inputs),), plain, [x, *weights])


def test_the_gelu_of_the_fused_mlp_is_exact_at_every_size(device):
    values = torch.linspace(-14, 14, 64, device=device)[None].requires_grad_()
    x, up, down = (
        torch.zeros(1, 1, 64, device=device),
        torch.zeros(1, 64, 64, device=device),
        torch.eye(64, device=device),
    )
    y = linear._FusedMLP.apply(x, up, values, down[None], torch.zeros(1, 64, device=device))
    (slope,) = torch.autograd.grad(y.sum(), values)
    double = values.detach().double().requires_grad_()
    expected = F.gelu(double)
    (expected_slope,) = torch.autograd.grad(expected.sum(), double)
    torch.testing.assert_close(y[0].double(), expected, rtol=2e-7, atol=2e-7)
    torch.testing.assert_close(slope.double(), expected_slope, rtol=2e-7, atol=2e-7)


def test_a_model_of_the_fused_mlp_is_the_same_in_a_stack_and_alone(device):
    """If its rows are divided into as many parts, as here."""
    inputs = [torch.randn(3, 70, 16, device=device), *rows_of_parameters(device, 3, (64, 16), (64,), (16, 64), (16,))]

    def outputs(*tensors):
        tracked = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        y = linear._FusedMLP.apply(*tracked)
        return y, *torch.autograd.grad(y.square().sum(), tracked)

    alone = outputs(*(tensor[1:2] for tensor in inputs))
    assert all(torch.equal(a[1:2], b) for a, b in zip(outputs(*inputs), alone, strict=True))


IN_BF16 = {"least": 1e-4, "most": 2.5e-2}
"""Factors rounded to 7 bits: more than float32's rounding, so that it is seen to be done, and no more than that. Of the
LSTM's gradients the least exact one is off by 0.014 on average over 60 draws, by 0.020 at most; with a bit less of each
factor it would be twice as much."""


@pytest.mark.parametrize("width", [16, 80])
def test_the_fused_lstm_in_bf16(device, width):
    inputs = [
        torch.randn(2, 9, 5, width, device=device),
        *rows_of_parameters(device, 2, (4 * width, width), (4 * width, width), (4 * width,), (4 * width,)),
        *(torch.randn(2, 9, width, device=device) for _ in range(2)),
    ]
    with precision("bf16"):
        check(
            lambda x, *rest: fused_lstm(x, Weights(*rest[:4]), *rest[4:]),
            lambda x, *rest: lstm_loop(x, Weights(*rest[:4]), *rest[4:]),
            inputs,
            **IN_BF16,
        )


@pytest.mark.parametrize("width", [16, 80])
def test_the_fused_gru_in_bf16(device, width):
    inputs = [
        torch.randn(2, 9, 5, width, device=device),
        *rows_of_parameters(device, 2, (3 * width, width), (3 * width, width), (3 * width,), (3 * width,)),
        torch.randn(2, 9, width, device=device),
    ]
    with precision("bf16"):
        check(
            lambda x, *rest: fused_gru(x, GRUWeights(*rest[:4]), rest[4]),
            lambda x, *rest: gru_loop(x, GRUWeights(*rest[:4]), rest[4]),
            inputs,
            **IN_BF16,
        )


def test_the_other_kernels_in_bf16(device):
    x = torch.randn(2, 33, 16, device=device)
    weights = rows_of_parameters(device, 2, (64, 16), (64,), (16, 64), (16,))
    q, k, v = (torch.randn(3, 2, 7, 16, device=device) for _ in range(3))

    def plain_mlp(x, up, up_bias, down, down_bias):
        each = [F.linear(F.gelu(F.linear(x[i], up[i], up_bias[i])), down[i], down_bias[i]) for i in range(2)]
        return (torch.stack(each),)

    with precision("bf16"):
        check(  # all but the last bias, whose gradient is a sum without a product
            lambda *inputs: (linear._FusedMLP.apply(*inputs, weights[-1]),),
            lambda x, up, up_bias, down: plain_mlp(x, up, up_bias, down, weights[-1].double()),
            [x, *weights[:-1]],
            **IN_BF16,
        )
        check(
            lambda *qkv: (attention._Fused.apply(*qkv),),
            lambda *qkv: (F.scaled_dot_product_attention(*qkv, is_causal=True),),
            [q, k, v],
            **IN_BF16,
        )
        fused = linear._FusedLinear.apply(x, weights[0], weights[1])
    plain = torch.baddbmm(weights[1][:, None].double(), x.double(), weights[0].mT.double())
    assert 1e-4 < float((fused - plain).norm() / plain.norm()) < 1e-2
