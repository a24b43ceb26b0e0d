"""Models as other people write them: all attention is held back, nothing else is, and what cannot work is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from foreign import (
    MODELS,
    AdditiveAttention,
    CausalSelfAttention,
    EncoderDecoder,
    GatedByRecurrence,
    Inline,
    LanguageModel,
    LatentAttention,
    Mixer,
    Residual,
    SharedProjections,
    WithoutResidual,
    gru,
    inputs_of,
)
from torch import Tensor, nn

from latebloom import DelayedAttention, at_step
from latebloom.errors import ConfigError

TOKENS = torch.arange(14).view(2, 7)
HELD: dict[str, tuple[list[str], list[str]]] = {
    # the paths of its attention; what is held back besides
    "nanoGPT's attention beside torch's": (["blocks.1.body", "blocks.2.body"], ["blocks.1.norm", "blocks.2.norm"]),
    "SDPA in a class called Mixer, beside torch's": (
        ["blocks.1.body", "blocks.2.body"],
        ["blocks.1.norm", "blocks.2.norm"],
    ),
    "a hand-written recurrence": (["blocks.1.body"], ["blocks.1.norm"]),
    "a convolution inside attention": (["blocks.1.body"], ["blocks.1.norm"]),
    "attention written inside a block": (["blocks.0"], ["blocks.0.norm", "blocks.0.qkv"]),
    "a recurrence and attention written into one forward": (
        ["blocks.0", "blocks.1.body"],
        ["blocks.0.norm", "blocks.0.qkv", "blocks.1.norm"],
    ),
    "attention and recurrence with one output projection": (["blocks.0.attention"], []),
    "an encoder-decoder with cross-attention": (["decoder.self_attn", "decoder.multihead_attn"], []),
    "additive attention in an LSTM decoder": (["attention"], []),
    "heads with projections that a recurrence shares, as in Hymba": (["blocks.0"], []),
    "ALiBi": (["blocks.1.body"], ["blocks.1.norm"]),
    "multi-head latent attention": (["blocks.1.body"], ["blocks.1.norm"]),
}


def build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def call(model: nn.Module) -> Tensor:
    return model(*inputs_of(model))


def step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    nn.functional.cross_entropy(call(model).flatten(0, 1), TOKENS.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def snapshot(parameters: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters}


def silent(module: nn.Module, args: Any, output: Any) -> Tensor:
    return torch.zeros_like(output)


def silence(model: nn.Module) -> None:
    """The oracle: attention whose last projection is zero adds nothing."""
    for module in model.modules():
        if isinstance(module, CausalSelfAttention | LatentAttention):
            last = [module.c_proj]
        elif isinstance(module, nn.MultiheadAttention):
            last = [module.out_proj]
        elif isinstance(module, Inline) and module.output is not None:
            last = [module.output]
        elif isinstance(module, AdditiveAttention):
            module.register_forward_hook(silent)
            continue
        elif isinstance(module, SharedProjections):
            nn.init.zeros_(module.attention_norm.weight)
            continue
        else:
            continue
        for linear in last:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)


@pytest.mark.parametrize("name", HELD)
def test_all_attention_is_left_out_and_the_model_computes_what_it_would_without(name: str) -> None:
    make, (paths, _) = MODELS[name], HELD[name]
    model, silent = build(make), build(make)
    before = call(model)
    silence(silent)
    delay = DelayedAttention(model, torch.optim.SGD(model.parameters(), lr=0.1), until=at_step(2))
    assert list(delay.found.matched) == paths
    for _ in range(2):
        torch.testing.assert_close(call(model), call(silent), rtol=0, atol=0)
    assert not torch.equal(before, call(model))
    delay.remove()
    assert torch.equal(call(model), before)
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("hold", ["bypass", "freeze", "ramp"])
def test_attention_does_not_move_everything_else_does_and_after_the_switch_all_moves(name: str, hold: Any) -> None:
    make, (_, besides) = MODELS[name], HELD[name]
    model = build(make)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold=hold, ramp_steps=2 * (hold == "ramp"))
    held = set(delay.parameters())
    assert all(any(one.startswith(f"{path}.") for one in held) for path in besides)
    before = snapshot(model.named_parameters())
    for number in range(5):
        step(model, optimizer)
        moved = {one for one, p in model.named_parameters() if not torch.equal(p, before[one])}
        assert moved == (set(before) - held if number < 2 else set(before)), number


def test_an_lstm_encoder_that_only_cross_attention_reads_is_refused_and_can_be_allowed() -> None:
    model = build(EncoderDecoder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = r"encoder \(LSTM\) would get no gradient while attention is left out.*hold=\"freeze\".*`kinds`"
    with pytest.raises(ConfigError, match=expected):
        DelayedAttention(model, optimizer, until=at_step(2))
    delay = DelayedAttention(model, optimizer, until=at_step(2), kinds=["self"])
    assert delay.found.matched == ("decoder.self_attn",)
    assert "decoder.multihead_attn: MultiheadAttention is cross-attention, which was not chosen" in repr(delay)
    delay.remove()
    wrong: Any = ["slef"]
    with pytest.raises(ConfigError, match="kinds: 'slef' is not known; did you mean 'self'"):
        DelayedAttention(model, optimizer, until=at_step(2), kinds=wrong)
    with pytest.warns(UserWarning, match=expected):
        DelayedAttention(model, optimizer, until=at_step(2), allow=["no gradient"])


def test_a_recurrence_that_only_gates_attention_is_refused() -> None:
    model = build(lambda: LanguageModel(GatedByRecurrence()))
    with pytest.raises(ConfigError, match=r"blocks.0.recurrence \(GRU\) would get no gradient"):
        DelayedAttention(model, torch.optim.SGD(model.parameters(), lr=0.1), until=at_step(2))


def test_attention_without_a_residual_path_is_refused() -> None:
    model = build(lambda: LanguageModel(Residual(gru()), WithoutResidual()))
    with pytest.raises(ConfigError, match=r"blocks.1.attention \(CausalSelfAttention\) has no residual path in blocks"):
        DelayedAttention(model, torch.optim.SGD(model.parameters(), lr=0.1), until=at_step(2))


def test_attention_without_a_module_of_its_own_can_only_be_frozen() -> None:
    model = build(lambda: LanguageModel(Inline(projected=False)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"inside the forward of blocks.0 \(Inline\), and no module reads its result"):
        DelayedAttention(model, optimizer, until=at_step(2))
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold="freeze")
    assert {name.rpartition(".")[0] for name in delay.parameters()} == {"blocks.0.norm", "blocks.0.qkv"}


class Batched(LanguageModel):
    """A model whose inputs cannot be guessed."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["tokens"])


