"""The nonlinear and diagonal recurrences compute what their references say, quickly or token by token."""

from itertools import combinations, product

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from latebloom.errors import ConfigError
from latebloom.layers.gru import GRU, GRULayer
from latebloom.layers.gru.operation import Weights, gru, gru_loop
from latebloom.layers.m2rnn import M2RNN
from latebloom.layers.m2rnn.operation import PIECE, m2rnn, m2rnn_loop
from latebloom.layers.min_gru import MinGRU
from latebloom.layers.min_gru.operation import scan, scan_loop
from latebloom.layers.slstm import SLSTM
from latebloom.layers.slstm.operation import State, first_state, slstm, slstm_loop

OWN = [GRU(), SLSTM(heads=2), M2RNN(heads=2, key_size=3), MinGRU()]


def check(fast, slow, inputs):
    """Outputs and gradients agree to 1e-10 in float64, and to 1e-5 in float32."""
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    expected = slow(*exact)
    slopes = [torch.randn_like(output) for output in expected]
    expected = [*expected, *torch.autograd.grad(expected, exact, slopes)]
    for dtype, bound in ((torch.double, 1e-10), (torch.float, 1e-5)):
        given = [tensor.to(dtype).detach().requires_grad_() for tensor in inputs]
        found = fast(*given)
        found = [*found, *torch.autograd.grad(found, given, [slope.to(dtype) for slope in slopes])]
        for one, other in zip(found, expected, strict=True):
            assert float((one - other).detach().norm()) <= bound * float(other.detach().norm())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize(("batch", "tokens", "width"), [(1, 1, 4), (3, 9, 8)])
def test_the_gru_computes_what_its_loop_computes(batch, tokens, width, noisy):
    shapes = [(3 * width, width), (3 * width, width), (3 * width,), (3 * width,)]
    inputs = [torch.randn(batch, tokens, width), *(torch.randn(shape) for shape in shapes), torch.randn(batch, width)]
    noise = torch.randn(batch, tokens, width).double() if noisy else None

    def call(function):
        def called(x, *rest):
            return function(x, Weights(*rest[:4]), rest[4], None if noise is None else noise.to(x.dtype))

        return called

    check(call(gru), call(gru_loop), inputs)


def test_the_gru_is_torchs_and_noise_is_added_to_its_hidden_state():
    layer, x = GRULayer(8).double(), torch.randn(3, 7, 8).double()
    expected, last = layer.cell(x)
    found, state = layer(x)
    torch.testing.assert_close((found, state), (expected, last[0]))
    noise, hidden = torch.randn(3, 7, 8).double(), torch.zeros(1, 3, 8).double()
    for t in range(7):
        hidden = layer.cell(x[:, t : t + 1], hidden)[1] + noise[:, t]
    torch.testing.assert_close(layer(x, noise=noise)[1], hidden[0])


def slstm_as_published(gates, recurrent, noise):
    """The equations of arXiv 2405.04517 without a stabilizer, unit by unit in one head of full recurrent weights."""
    width = gates.shape[-1] // 4
    cell = normalizer = hidden = torch.zeros(len(gates), width).double()
    outputs = []
    for t in range(gates.shape[1]):
        raw = gates[:, t] + hidden @ recurrent
        i, f, z, o = (raw[:, n * width : (n + 1) * width] for n in range(4))
        cell = torch.sigmoid(f) * cell + torch.exp(i) * torch.tanh(z)
        normalizer = torch.sigmoid(f) * normalizer + torch.exp(i)
        ratio = cell / normalizer + noise[:, t]
        cell = ratio * normalizer
        hidden = torch.sigmoid(o) * ratio
        outputs.append(hidden)
    return torch.stack(outputs, dim=1)


