"""The delta rule: chunks compute what the loop computes, and the layers what their references compute."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.checks.check import check_component
from latebloom.errors import ConfigError
from latebloom.layers.delta import KDA, DeltaNet, DeltaProduct, GatedDeltaNet
from latebloom.layers.delta.operation import CHUNK, delta_rule, delta_rule_loop
from latebloom.layers.recurrence import Recurrence
from latebloom.layers.ssm import Mamba2, Mamba3
from latebloom.models.settings import Model

B, H, K, V = 2, 3, 8, 5
DECAYS = {"none": 0, "head": 1, "channel": K}
LAYERS = [DeltaNet(), GatedDeltaNet(), DeltaProduct(decay=True), KDA(), Mamba2(negative_eigenvalues=True), Mamba3()]


def draw(tokens: int, decay: str, dtype: torch.dtype, *, extreme: bool = False) -> list[Tensor | None]:
    """Return q, k, write, beta, log_decay and state; extreme: keys that repeat, beta near 2, decays of any size."""
    torch.manual_seed(tokens)
    k = torch.randn(B, H, 1 if extreme else tokens, K, dtype=dtype).expand(-1, -1, tokens, -1)
    log_decay = None
    if size := DECAYS[decay]:
        exponents = torch.empty(B, H, tokens, size, dtype=dtype).uniform_(-8, 4 if extreme else 0)
        log_decay = -(10**exponents)
    beta = 2 * torch.rand(B, H, tokens, dtype=dtype) ** (0.001 if extreme else 1.0)
    return [
        torch.randn(B, H, tokens, K, dtype=dtype),
        F.normalize(k, dim=-1),
        torch.randn(B, H, tokens, V, dtype=dtype),
        beta,
        log_decay,
        torch.randn(B, H, K, V, dtype=dtype),
    ]


def with_gradients(operation, arguments: list[Tensor | None], slopes: list[Tensor]) -> list[Tensor]:
    """Return the results of an operation, and the gradients of its arguments."""
    leaves = [None if one is None else one.clone().requires_grad_() for one in arguments]
    results = operation(*leaves)
    given = [leaf for leaf in leaves if leaf is not None]
    gradients = torch.autograd.grad(results, given, [slope.to(results[0].dtype) for slope in slopes])
    return [*(result.detach() for result in results), *gradients]


def differences(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of the tensors, relative to their sizes."""
    pairs = zip(found, expected, strict=True)
    return max(float((one - other).norm() / (other.norm() + 1e-30)) for one, other in pairs)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.double, 1e-10), (torch.float, 1e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("tokens", [1, 25, CHUNK + 6])
def test_chunks_compute_what_the_loop_computes(tokens, decay, extreme, dtype, bound):
    arguments = draw(tokens, decay, dtype, extreme=extreme)
    slopes = [torch.randn(B, H, tokens, V), torch.randn(B, H, K, V)]
    for erases in (True, False):
        for starts in (True, False):
            given = list(arguments)
            given[3] = given[3] if erases else None
            given[5] = None if starts else given[5]
            fast = with_gradients(delta_rule, given, slopes)
            assert differences(fast, with_gradients(delta_rule_loop, given, slopes)) < bound


def reference_step(state: list[list[float]], k, v, beta: float, decay) -> list[list[float]]:
    """S = (I - beta k k^T) diag(decay) S + beta k v^T for one head, written out in plain Python."""
    faded = [[decay[a] * state[a][b] for b in range(len(v))] for a in range(len(k))]
    stored = [sum(k[a] * faded[a][b] for a in range(len(k))) for b in range(len(v))]
    return [[faded[a][b] + k[a] * beta * (v[b] - stored[b]) for b in range(len(v))] for a in range(len(k))]


@pytest.mark.parametrize("settings", [DeltaNet(), GatedDeltaNet(), DeltaProduct(steps=3, decay=True), KDA()])
def test_a_layer_computes_the_formula_of_its_paper(settings, monkeypatch):
    """The recurrence within the layer, from the projections to the outputs before the norm, token by token."""
    from latebloom.layers import gated_norm as module

    seen = {}

    def spy(x: Tensor, weight: Tensor) -> Tensor:
        seen["y"] = x
        return x * weight

    monkeypatch.setattr(module, "rms_norm", spy)
    torch.manual_seed(0)
    width, tokens, heads, size = 8, 7, settings.heads, settings.key_size
    layer, x = settings.build(width).double(), torch.randn(1, tokens, width).double()
    layer(x)
    steps, values = settings.steps_per_token, width // heads
    mixed, beta, step, _ = layer.inputs(x)[0].split(layer.sizes, dim=-1)
    padded = F.pad(mixed, (0, 0, settings.kernel_size - 1, 0))
    shifted = [padded[i : i + tokens] * layer.convolution.weight[i] for i in range(settings.kernel_size)]
    mixed = F.silu(torch.stack(shifted).sum(0))
    q, k, v = mixed.split([heads * size, steps * heads * size, steps * width], dim=-1)
    for head in range(heads):
        state = [[0.0] * values for _ in range(size)]
        for t in range(tokens):
            query = F.normalize(q[t].view(heads, size)[head], dim=0) / size**0.5
            for n in range(steps):
                decay = [1.0] * size
                if settings.decays and n == 0:
                    gate = -layer.rate[head].exp() * F.softplus(step[t] + layer.step).view(heads, -1)[head]
                    decay = gate.exp().expand(size).tolist()
                key = F.normalize(k[t].view(steps, heads, size)[n, head], dim=0).tolist()
                value = v[t].view(steps, heads, values)[n, head].tolist()
                strength = 2 * beta[t].view(steps, heads)[n, head].sigmoid().item()
                state = reference_step(state, key, value, strength, decay)
            expected = query @ torch.tensor(state, dtype=torch.double)
            torch.testing.assert_close(seen["y"][0, t, head], expected, rtol=1e-4, atol=1e-5)  # norms add 1e-6


@pytest.mark.parametrize("negative", [True, False])
def test_gated_delta_net_is_that_of_olmo_hybrid(negative):
    from transformers import OlmoHybridConfig
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

    torch.manual_seed(0)
    config = OlmoHybridConfig(
        hidden_size=32,
        num_attention_heads=4,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=8,
        linear_allow_neg_eigval=negative,
    )
    theirs: Any = OlmoHybridGatedDeltaNet(config, 0)
    ours = GatedDeltaNet(negative_eigenvalues=negative).build(32)
    projections = (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.b_proj, theirs.a_proj, theirs.g_proj)
    torch.nn.init.uniform_(theirs.o_norm.weight)
    ours.load_state_dict(
        {
            "inputs.weight": torch.cat([projection.weight for projection in projections]),
            "convolution.weight": theirs.conv1d.weight[:, 0].T,
            "rate": theirs.A_log,
            "step": theirs.dt_bias,
            "norm": theirs.o_norm.weight,
            "outputs.weight": theirs.o_proj.weight,
        }
    )
    x = torch.randn(2, 100, 32)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-5, atol=1e-5)


