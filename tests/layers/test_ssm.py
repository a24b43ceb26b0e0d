"""State space models: chunks compute what the loops compute, and the layers what their references compute."""

from math import pi
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from latebloom.layers.ssm import Mamba2, Mamba3
from latebloom.layers.ssm.mamba3 import State, Terms, trapezoidal, trapezoidal_loop
from latebloom.layers.ssm.operation import ssm, ssm_loop
from latebloom.layers.ssm.rotate import rotate

B, H, N, P = 2, 3, 6, 5
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.double, 1e-10), (torch.float, 1e-5)], ids=["float64", "float32"]
)


def differences(found, expected) -> float:
    """Return the largest difference of the tensors, relative to their sizes or to 1e-6 if they are smaller."""
    pairs = zip(found, expected, strict=True)
    return max(((one - other).norm() / (other.norm() + 1e-6)).item() for one, other in pairs)


def gradients(results, inputs, slopes):
    return torch.autograd.grad(results, inputs, [slope.to(results[0].dtype) for slope in slopes])


@PRECISIONS
@pytest.mark.parametrize("tokens", [1, 25, 70])
@pytest.mark.parametrize("decays", ["both signs", "strong", "weak"])
def test_chunks_compute_what_the_loop_computes(decays, tokens, dtype, bound):
    torch.manual_seed(tokens)
    k, q = torch.randn(2, B, 1, tokens, N, dtype=dtype).requires_grad_()
    write, state = torch.randn(B, H, tokens, P, dtype=dtype), torch.randn(B, H, N, P, dtype=dtype)
    decay = torch.rand(B, H, tokens, dtype=dtype)
    decay = {"both signs": 2 * decay - 1, "strong": decay**50, "weak": 1 - 1e-4 * decay}[decays]
    inputs = [one.detach().requires_grad_() for one in (q, k, write, decay, state)]
    slopes = [torch.randn(B, H, tokens, P), torch.randn(B, H, N, P)]
    fast, slow = ssm(*inputs), ssm_loop(*inputs)
    assert differences(fast, slow) < bound
    assert differences(gradients(fast, inputs, slopes), gradients(slow, inputs, slopes)) < bound


def test_a_decay_of_zero_forgets_everything_and_has_the_gradient_of_the_loop():
    decay = torch.tensor([0.5, 0.0, -0.5]).requires_grad_()
    k, write = torch.ones(3, 1), torch.tensor([[1.0], [2.0], [4.0]])
    outputs, _ = ssm(k, k, write, decay, None)
    torch.testing.assert_close(outputs[:, 0], torch.tensor([1.0, 2.0, 3.0]))
    found, expected = (
        torch.autograd.grad(result.sum(), decay) for result in (outputs, ssm_loop(k, k, write, decay, None)[0])
    )
    torch.testing.assert_close(found, expected)


def test_a_negative_decay_tracks_parity():
    bits = torch.randint(2, (5000,), generator=torch.Generator().manual_seed(0))
    ones, nothing = torch.ones(5000, 1), torch.zeros(5000, 1)
    outputs, _ = ssm(ones, ones, nothing, 1.0 - 2.0 * bits, torch.ones(1, 1))
    assert torch.equal(outputs[:, 0] < 0, bits.cumsum(0) % 2 == 1)


def test_mamba2_is_that_of_transformers():
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    config = Mamba2Config(
        hidden_size=32, num_heads=4, head_dim=8, state_size=16, expand=1, n_groups=1, conv_kernel=4, chunk_size=64
    )
    theirs: Any = Mamba2Mixer(config, 0)
    ours = Mamba2().build(32)
    for parameter in (theirs.norm.weight, theirs.D, theirs.conv1d.bias):
        torch.nn.init.uniform_(parameter)
    ours.load_state_dict(
        {
            "inputs.weight": theirs.in_proj.weight,
            "convolution.weight": theirs.conv1d.weight[:, 0].T,
            "convolution.bias": theirs.conv1d.bias,
            "rate": theirs.A_log,
            "step": theirs.dt_bias,
            "skip": theirs.D,
            "norm": theirs.norm.weight,
            "outputs.weight": theirs.out_proj.weight,
        }
    )
    x = torch.randn(2, 100, 32)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-5, atol=1e-5)


def draw_terms(tokens: int, dtype: torch.dtype) -> tuple[Terms, State, torch.Tensor]:
    torch.manual_seed(tokens)
    step, share = 2 * torch.rand(2, B, H, tokens, dtype=dtype)
    terms = Terms(
        q=torch.randn(B, H, tokens, N, dtype=dtype),
        k=torch.randn(B, H, tokens, N, dtype=dtype),
        values=torch.randn(B, H, tokens, P, dtype=dtype),
        turn=pi * torch.randn(B, H, tokens, 2, dtype=dtype).tanh() * step[..., None],
        log_decay=-torch.rand(B, H, tokens, dtype=dtype) * step,
        earlier=(1 - share / 2) * step,
        own=share / 2 * step,
    )
    shapes = ((2,), (N, P), (N,), (P,))
    state = State(*(torch.rand(B, H, *shape, dtype=dtype) for shape in shapes))
    return terms, state, torch.randn(B, H, tokens, P, dtype=dtype)


