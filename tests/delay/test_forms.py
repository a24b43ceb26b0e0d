"""Attention in the forms of tests/delay/foreign_forms.py is left out as the author of a model would leave it out."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import foreign_forms
import pytest
import torch
import torch.nn.functional as F
from foreign import HEADS, VOCABULARY, WIDTH, LanguageModel, Mixer, Residual, gru, inputs_of
from foreign_forms import FORMS, Add, Author, FromLogarithms, ReadsAnEncoder
from torch import Tensor, nn

from latebloom import DelayedAttention, at_step, inspect
from latebloom.delay.find import find_attention
from latebloom.errors import ConfigError

REFUSED = list(FORMS)[-3:]


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return FORMS[name]()


def delay_of(model: nn.Module, **settings: Any) -> DelayedAttention:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    return DelayedAttention(model, optimizer, until=at_step(3), **settings)


@pytest.mark.parametrize("name", [name for name in FORMS if name not in REFUSED])
def test_the_output_is_that_of_the_author_without_attention(name, monkeypatch):
    model, plain = build(name).eval(), build(name).eval()
    inputs = inputs_of(model)
    delay = delay_of(model)
    with torch.no_grad():
        model(*inputs)  # the first call shows the form of the output
        found, whole = model(*inputs), plain(*inputs)
        monkeypatch.setattr(Author, "attends", False)
        expected = plain(*inputs)
    monkeypatch.undo()
    assert torch.equal(found, expected)
    assert not torch.equal(whole, expected)
    held = sum(parameter.numel() for parameter in delay.parameters().values())
    assert sum(row.parameters for row in inspect(build(name), horizon=False).rows if row.held) == held


@pytest.mark.parametrize(
    ("name", "held", "others"),
    [
        ("linear attention beside attention", ["blocks.1.body", "blocks.1.norm"], ["blocks.0.body"]),
        ("a recurrence in its parallel form", ["blocks.1.body", "blocks.1.norm"], ["blocks.0.body"]),
        (
            "one attention module in two blocks",
            ["blocks.1.body", "blocks.1.norm", "blocks.3.norm"],
            ["blocks.0.body", "blocks.2.body"],
        ),
        ("attention inside the loop of an LSTM decoder", ["context", "key", "query", "score"], ["encoder"]),
        (
            "tables of the model that only attention reads",
            ["attentions.0", "attentions.1", "biases", "values"],
            ["recurrences.0", "recurrences.1"],
        ),
    ],
)
def test_what_is_held_back_and_what_else_mixes_tokens(name, held, others):
    found = find_attention(build(name))
    assert found is not None
    assert sorted(path for paths in found.held.values() for path in paths) == held
    assert list(found.passed_over) == others


def test_a_layer_scale_of_the_block_stays_as_it_is_and_a_shared_weight_trains():
    sandwich = build("grouped queries between two norms, with a layer scale")
    shared = build("a weight that attention shares with an MLP")
    delays = [delay_of(sandwich), delay_of(shared)]
    assert "blocks.1.scale" in delays[0].parameters()
    assert "blocks.1.scale: a parameter that acts through attention alone" in str(delays[0])
    assert "blocks.1.body.c_proj.weight" not in delays[1].parameters()
    assert "blocks.1.body.c_proj.weight: a parameter that other modules have too" in str(delays[1])
    for model, delay in zip((sandwich, shared), delays, strict=True):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for _ in range(2):
            model(*inputs_of(model)).square().mean().backward()
            for optimizer in delay._optimizers.listed:
                optimizer.step()
        still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
        assert still == set(delay.parameters())


def test_a_single_number_that_begins_at_zero_is_a_scale_too():
    class Rezero(Add):
        def __init__(self) -> None:
            super().__init__(Mixer())
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.scale * self.body(self.norm(x))

    delay = delay_of(LanguageModel(Residual(gru()), Rezero()))
    assert delay.found.scales == ("blocks.1.scale",)
    assert delay.parameters()["blocks.1.scale"].item() == 0.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (REFUSED[0], "no softmax attention was found in LanguageModel .*blocks.1.body: SigmoidAttention mixes tokens"),
        (REFUSED[1], r"blocks.1.into \(a parameter\), blocks.1.on \(a parameter\) would get no gradient .* they act"),
        (REFUSED[2], r"encoder \(TransformerEncoderLayer\), source \(Embedding\) would get no gradient while"),
    ],
)
def test_what_cannot_be_held_back_is_refused(name, says):
    with pytest.raises(ConfigError, match=says):
        delay_of(build(name))


@pytest.mark.parametrize("encoder", [gru, lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True)])
@pytest.mark.parametrize("kinds", [["cross"], ["self", "cross"]])
def test_an_encoder_does_not_belong_to_the_attention_that_reads_it(encoder, kinds):
    with pytest.raises(ConfigError, match=r"encoder \(\w+\), source \(Embedding\) would get no gradient"):
        delay_of(ReadsAnEncoder(encoder()), kinds=kinds)
    held = {
        name.partition(".")[0]
        for name in delay_of(ReadsAnEncoder(encoder()), kinds=["cross"], hold="freeze").parameters()
    }
    assert held == {"cross"}


def test_an_encoder_of_images_is_a_mixer_too():
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, WIDTH, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x[:, None])[..., :WIDTH].flatten(2).mT

    with pytest.raises(ConfigError, match=r"encoder \(Patches\), source \(Embedding\) would get no gradient"):
        delay_of(ReadsAnEncoder(Patches()))


def test_a_projection_of_patches_mixes_no_tokens():
    class VisionTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.block = nn.Conv2d(3, WIDTH, 4, stride=4), Residual(Mixer())

        def forward(self, images: Tensor) -> Tensor:
            return self.block(self.patches(images).flatten(2).mT)

    with pytest.raises(ConfigError, match="everything that mixes tokens in VisionTransformer is attention"):
        delay_of(VisionTransformer(), example=torch.randn(2, 3, 16, 16))


def test_the_attention_without_a_path_around_it_is_named_and_not_another_one():
    class Probabilities(LanguageModel):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).mean(-1).softmax(-1)

    with pytest.raises(ConfigError, match="attention is written inside the forward of Probabilities, and no module"):
        delay_of(Probabilities(Residual(gru()), Residual(Mixer())))
    with pytest.raises(ConfigError, match=r"blocks.2 \(Mixer\) has no residual path in LanguageModel"):
        delay_of(LanguageModel(Residual(gru()), Residual(Mixer()), Mixer()))


class AlsoInTraining(nn.Module):
    """A model with a second head in training mode, which has attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrence = nn.Embedding(VOCABULARY, WIDTH), Residual(gru())
        self.block, self.extra, self.dropout = Add(Mixer()), Add(FromLogarithms()), nn.Dropout(0.5)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.block(self.recurrence(self.embedding(tokens))))
        return self.logits(self.extra(x) if self.training else x)


