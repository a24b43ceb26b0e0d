"""The fused delta rule computes what its loop computes in float64, forward and back, within float32's rounding."""

import pytest
import torch
from test_kernels import check
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from latebloom.layers.delta import KDA, DeltaNet, DeltaProduct, GatedDeltaNet
from latebloom.layers.delta import operation as delta
from latebloom.layers.delta import projected as layer_part
from latebloom.layers.delta.form import Form
from latebloom.layers.delta.operation import delta_rule, delta_rule_loop
from latebloom.layers.delta.projected import Projections, _by_operations, projected_delta_rule
from latebloom.layers.ssm import Mamba2, Mamba3
from latebloom.layers.ssm import operation as ssm_module
from latebloom.layers.ssm.operation import ssm, ssm_loop

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """Use the fused kernel for float32 on every device."""
    for module in (delta, layer_part, ssm_module):
        monkeypatch.setattr(module, "uses_fused_kernel", lambda k, size: k.dtype == torch.float32)


def given(operation, present: list[bool], kept: int):
    """Return an operation whose other arguments are None, and the first `kept` of its results."""

    def call(*arguments: Tensor) -> tuple[Tensor, ...]:
        rest = iter(arguments)
        return operation(*(next(rest) if one else None for one in present))[:kept]

    return call


# Sizes that are no powers of two; a single token; several segments; values of several programs.
@pytest.mark.parametrize(
    ("sequences", "heads", "tokens", "key_size", "value_size", "decay"),
    [(2, 2, 7, 8, 8, "none"), (1, 2, 11, 5, 3, "head"), (1, 1, 6, 7, 36, "channel"), (2, 1, 1, 8, 4, "channel")],
)
@pytest.mark.parametrize(("erases", "starts"), [(True, False), (True, True), (False, True)])
def test_the_delta_rule(device, sequences, heads, tokens, key_size, value_size, decay, erases, starts):
    size = {"none": 0, "head": 1, "channel": key_size}[decay]
    arguments = [
        torch.randn(sequences, heads, tokens, key_size, device=device),
        F.normalize(torch.randn(sequences, heads, tokens, key_size, device=device), dim=-1),
        torch.randn(sequences, heads, tokens, value_size, device=device),
        2 * torch.rand(sequences, heads, tokens, device=device),
        -torch.rand(sequences, heads, tokens, size, device=device),
        torch.randn(sequences, heads, key_size, value_size, device=device),
    ]
    starts = starts and tokens > 1  # a first token erases nothing, so gradients would be zero
    present = [True, True, True, erases, size > 0, not starts]
    kept = 1 if starts else 2
    inputs = [argument for argument, one in zip(arguments, present, strict=True) if one]
    check(given(delta_rule, present, kept), given(delta_rule_loop, present, kept), inputs)


@pytest.mark.parametrize(("key_heads", "starts"), [(1, True), (3, False)])
def test_a_state_space_model_with_decays_of_both_signs_and_zero(device, key_heads, starts):
    decay = 2 * torch.rand(2, 3, 7, device=device) - 1
    decay[:, :, 3] = 0.0
    q, k = torch.randn(2, 2, key_heads, 7, 6, device=device)
    write, state = torch.randn(2, 3, 7, 5, device=device), torch.randn(2, 3, 6, 5, device=device)
    present, inputs = [True, True, True, True, not starts], [q, k, write, decay, state]
    check(given(ssm, present, 2), given(ssm_loop, present, 2), inputs[: 4 + present[4]])


def draw(form: Form, noisy: bool, device: torch.device, *leading: int) -> tuple[list[Tensor], Tensor | None]:
    """Return projections and a state with leading axes (S, B, T) or (B, T), and noise."""
    heads, decays = form.heads, form.heads * (form.key_size if form.channels else 1)
    keys, values, models = heads * form.key_size, heads * form.value_size, leading[:-2]
    # Parts of wider rows, as a projection has them.
    wide = torch.randn(*leading, keys + form.steps * (keys + values) + form.steps * heads + decays, device=device)
    mixed, beta, decay = wide.split([keys + form.steps * (keys + values), form.steps * heads, decays], dim=-1)
    rate, bias = torch.randn(*models, heads, device=device), torch.randn(*models, decays, device=device)
    state = torch.randn(*leading[:-1], heads, form.key_size, form.value_size, device=device)
    noise = 0.3 * torch.randn(*leading, values, device=device) if noisy else None
    tensors = [mixed, beta, state] if form.decay == "none" else [mixed, beta, state, decay, rate, bias]
    return tensors, noise


def compute(operation, form: Form):
    def call(mixed, beta, state, decay=None, rate=None, bias=None, noise=None):
        noise = None if noise is None else noise.to(mixed.dtype)
        return operation(Projections(mixed, beta, decay, noise, rate, bias), state, form)

    return call