@PRECISIONS
@pytest.mark.parametrize("tokens", [1, 25, 70])
@pytest.mark.parametrize("starts", [True, False])
def test_mamba3_in_chunks_is_its_loop(starts, tokens, dtype, bound):
    terms, state, noise = draw_terms(tokens, dtype)
    inputs = [part.requires_grad_() for part in (*terms, *(() if starts else state), noise)]
    fast, slow = (one(terms, None if starts else state, noise) for one in (trapezoidal, trapezoidal_loop))
    # Angles just above 0 and just below 2 pi are the same.
    turns = [torch.cat([last.angle.cos(), last.angle.sin()]) for last in (fast[1], slow[1])]
    assert differences([fast[0], turns[0], *fast[1][1:]], [slow[0], turns[1], *slow[1][1:]]) < bound
    results = [[one[0], one[1].memory, one[1].key] for one in (fast, slow)]
    slopes = [torch.randn(part.shape) for part in results[0]]
    found, expected = (
        torch.autograd.grad(one, inputs, [slope.to(dtype) for slope in slopes], materialize_grads=True)
        for one in results
    )
    assert differences(found, expected) < bound


@pytest.mark.parametrize("rotated", [0.5, 1.0])
def test_mamba3_computes_the_formula_of_its_paper(rotated):
    """With complex numbers: a pair of channels is one number, and a rotation is a product with exp(i theta)."""
    torch.manual_seed(0)
    settings = Mamba3(heads=2, key_size=8, rotated=rotated)
    layer, tokens, width = settings.build(6).double(), 9, 6
    torch.nn.init.normal_(layer.norms)
    torch.nn.init.normal_(layer.biases)
    x = torch.randn(1, tokens, width).double()
    z, v, b, c, step, rate, share, omega = layer.inputs(x)[0].split(layer.sizes, dim=-1)
    pairs, expected = settings.pairs, torch.zeros(tokens, 2, 3, dtype=torch.double)
    for head in range(2):
        theta = torch.zeros(4, dtype=torch.double)
        state, before = torch.zeros(4, 3, dtype=torch.cdouble), torch.zeros(4, 3, dtype=torch.cdouble)
        for t in range(tokens):
            dt = F.softplus(step[t, head] + layer.step[head])
            decay = torch.exp(-F.softplus(rate[t, head] + layer.rate[head]) * dt)
            theta[:pairs] += pi * omega[t].tanh() * dt
            query, key = (
                F.rms_norm(part[t], (8,), norm, 1e-5) + bias[head]
                for part, norm, bias in zip((c, b), layer.norms, layer.biases, strict=True)
            )
            query, key = (torch.view_as_complex(part.view(4, 2)) * torch.exp(1j * theta) for part in (query, key))
            value, weight = v[t].view(2, 3)[head], share[t, head].sigmoid()
            now = key[:, None] * value
            state = decay * state + (1 - weight) * dt * decay * before + weight * dt * now
            before = now
            y = (query.conj()[:, None] * state).real.sum(0) + layer.skip[head] * value
            expected[t, head] = y * F.silu(z[t].view(2, 3)[head])
    torch.testing.assert_close(layer(x)[0][0], expected.flatten(1) @ layer.outputs.weight.T)


def test_mamba3_starts_with_heads_that_keep_keys_and_heads_that_turn_them():
    """What a token stores is read under the same key until the state has turned away from it."""
    torch.manual_seed(0)
    settings = Mamba3(heads=64)
    layer = settings.build(64)
    steps = F.softplus(layer.step)
    least, most = settings.step_range
    assert least * 0.99 <= steps.min() < 0.01  # ten tokens turn the state by less than a third
    assert 0.5 < steps.max() <= most * 1.01  # a token can turn it by half a circle, as parity needs
    _, terms = layer._terms(torch.randn(8, 25, 64))
    angle = terms.turn.cumsum(2)
    kept = [F.cosine_similarity(rotate(terms.k, angle), terms.k, dim=-1)[:, head].mean() for head in steps.argsort()]
    assert min(kept[:16]) > 0.9
    assert max(kept[-4:]) < 0.9


def test_mamba3_counts_modulo_ten_for_ten_thousand_tokens():
    digits = torch.randint(10, (10_000,), generator=torch.Generator().manual_seed(0))
    terms, _, _ = draw_terms(1, torch.float)
    long = Terms(*(part[:1, :1].expand(1, 1, 10_000, *part.shape[3:]) for part in terms))
    turned = long._replace(turn=(2 * pi * digits / 10)[None, None, :, None])
    _, last = trapezoidal(turned, None, None)
    assert round(last.angle.item() * 10 / (2 * pi)) % 10 == digits.sum() % 10
    assert abs(last.angle.item() * 10 / (2 * pi) - round(last.angle.item() * 10 / (2 * pi))) < 0.01
