"""Attention and other mixers are told apart by what they do."""

from collections.abc import Callable

import pytest
import torch
from foreign import (
    CausalSelfAttention,
    ConvolvedAttention,
    ConvolvedRecurrence,
    EncoderDecoder,
    Experts,
    GatedByRecurrence,
    HandWrittenRecurrence,
    Inline,
    LanguageModel,
    MaskedExperts,
    Mixer,
    Parallel,
    Residual,
    SequenceToSequence,
    ShortConvolution,
    SlidingAttention,
    Streams,
    TorchAttention,
    WithoutResidual,
    gru,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from latebloom.delay.observe import Observation, observe

SOURCE, TOKENS = torch.arange(18).view(2, 9), torch.arange(14).view(2, 7)


def seen(model: nn.Module) -> Observation:
    inputs = (SOURCE, TOKENS) if isinstance(model, EncoderDecoder | SequenceToSequence) else (TOKENS,)
    return observe(model, lambda: model(*inputs))


def summary(model: nn.Module) -> dict[str, tuple[str, ...]]:
    return {one.path: one.modules for one in seen(model).attention}


@pytest.mark.parametrize(
    "attention", [CausalSelfAttention, SlidingAttention, Mixer, TorchAttention, ConvolvedAttention]
)
@pytest.mark.parametrize("recurrence", [gru, HandWrittenRecurrence, ConvolvedRecurrence])
def test_attention_is_found_by_the_functions_it_calls(
    attention: Callable[[], nn.Module], recurrence: Callable[[], nn.Module]
) -> None:
    found = seen(LanguageModel(Residual(recurrence()), Residual(attention())))
    assert [one.path for one in found.attention] == ["blocks.1.body"]
    assert found.mixers == ("blocks.0.body",)
    assert found.severed == ()
    assert found.starved == ("blocks.1.norm",)


def test_short_convolutions_in_a_row_are_not_a_recurrence() -> None:
    found = seen(LanguageModel(*(Residual(ShortConvolution()) for _ in range(4)), Residual(Mixer())))
    assert found.mixers == tuple(f"blocks.{i}.body.conv" for i in range(4))


def test_projections_that_begin_at_zero_hide_nothing() -> None:
    model = LanguageModel(Residual(nn.Sequential(HandWrittenRecurrence(), nn.Linear(16, 16))), Residual(Mixer()))
    usual = seen(model)
    for name in ("blocks.0.body.1", "blocks.1.body.c_attn", "blocks.1.body.c_proj"):
        nn.init.zeros_(model.get_parameter(f"{name}.weight"))
    assert seen(model) == usual
    assert not model.get_parameter("blocks.1.body.c_proj.weight").any()


def test_parallel_residual_streams_are_not_tokens() -> None:
    found = seen(LanguageModel(Streams(4, Residual(gru()), Residual(Mixer()))))
    assert [one.path for one in found.attention] == ["blocks.0.blocks.1.body"]
    assert found.mixers == ("blocks.0.blocks.0.body",)


@pytest.mark.parametrize("experts", [Experts, MaskedExperts])
@pytest.mark.parametrize("number", [2, TOKENS.shape[1]])
def test_a_softmax_over_experts_is_not_attention(experts: Callable[[int], nn.Module], number: int) -> None:
    found = seen(LanguageModel(Residual(gru()), Residual(experts(number)), Residual(Mixer())))
    assert [one.path for one in found.attention] == ["blocks.2.body"]


class SparseExperts(Experts):
    """Experts as modules, of which each token chooses one; those without tokens are not called, or with none."""

    def __init__(self, skips: bool) -> None:
        super().__init__(32)
        self.skips, self.experts = skips, nn.ModuleList(nn.Linear(16, 16) for _ in range(32))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        (share,), (choice,) = (one.mT for one in self.router(rows).softmax(-1).topk(1))
        chosen = [(choice == number).nonzero()[:, 0] for number in range(32)]
        pairs = [pair for pair in zip(self.experts, chosen, strict=True) if len(pair[1]) or not self.skips]
        made = torch.cat([share[places, None] * expert(rows[places]) for expert, places in pairs])
        return made[torch.cat([places for _, places in pairs]).argsort()].view_as(x)


@pytest.mark.parametrize("skips", [True, False])
def test_experts_that_get_no_tokens_are_not_starved(skips: bool) -> None:
    model = LanguageModel(Residual(gru()), Residual(Mixer()), Residual(SparseExperts(skips)))
    for _ in range(3):  # without attention, other experts are chosen
        nn.init.normal_(model.get_parameter("blocks.1.body.c_proj.weight"))
        found = seen(model)
        assert [one.path for one in found.attention] == ["blocks.1.body"]
        assert found.starved == ("blocks.1.norm",)


def test_what_follows_attention_alone_belongs_to_it() -> None:
    after = nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.5))
    assert summary(LanguageModel(Residual(gru()), Residual(Mixer(), after))) == {
        "blocks.1.body": ("blocks.1.body", "blocks.1.after")
    }