def test_the_delta_rule_is_that_of_qwen3_next():
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

    drawn: list[Any] = draw(100, "head", torch.float)
    q, k, v, beta, log_decay, state = drawn
    ours = delta_rule(q * K**-0.5, k, beta[..., None] * v, beta, log_decay, state)
    by_token = [part.transpose(1, 2) for part in (q, k, v, log_decay[..., 0], beta)]
    for theirs in (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule):
        outputs, last = theirs(*by_token, initial_state=state, output_final_state=True)
        torch.testing.assert_close(ours, (outputs.transpose(1, 2), last), rtol=1e-5, atol=1e-5)


def test_two_reflections_a_token_count_modulo_any_number():
    """A product of two reflections is a rotation, so a state that starts on a circle counts on it."""
    modulus, tokens = 7, 300
    digits = torch.randint(modulus, (tokens,), generator=torch.Generator().manual_seed(0))
    halves = torch.pi * digits / modulus  # reflections whose axes differ by half of the angle
    k = torch.stack([torch.zeros(tokens), torch.ones(tokens), -halves.sin(), halves.cos()], dim=-1).view(-1, 2).double()
    start = torch.tensor([[1.0], [0.0]]).double()
    beta, nothing = torch.full((2 * tokens,), 2.0).double(), torch.zeros(2 * tokens, 1).double()
    axes = torch.eye(2).double()
    x, y = (delta_rule(axis.expand(2 * tokens, 2), k, nothing, beta, None, start)[0][1::2, 0] for axis in axes)
    counted = torch.atan2(y, x) * modulus / (2 * torch.pi)
    assert torch.equal(counted.round().long() % modulus, digits.cumsum(0) % modulus)