@pytest.mark.parametrize("mode", [True, False])
def test_attention_that_only_training_mode_calls_is_held_back(mode):
    model = AlsoInTraining().train(mode)
    assert delay_of(model).found.matched == ("block.body", "extra.body")
    assert [module.training for module in model.modules()] == [mode] * len(list(model.modules()))


@dataclass
class Output:
    logits: Tensor
    hidden: Any = None


RETURNS = {
    "a dataclass": lambda y: Output(y),
    "a namespace": lambda y: SimpleNamespace(states=[y.detach()], logits=y),
    "the loss": lambda y: y.square().mean(),
    "detached logits and the loss": lambda y: (y.detach(), y.square().mean()),
    "logits that are not its first output": lambda y: {"hidden": y.new_zeros(2, requires_grad=True), "logits": y},
}


@pytest.mark.parametrize("form", RETURNS)
def test_models_may_return_what_they_like(form):
    class Model(LanguageModel):
        def forward(self, tokens: Tensor) -> Any:
            return RETURNS[form](super().forward(tokens))

    found = delay_of(Model(Residual(gru()), Residual(Mixer()))).found
    assert found.matched == ("blocks.1.body",)
    assert list(found.passed_over) == ["blocks.0.body"]


def test_a_recurrence_is_seen_where_time_is_the_last_axis_of_the_input():
    class Audio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.recurrence = nn.Conv1d(3, WIDTH, 4, stride=4), gru()
            self.attention, self.output = Mixer(), nn.Conv1d(WIDTH, 2, 1)

        def forward(self, wave: Tensor) -> Tensor:
            x = self.front(wave).mT
            x = x + self.recurrence(x)[0]
            return self.output((x + self.attention(x)).mT)

    found = find_attention(Audio(), torch.randn(2, 3, 48))
    assert found is not None
    assert found.matched == ("attention",)
    assert "recurrence" in found.passed_over
    assert not found.refusals