def test_without_an_example_the_first_batch_shows_what_the_model_does() -> None:
    torch.manual_seed(0)
    model = Batched(Residual(gru()), Residual(Mixer()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    assert "to be seen at the first batch" in repr(delay)
    with pytest.raises(ConfigError, match="has not been called yet, and what it does is seen at its first batch"):
        delay.parameters()
    before = snapshot(model.named_parameters())
    for number in range(4):
        logits = model({"tokens": TOKENS})
        nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved = {one for one, p in model.named_parameters() if not torch.equal(p, before[one])}
        assert moved == set(before) - (set(delay.parameters()) if number < 2 else set())
    assert delay.found.matched == ("blocks.1.body",)


def test_a_first_batch_that_shows_a_model_to_be_refused_raises_before_anything_is_trained() -> None:
    model = Batched(WithoutResidual())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    DelayedAttention(model, optimizer, until=at_step(2))
    with pytest.raises(ConfigError, match="has no residual path"):
        model({"tokens": TOKENS})


@pytest.mark.parametrize("order", [1, -1])
def test_muon_beside_adamw(order: int) -> None:
    """The pair of optimizers that pretraining uses: matrices here, everything else there."""
    model = build(lambda: LanguageModel(Residual(gru()), Residual(Mixer())))
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    pair = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2, weight_decay=0.5)][::order]
    delay = DelayedAttention(model, pair, until=at_step(3))
    before = snapshot(model.named_parameters())
    for number in range(5):
        assert delay.step == number
        step(model, *pair)
        moved = {one for one, p in model.named_parameters() if not torch.equal(p, before[one])}
        assert moved == set(before) - (set(delay.parameters()) if number < 3 else set())