def test_one_reflection_a_token_counts_if_it_knows_whether_the_token_is_odd():
    """Which a layer before it can track. The state's angle is the sum, with the sign of the token's number."""
    modulus, tokens = 10, 10_000
    digits = torch.randint(modulus, (tokens,), generator=torch.Generator().manual_seed(0))
    signs = 1.0 - 2.0 * (torch.arange(1, tokens + 1) % 2)
    halves = (signs * torch.pi * digits / modulus).double()
    k = torch.stack([halves.sin(), -halves.cos()], dim=-1)
    start = torch.tensor([[1.0], [0.0]]).double()
    beta, nothing = torch.full((tokens,), 2.0).double(), torch.zeros(tokens, 1).double()
    x, y = (
        delta_rule(axis.expand(tokens, 2), k, nothing, beta, None, start)[0][:, 0] for axis in torch.eye(2).double()
    )
    counted = signs * torch.atan2(y, x) * modulus / (2 * torch.pi)
    assert torch.equal(counted.round().long() % modulus, digits.cumsum(0) % modulus)


@pytest.mark.parametrize("settings", LAYERS, ids=lambda one: one.name)
def test_every_layer_passes_the_checks(settings):
    findings = list(check_component(settings))
    assert [finding for finding in findings if finding.outcome == "fails"] == []
    assert {finding.check for finding in findings if finding.outcome == "holds"} >= {
        "a sequence in pieces, with the state passed on, equals the whole sequence",
        "in a stack it computes what it computes alone, outputs and gradients",
        "state noise changes the state and the outputs",
    }


@pytest.mark.parametrize("settings", LAYERS, ids=lambda one: one.name)
def test_ten_thousand_tokens_in_pieces_of_any_size_are_the_whole(settings):
    torch.manual_seed(0)
    layer, x = settings.build(16), torch.randn(1, 10_000, 16)
    with torch.inference_mode():
        whole, _ = layer(x)
        pieces, state = [], None
        for piece in x.split([1, 2, CHUNK - 3, CHUNK + 1, 1_000, 10_000 - 2 * CHUNK - 1_001], dim=1):
            out, state = layer(piece, state)
            pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("settings", [DeltaNet(), Mamba2(kernel_size=1), KDA(kernel_size=7)])
def test_the_short_convolution_starts_as_the_identity_plus_uniform_weights(settings):
    weight = settings.build(64).convolution.weight.detach()
    bound = settings.kernel_size**-0.5
    noise = weight - F.pad(torch.ones(1, weight.shape[1]), (0, 0, len(weight) - 1, 0))
    assert noise.abs().max() <= bound
    assert noise.std() == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize("settings", LAYERS, ids=lambda one: one.name)
def test_noise_reaches_every_channel_of_later_outputs_and_none_of_earlier_ones(settings):
    torch.manual_seed(0)
    layer, x = settings.build(16).double(), torch.randn(1, 6, 16).double()
    noise = torch.zeros_like(x)
    noise[:, 3] = 1.0
    changed = (layer(x, noise=noise)[0] != layer(x)[0])[0]
    assert not changed[:3].any()
    assert changed[3:].all()


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("delta_product", {"steps": 0}, "steps: 0 is not possible; it must be 1 or more"),
        ("delta_net", {"kernel_size": -1}, "kernel_size: -1 is not possible; it must be 0 or more"),
        ("kda", {"rate_range": (2, 1)}, r"rate_range: \(2.0, 1.0\) is not possible; it must be two numbers in order"),
        (
            "mamba2",
            {"step_range": (0, 1)},
            r"step_range: \(0.0, 1.0\) is not possible; it must be two numbers in order",
        ),
        ("mamba3", {"key_size": 1}, "key_size: 1 is not possible; it must be 2 or more"),
    ],
)
def test_settings_that_make_no_layer_are_refused(name, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Recurrence.find(name)(**settings)


@pytest.mark.parametrize("settings", LAYERS, ids=lambda one: one.name)
def test_heads_divide_the_width(settings):
    with pytest.raises(ConfigError, match="recurrence: heads: 4 does not divide width 10; choices: 1, 2, 5, 10"):
        Model(layout="rm", width=10, recurrence=settings)
