"""An operation under vmap over the parameters of many models is the operation of each of them."""

import pytest
import torch

from latebloom.layers.attention.operation import causal_attention, joint_attention
from latebloom.layers.embedding.embedding import embed
from latebloom.layers.lstm.operation import Weights, lstm
from latebloom.layers.mlp.mlp import linear, mlp
from latebloom.layers.norm.norm import layer_norm

S, B, T, D = 3, 4, 5, 16


def tensors(*shapes):
    return [torch.randn(S, *shape, dtype=torch.double) for shape in shapes]


def lstm_outputs(x, *rest):
    return lstm(x, Weights(*rest[:4]), *rest[4:])[0]


OPERATIONS = {
    "lstm": (lstm_outputs, [(B, T, D), (4 * D, D), (4 * D, D), (4 * D,), (4 * D,), (B, D), (B, D)]),
    "attention": (causal_attention, [(B, 2, T, D)] * 3),
    "attention together": (lambda together, extra: joint_attention(together, extra, 2), [(B, T, 3 * D), (B, T, D)]),
    "attention alone": (lambda together: joint_attention(together, None, 2), [(B, T, 3 * D)]),
    "embedding": (lambda table: embed(torch.arange(B * T).view(B, T) % 7, table), [(7, D)]),
    "norm": (layer_norm, [(B, T, D), (D,), (D,)]),
    "linear": (linear, [(B, T, D), (7, D), (7,)]),
    "mlp": (mlp, [(B, T, D), (64, D), (64,), (D, 64), (D,)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_stacked_models_compute_what_each_computes_alone(name):
    operation, shapes = OPERATIONS[name]
    inputs = [tensor.requires_grad_() for tensor in tensors(*shapes)]
    together = torch.func.vmap(operation)(*inputs)
    alone = torch.stack([operation(*(tensor[i] for tensor in inputs)) for i in range(S)])
    torch.testing.assert_close(together, alone)
    slope = torch.randn_like(alone)
    grads, expected = (torch.autograd.grad(out, inputs, slope) for out in (together, alone))
    torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize("shared", ["nothing", "the numbers", "the table"])
def test_rows_are_looked_up_by_each_models_own_numbers_in_its_own_table(shared):
    numbers, table = torch.randint(7, (S, B, T)), torch.randn(S, 7, D, dtype=torch.double)
    axes = (None if shared == "the numbers" else 0, None if shared == "the table" else 0)
    given = [one if axis == 0 else one[0] for one, axis in zip((numbers, table), axes, strict=True)]
    together = torch.func.vmap(embed, in_dims=axes)(*given)
    alone = [given[1] if axes[1] is None else table[i] for i in range(S)]
    expected = [one[given[0] if axes[0] is None else numbers[i]] for i, one in enumerate(alone)]
    assert torch.equal(together, torch.stack(expected))


@pytest.mark.parametrize("name", [name for name, (_, shapes) in OPERATIONS.items() if len(shapes) > 1])
def test_models_may_share_what_they_are_given(name):
    operation, shapes = OPERATIONS[name]
    first, *rest = tensors(*shapes)
    together = torch.func.vmap(operation, in_dims=(None, *(0 for _ in rest)))(first[0], *rest)
    alone = torch.stack([operation(first[0], *(tensor[i] for tensor in rest)) for i in range(S)])
    torch.testing.assert_close(together, alone)