def test_attention_inside_a_block_is_gated_at_the_module_that_reads_it() -> None:
    found = seen(LanguageModel(Inline()))
    (attention,) = found.attention
    assert attention.inline
    assert attention.modules == ("blocks.0.output",)
    assert found.starved == ("blocks.0.norm", "blocks.0.qkv")
    (attention,) = seen(LanguageModel(Inline(projected=False))).attention
    assert attention.modules == ()


def test_attention_that_shares_an_output_projection_with_a_recurrence() -> None:
    found = seen(LanguageModel(Parallel()))
    assert [one.modules for one in found.attention] == [("blocks.0.attention", "blocks.0.scales.1")]
    assert found.mixers == ("blocks.0.recurrence",)
    assert found.starved == ()


def test_cross_attention_is_told_from_self_attention() -> None:
    found = seen(EncoderDecoder(state=True))
    assert [(one.path, one.kind) for one in found.attention] == [
        ("decoder.self_attn", "self"),
        ("decoder.multihead_attn", "cross"),
    ]
    assert found.starved == ()
    found = seen(SequenceToSequence())
    assert [(one.path, one.kind) for one in found.attention] == [("attention", "cross")]


def test_a_recurrence_that_acts_through_attention_alone_is_starved() -> None:
    assert "encoder" in seen(EncoderDecoder()).starved
    assert "blocks.0.recurrence" in seen(LanguageModel(GatedByRecurrence())).starved


def test_attention_without_a_residual_path_severs_the_stream() -> None:
    assert "blocks.1" in seen(LanguageModel(Residual(gru()), WithoutResidual())).severed


class Recomputed(nn.Module):
    def __init__(self, body: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = body, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_hides_nothing(reentrant: bool) -> None:
    found = seen(LanguageModel(Residual(gru()), Recomputed(Residual(Mixer()), reentrant)))
    assert [one.path for one in found.attention] == ["blocks.1.body.body"]


def test_the_model_is_left_as_it_was() -> None:
    model = LanguageModel(nn.Sequential(Residual(gru()), nn.Dropout(0.5)), Residual(Mixer()))
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_hook(lambda module, *_: module.get_buffer("calls").add_(1))
    model.embedding.weight.requires_grad_(False)
    model.blocks[0].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random, example = torch.get_rng_state(), TOKENS.clone()
    seen(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(example, TOKENS)
    assert not model.embedding.weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not model.blocks[0].training
    assert len(model._forward_hooks) == 1
    assert not any(module._forward_pre_hooks for module in model.modules())


class Stateful(nn.Module):
    """A recurrence that keeps its last state, as RecurrentGemma does."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.state = gru(), None

    def forward(self, x: Tensor) -> Tensor:
        y, self.state = self.gru(x)
        self.mean = y.mean()
        return y


def test_a_state_that_a_module_keeps_is_left_as_it_was() -> None:
    recurrence = Stateful()
    seen(LanguageModel(Residual(recurrence), Residual(Mixer())))
    assert recurrence.state is None
    assert not hasattr(recurrence, "mean")
