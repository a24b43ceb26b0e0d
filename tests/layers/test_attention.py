"""Attention: the fast path against the weights it stands for, positions, look-back, causality."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch
from torch import nn

from latebloom.errors import ConfigError
from latebloom.layers.attention import (
    Learned,
    LogN,
    NoPositions,
    PositionLayer,
    Positions,
    Rotary,
    ScoreLayer,
    Scores,
    SelfAttention,
    Softmax,
)
from latebloom.layers.stacking import Stacking
from latebloom.models.block import build_block, build_part
from latebloom.models.settings import Attention, Model

POSITIONS = ("none", "rotary", "learned")


def build(positions="none", log_n=False, **settings) -> SelfAttention:
    torch.manual_seed(0)
    chosen = {"none": NoPositions(), "rotary": Rotary(), "learned": Learned(context=32)}[positions]
    scores = LogN() if log_n else Softmax()
    return SelfAttention(16, 4, positions=chosen, scores=scores, **settings).double()


def features(tokens: int = 12) -> torch.Tensor:
    return torch.randn(3, tokens, 16, dtype=torch.double, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("look_back", [False, True])
@pytest.mark.parametrize("log_n", [False, True])
def test_forward_mixes_values_by_the_weights(positions, look_back, log_n):
    attention, x = build(positions=positions, look_back=look_back, log_n=log_n), features()
    weights = attention.weights(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    assert torch.equal(weights, weights.tril())
    values = attention.projected(x)[2]
    naive = attention.output((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), naive)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("look_back", [False, True])
def test_no_token_sees_a_later_one(positions, look_back):
    attention, x = build(positions=positions, look_back=look_back), features()
    changed = x.clone()
    changed[:, 7:] += 1.0
    assert torch.equal(attention(x)[:, :7], attention(changed)[:, :7])


def test_without_positions_earlier_tokens_are_a_set():
    attention, x = build(), features()
    shuffled = x[:, [*torch.randperm(11).tolist(), 11]]
    torch.testing.assert_close(attention(x)[:, -1], attention(shuffled)[:, -1])


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_with_positions_they_are_not(positions):
    attention, x = build(positions=positions), features()
    reversed_ = x.flip(1)
    reversed_[:, -1] = x[:, -1]
    assert not torch.allclose(attention(x)[:, -1], attention(reversed_)[:, -1])


def test_rotary_compares_by_distance_alone():
    """A query and a key that stand d apart have the same score wherever they stand."""
    attention = build(positions="rotary")
    x = features(1).expand(3, 12, 16)
    q, k, _ = attention.projected(x)
    scores = q @ k.transpose(-1, -2)
    for distance in range(1, 6):
        diagonal = scores.diagonal(-distance, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))


def test_look_back_makes_the_key_of_a_token_from_it_and_the_one_before():
    attention, x = build(look_back=True), features()
    changed = x.clone()
    changed[:, 4] += 1.0
    keys, new_keys = attention.projected(x)[1], attention.projected(changed)[1]
    moved = (keys != new_keys).any(dim=-1).any(dim=1).any(dim=0)
    assert moved.nonzero().flatten().tolist() == [4, 5]


def test_with_log_n_scaling_a_key_that_stands_out_keeps_its_share_among_many():
    """One key scores 1 above all others: plain softmax lets it drown, with log-n scaling it gains with their number."""
    shares = {}
    for log_n in (False, True):
        attention = build(log_n=log_n)
        x = torch.zeros(1, 400, 16, dtype=torch.double)
        with torch.no_grad():
            attention.queries_keys_values.weight.zero_()
            attention.queries_keys_values.bias.copy_(torch.ones(48))
            attention.queries_keys_values.weight[16:32] = torch.eye(16)  # a key is the token, and 1
        x[0, 0] = 0.5  # its score is (4 * 0.5) / sqrt(4) = 1 above those of the others
        weights = attention.weights(x).detach()[0, 0]
        shares[log_n] = [float(weights[n - 1, 0]) for n in (25, 100, 400)]
    assert shares[False] == pytest.approx([2.71828 / (n - 1 + 2.71828) for n in (25, 100, 400)], rel=1e-4)
    assert shares[True] == pytest.approx([(n + 1) / (2 * n) for n in (25, 100, 400)], rel=1e-4)


def test_learned_positions_say_how_many_tokens_they_cover():
    with pytest.raises(
        ConfigError, match=r"model.attention.positions.context: 32 learned positions do not cover 33 tokens"
    ):
        build(positions="learned")(features(33))


def test_zero_output_adds_nothing_at_first():
    assert torch.equal(build(zero_output=True)(features()), torch.zeros(3, 12, 16).double())


@dataclass(frozen=True, kw_only=True)
class OwnSigmoid(Scores):
    """Scores with a parameter of their own that see the inputs: a sigmoid whose bias depends on the token."""

    row_sum: ClassVar = None
    name: Literal["test_sigmoid"] = "test_sigmoid"

    def build(self, width, heads):
        return OwnSigmoidLayer(width, heads)


class OwnSigmoidLayer(ScoreLayer):
    def __init__(self, width, heads):
        super().__init__()
        self.bias = nn.Linear(width, heads)

    def weights(self, scores, tile, x):
        bias = self.bias(x[:, tile.queries]).transpose(1, 2)[..., None]
        return (scores + bias).sigmoid()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("stacking", ["vmap", "loop"])
def test_scores_of_ones_own_may_have_parameters_and_see_the_inputs_alone_and_in_stacks(
    positions, stacking, monkeypatch
):
    monkeypatch.setattr(OwnSigmoid, "stacking", stacking)
    chosen = {"none": NoPositions(), "rotary": Rotary(), "learned": Learned(context=32)}[positions]
    attention = Attention(positions=chosen, scores=OwnSigmoid(), look_back=True)
    parts = [build_part("a", Model(layout="am", width=16, attention=attention)).double() for _ in range(3)]
    x = torch.randn(3, 2, 6, 16, dtype=torch.double)
    names = dict(parts[0].named_parameters())
    assert {"body.scores.bias.weight", "body.scores.bias.bias"} <= names.keys()
    parameters = {
        name: torch.stack([dict(part.named_parameters())[name].detach() for part in parts]).requires_grad_()
        for name in names
    }
    together = torch.func.vmap(lambda p, x: torch.func.functional_call(parts[0], p, (x,)))(parameters, x)
    for i, part in enumerate(parts):
        model, normed = part.body, part.norm(x[i])
        assert isinstance(model, SelfAttention)
        weights, values = model.weights(normed), model.projected(normed)[2]
        assert torch.equal(weights, weights.tril())
        expected = x[i] + model.output((weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(part(x[i]), expected)
        torch.testing.assert_close(together[i], expected)
    (grad,) = torch.autograd.grad(together.square().sum(), [parameters["body.scores.bias.weight"]])
    for i, part in enumerate(parts):
        part(x[i]).square().sum().backward()
        torch.testing.assert_close(grad[i], dict(part.named_parameters())["body.scores.bias.weight"].grad)


@dataclass(frozen=True, kw_only=True)
class Damped(Positions):
    """Positions that only act on queries and keys, and that torch cannot run under vmap."""

    stacking: ClassVar[Stacking] = "loop"
    name: Literal["test_damped"] = "test_damped"

    def build(self, width, heads):
        return DampedLayer()


class DampedLayer(PositionLayer):
    def queries_keys(self, q, k, times=None):
        assert q.isfinite().all().item()  # vmap refuses item()
        return q, k / torch.arange(1, k.shape[-2] + 1, dtype=k.dtype)[:, None]


def test_positions_of_ones_own_that_act_on_queries_and_keys_are_applied():
    torch.manual_seed(0)
    attention, x = SelfAttention(16, 4, positions=Damped(), scores=Softmax()).double(), features()
    values = attention.projected(x)[2]
    naive = attention.output((attention.weights(x) @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), naive)
    assert not torch.allclose(attention(x), build()(x))


def test_positions_that_vmap_does_not_support_run_in_stacks_by_a_loop():
    model = Model(layout="am", width=8, blocks=1, attention=Attention(heads=2, positions=Damped()))
    models = [build_block(model).double() for _ in range(3)]
    x = torch.randn(3, 2, 6, 8, dtype=torch.double)
    parameters = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    together = torch.func.vmap(lambda p, x: torch.func.functional_call(models[0], p, (x,)))(parameters, x)
    for one, alone, given in zip(together, models, x, strict=True):
        torch.testing.assert_close(one, alone(given))