def test_freezing_attention_without_a_residual_path_freezes_nothing_around_it():
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.recurrence = nn.Embedding(VOCABULARY, WIDTH), gru()
            self.attention, self.logits = Mixer(), nn.Linear(WIDTH, VOCABULARY)
            self.positions = nn.Parameter(torch.randn(16, WIDTH))

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
            return self.logits(self.attention(self.recurrence(x)[0]))

    held = delay_of(Chain(), hold="freeze").parameters()
    assert {name.partition(".")[0] for name in held} == {"attention"}


def test_pooling_inside_the_forward_of_a_model_needs_names():
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.recurrence = nn.Embedding(VOCABULARY, WIDTH), gru()
            self.score, self.logits = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.recurrence(self.embedding(tokens))[0]
            return self.logits((self.score(x).softmax(1) * x).sum(1))

    with pytest.raises(ConfigError, match=r"attention is written inside the forward of Pooled, .* with `where`"):
        delay_of(Pooled(), hold="freeze")
    assert set(delay_of(Pooled(), hold="freeze", where="score").parameters()) == {"score.weight", "score.bias"}


def test_a_caller_that_reads_the_weights_of_any_attention_gets_them_in_every_call():
    class Logged(Add):
        def forward(self, x: Tensor) -> Tensor:
            weights, y = self.body(self.norm(x))
            self.sharpness = weights.max(-1).values.mean().item()
            return x + y

    model = LanguageModel(Residual(gru()), Logged(foreign_forms.WeightsFirst()))
    delay_of(model)
    for length in (5, 6):
        model(torch.arange(length)[None])
        assert 0 < model.blocks[1].sharpness < 1  # type: ignore[operator] (a number)


def test_weights_that_a_forward_pass_changes_are_restored():
    model = LanguageModel(Residual(gru()), Residual(Mixer()))
    model.embedding = nn.Embedding(VOCABULARY, WIDTH, max_norm=0.5)
    before = model.embedding.weight.detach().clone()
    delay_of(model)
    assert torch.equal(model.embedding.weight, before)
    model(torch.arange(8)[None])
    assert not torch.equal(model.embedding.weight, before)


def test_functions_with_a_softmax_in_their_name_are_one():
    entmax = pytest.importorskip("entmax")

    class Sparse(Mixer):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = foreign_forms.heads_of(self.c_attn(x))
            scores = (q @ k.mT).masked_fill(foreign_forms.future_of(x), -1e9)
            return self.c_proj((entmax.entmax15(scores, dim=-1) @ v).transpose(1, 2).flatten(2))

    model = LanguageModel(Residual(gru()), Residual(Sparse()))
    assert delay_of(model).found.matched == ("blocks.1.body",)
    F.softmax(model(torch.arange(8)[None]), -1).sum().backward()