FORMS = {
    "delta_net": Form(heads=2, key_size=8, value_size=4, raw=True, scale=0.3, most_beta=2.0),
    "delta_product": Form(heads=2, key_size=5, value_size=6, steps=2, raw=True, scale=0.5),
    "gated_delta_net": Form(heads=2, key_size=8, value_size=8, raw=True, decay="softplus"),
    "gated_delta_product": Form(heads=2, key_size=4, value_size=33, steps=2, raw=True, decay="softplus"),
    "kda": Form(heads=2, key_size=6, value_size=5, raw=True, scale=0.5, decay="softplus", channels=True),
}


@pytest.mark.parametrize(
    ("name", "noisy"),
    [
        ("delta_net", False),
        ("delta_product", True),
        ("gated_delta_net", True),
        ("gated_delta_product", True),
        ("kda", False),
        ("kda", True),
    ],
)
def test_the_delta_rule_from_projections(device, name, noisy):
    torch.manual_seed(1)  # with some other draws the terms of a rate's gradient cancel, in plain float32 too
    form = FORMS[name]
    inputs, noise = draw(form, noisy, device, 2, 4)
    calls = [compute(one, form) for one in (projected_delta_rule, _by_operations)]
    fast, plain = ((lambda *parts, call=call: call(*parts, noise=noise)) for call in calls)
    check(fast, plain, inputs)


def test_a_small_decay_keeps_its_digits(device):
    """Biases start where the softplus is a thousandth."""
    form = FORMS["gated_delta_net"]
    inputs, _ = draw(form, False, device, 2, 6)
    inputs[-1] -= 12.0
    check(compute(projected_delta_rule, form), compute(_by_operations, form), inputs)


def with_gradients(call, inputs: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in inputs]
    results = call(*leaves)
    return [*results, *torch.autograd.grad(results, leaves, slopes)]


@pytest.mark.parametrize("name", ["delta_product", "kda"])
def test_stacked_models_compute_bit_for_bit_what_each_computes_alone_and_again(device, name):
    form = FORMS[name]
    inputs, _ = draw(form, False, device, 2, 1, 6)
    call = compute(projected_delta_rule, form)
    shapes = [(2, 1, 6, form.heads, form.value_size), tuple(inputs[2].shape)]
    slopes = [torch.randn(shape, device=device) for shape in shapes]
    stacked, again = (with_gradients(vmap(call), inputs, slopes) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(stacked, again, strict=True))
    for i in range(2):
        alone = with_gradients(call, [one[i] for one in inputs], [one[i] for one in slopes])
        assert all(torch.equal(one[i], other) for one, other in zip(stacked, alone, strict=True))


def test_without_gradients_the_result_is_the_same(device):
    form = FORMS["kda"]
    inputs, _ = draw(form, False, device, 2, 7)
    call = compute(projected_delta_rule, form)
    tracked = call(*(one.clone().requires_grad_() for one in inputs))
    with torch.no_grad():
        kept_nothing = call(*inputs)
    assert all(torch.equal(one, other) for one, other in zip(tracked, kept_nothing, strict=True))


LAYERS = [DeltaNet(), GatedDeltaNet(), DeltaProduct(decay=True), KDA(), Mamba2(negative_eigenvalues=True), Mamba3()]


@pytest.mark.parametrize("settings", LAYERS, ids=lambda one: one.name)
def test_a_stack_of_layers_computes_what_each_layer_computes_in_float64(device, settings):
    torch.manual_seed(0)
    layers = [settings.build(8).to(device) for _ in range(2)]
    parameters, _ = stack_module_state(layers)
    x, noise = torch.randn(2, 1, 4, 8, device=device), 0.1 * torch.randn(2, 1, 4, 8, device=device)

    def outputs(parameters, x, noise):
        return functional_call(layers[0], parameters, (x,), {"noise": noise})[0]

    found = vmap(outputs)(parameters, x, noise)
    found.square().sum().backward()
    for i, layer in enumerate(layers):
        expected = layer.double()(x[i].double(), noise=noise[i].double())[0]
        torch.testing.assert_close(found[i].double(), expected, rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        for name, parameter in layer.named_parameters():
            error = (parameters[name].grad[i] - parameter.grad).norm() / (parameter.grad.norm() + 1e-6)
            assert error < 1e-5, (name, float(error))


def test_pieces_of_a_sequence_are_the_whole(device):
    layer = KDA().build(8).to(device)
    x = torch.randn(1, 9, 8, device=device)
    with torch.no_grad():
        whole, last = layer(x)
        pieces, state = [], None
        for piece in x.split([1, 6, 2], dim=1):
            out, state = layer(piece, state)
            pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert state is not None
    torch.testing.assert_close(state, last)