def whole_matrix(recurrent):
    """One matrix (D, 4D) for the weights (H, E, 4E) of heads that do not see each other."""
    size = recurrent.shape[1]
    return torch.cat([torch.block_diag(*recurrent[:, :, n * size : (n + 1) * size]) for n in range(4)], dim=1)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_slstm_computes_the_published_equations(heads):
    gates, recurrent = torch.randn(3, 6, 32).double(), torch.randn(heads, 8 // heads, 32 // heads).double()
    noise = 0.3 * torch.randn(3, 6, 8).double()
    for each in (noise, torch.zeros_like(noise)):
        expected = slstm_as_published(gates, whole_matrix(recurrent), each)
        for function in (slstm, slstm_loop):
            found, state = function(gates, recurrent, first_state(each), each)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(state.hidden, expected[:, -1])


@pytest.mark.parametrize("noisy", [False, True])
def test_the_slstm_computes_what_its_loop_computes(noisy):
    noise = 0.3 * torch.randn(3, 9, 8) if noisy else None

    def call(function):
        def called(gates, recurrent, hidden, cell, growth):
            state = State(hidden, cell, growth.exp(), torch.zeros_like(cell))
            outputs, after = function(gates, recurrent, state, None if noise is None else noise.to(gates.dtype))
            return outputs, after.cell / after.normalizer  # the maximum cancels in this

        return called

    state = [torch.randn(3, 8) for _ in range(3)]
    check(call(slstm), call(slstm_loop), [torch.randn(3, 9, 32), torch.randn(2, 4, 16), *state])


@pytest.mark.parametrize("size", [1e3, -1e3])
def test_the_slstm_does_not_overflow(size):
    gates = torch.full((1, 50, 4 * 4), size).requires_grad_()
    outputs, state = slstm(gates, torch.randn(1, 4, 16), first_state(torch.zeros(1, 50, 4)))
    (slope,) = torch.autograd.grad(outputs.sum(), gates)
    assert all(part.isfinite().all() for part in (outputs, slope, *state))
    assert outputs.abs().max() <= 1


def m2rnn_as_published(query, key, value, forget, weight, noise):
    """arXiv 2603.14360 for one sequence and one head: H = f H + (1 - f) tanh(H W + k v^T), y = q^T H."""
    state, outputs = torch.zeros(key.shape[1], value.shape[1]).double(), []
    for q, k, v, f, e in zip(query, key, value, forget, noise, strict=True):
        state = f * state + (1 - f) * torch.tanh(state.matmul(weight) + torch.outer(k, v))
        state = state + torch.outer(k / k.norm(), e)
        outputs.append(q @ state)
    return torch.stack(outputs)


def m2rnn_inputs(batch, tokens, heads, key_size, value_size):
    shapes = [(key_size,), (key_size,), (value_size,), (), (value_size,)]
    *rest, forget, noise = (torch.randn(batch, tokens, heads, *shape) for shape in shapes)
    return [*rest, forget.sigmoid(), torch.randn(heads, value_size, value_size) / value_size**0.5], noise


def test_the_m2rnn_computes_the_published_equations():
    inputs, noise = m2rnn_inputs(2, 5, 3, 4, 6)
    query, key, value, forget, weight = (tensor.double() for tensor in inputs)
    parts = (query, key, value, forget)
    state = torch.zeros(2, 3, 4, 6).double()
    for each in (noise.double(), torch.zeros_like(noise).double()):
        found = [function(*parts, weight, state, each)[0] for function in (m2rnn, m2rnn_loop)]
        for b in range(2):
            for h in range(3):
                q, k, v, f, noise_of_head = (part[b, :, h] for part in (*parts, each))
                expected = m2rnn_as_published(q, k, v, f, weight[h], noise_of_head)
                torch.testing.assert_close([outputs[b, :, h] for outputs in found], [expected] * 2)


def test_fifty_units_of_an_m2rnn_that_see_each_other_track_swaps_of_five_points():
    """Unit (p, s) says that a point was at p before the swap s: there are five places and ten swaps. Each row of the
    state follows one point."""
    swaps, tokens, gain = list(combinations(range(5), 2)), 1_000, 20.0
    units = list(product(range(5), range(10)))
    after = [{a: b, b: a}.get(place, place) for place, s in units for a, b in [swaps[s]]]
    weight = torch.tensor([[gain / 2 * (end == place) for place, _ in units] for end in after])
    seen = torch.tensor([[gain * (5.0 + (s == token) - 1.5) for _, s in units] for token in range(10)])
    drawn = torch.randint(10, (tokens,), generator=torch.Generator().manual_seed(0))
    state = torch.tensor([[1.0 if u == after.index(point) else -1.0 for u in range(50)] for point in range(5)])
    query = torch.eye(5)[:, None, None].expand(5, tokens, 1, 5)
    key, value = torch.ones(5, tokens, 1, 5), seen[drawn][None, :, None].expand(5, tokens, 1, 50)
    forget, start = torch.zeros(5, tokens, 1), state.expand(5, 1, 5, 50)
    read, _ = m2rnn(query, key, value, forget, weight[None], start, None)
    found = torch.tensor(after)[read[:, :, 0].argmax(-1)]
    places, expected = list(range(5)), []
    for token in drawn.tolist():
        a, b = swaps[token]
        places = [{a: b, b: a}.get(place, place) for place in places]
        expected.append(places)
    assert torch.equal(found.T, torch.tensor(expected))


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("tokens", [1, PIECE + 5])
def test_the_m2rnn_computes_what_its_loop_computes(tokens, noisy):
    inputs, noise = m2rnn_inputs(2, tokens, 2, 5, 3)

    def call(function):
        return lambda *given: function(*given, noise.to(given[0].dtype) if noisy else None)

    check(call(m2rnn), call(m2rnn_loop), [*inputs, torch.randn(2, 2, 5, 3)])


@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
def test_the_scan_computes_what_its_loop_computes(tokens):
    inputs = torch.rand(3, tokens, 4), torch.randn(3, tokens, 4), torch.randn(3, 4)
    check(lambda *given: (scan(*given),), lambda *given: (scan_loop(*given),), inputs)


def test_the_min_gru_computes_the_published_log_space_form():
    """arXiv 2410.01201, appendix B: every state is a sum of positive terms, added up by their logarithms."""
    layer, x = MinGRU(update_bias=-1.0).build(8).double(), torch.randn(2, 12, 8).double()
    candidate, update = F.linear(x, layer.candidate_update.weight, layer.candidate_update.bias).split(8, dim=-1)
    log_candidate = torch.where(candidate >= 0, (candidate.relu() + 0.5).log(), -F.softplus(-candidate))
    decayed = -F.softplus(update).cumsum(dim=1)
    expected = (decayed + (log_candidate - F.softplus(-update) - decayed).logcumsumexp(dim=1)).exp()
    torch.testing.assert_close(layer(x)[0], expected)


def test_the_scan_is_exact_over_10_000_tokens_that_forget_everything_and_nothing():
    decay = torch.tensor([0.0, 1e-30, 0.5, 1.0]).repeat(1, 10_000, 1)
    added = torch.randn(1, 10_000, 4)
    found, exact = scan(decay, added, torch.ones(1, 4)), scan_loop(decay.double(), added.double(), torch.ones(1, 4))
    assert found.isfinite().all()
    assert float((found - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize("recurrence", OWN, ids=lambda one: one.name)
def test_in_pieces_and_in_a_stack_noise_has_the_effect_that_it_has_alone(recurrence):
    layers = [recurrence.build(8).double() for _ in range(3)]
    x, noise = torch.randn(2, 3, 2, 7, 8).double()
    weights = {
        name: torch.stack([layer.get_parameter(name) for layer in layers]) for name, _ in layers[0].named_parameters()
    }
    together = vmap(lambda w, x, noise: functional_call(layers[0], w, (x, None, noise)))(weights, x, noise)
    for n, layer in enumerate(layers):
        whole, _ = layer(x[n], noise=noise[n])
        first, state = layer(x[n, :, :4], noise=noise[n, :, :4])
        second, _ = layer(x[n, :, 4:], state, noise[n, :, 4:])
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
        torch.testing.assert_close(together[0][n], whole)


@pytest.mark.parametrize("recurrence", [SLSTM(heads=3), M2RNN(heads=3)])
def test_heads_that_do_not_divide_the_width_are_refused(recurrence):
    with pytest.raises(ConfigError, match="heads: 3 does not divide width 8; choices: 1, 2, 4, 8"):
        recurrence.check(8)


@pytest.mark.parametrize(
    ("settings", "said"), [({"rate_range": (2.0, 1.0)}, "rate_range: "), ({"step_range": (0.0, 1.0)}, "step_range: ")]
)
def test_ranges_that_are_none_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        M2RNN(**settings)


def test_first_values_are_as_set():
    torch.testing.assert_close(
        SLSTM(heads=2, forget_bias=(1.0, 4.0)).build(8).gates.bias.detach(),
        torch.tensor([0.0] * 8 + [1.0, 2.0, 3.0, 4.0] * 2 + [0.0] * 16),
    )
    layer = M2RNN(heads=2, rate_range=(2.0, 2.0), step_range=(0.1, 0.1), state_weight="identity").build(8)
    nn.init.zeros_(layer.projection.weight)
    step = F.softplus(layer.projection(torch.randn(8))[-2:])
    torch.testing.assert_close((step * layer.log_rate.exp()).detach(), torch.full((2,), 0.2))
    assert torch.equal(layer.weight[1].detach(), torch.eye(4))
    product = M2RNN(heads=2).build(8).weight[0].detach()
    torch.testing.assert_close(product @ product.T, torch.eye(4))
    torch.manual_seed(0)
    plain = GRULayer(4).cell.all_weights[0][2]  # the input's bias
    torch.manual_seed(0)
    shifted = GRULayer(4, 2.0).cell.all_weights[0][2]
    torch.testing.assert_close(shifted - plain, torch.tensor([0.0, 2.0, 0.0]).repeat_interleave(4))
