"""What a look at a model says, whether delayed attention training takes the model or not."""

from typing import Any

import pytest
import torch
from families import FAMILIES, MATCHED, build
from foreign import MODELS
from torch import Tensor, nn

import latebloom
from latebloom import DelayedAttention, SequenceModel, at_step, hybrid, lstm, transformer
from latebloom.probes.inspect import joined_numbers, joined_paths

MAMBA2: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16, "expand": 2}
ZAMBA2: dict[str, Any] = {
    "layers_block_type": ["mamba", "hybrid"], "num_hidden_layers": 2, "mamba_d_state": 8, "n_mamba_heads": 4,
    "mamba_headdim": 16, "mamba_ngroups": 1, "chunk_size": 16, "num_mem_blocks": 1, "attention_head_dim": 16,
    "attention_hidden_size": 64,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_the_delay_does(family):
    """The oracle is the delay itself: the same parts, the same parameters, the same places."""
    model = build(family)
    seen = latebloom.inspect(model, horizon=False)
    delay = DelayedAttention(model, until=at_step(1), automatic=False)
    assert [row.path for row in seen.rows if row.held and row.note.startswith("gated")] == MATCHED[family]
    held = sum(row.parameters for row in seen.rows if row.held)
    assert held == seen.parameters("attention") == sum(p.numel() for p in delay.parameters().values())
    assert {row.kind for row in seen.rows} == {"attention", "recurrence", "other"}
    assert all(row.kind == "attention" for row in seen.rows if row.held)
    assert seen.refusal is None
    behind = {row.path: row.note.removeprefix("gated behind ") for row in seen.rows if "behind" in row.note}
    assert all(f"{path}: " in repr(delay) and f".{norm}" in repr(delay) for path, norm in behind.items())
    assert bool(behind) == ("gated behind" in repr(delay))


def tied() -> nn.Module:
    """Two attentions with one output projection, and logits with the weights of the embedding."""
    model: Any = MODELS["nanoGPT's attention beside torch's"]()
    model.blocks[2].body.c_proj.weight = model.blocks[1].body.inner.out_proj.weight
    model.logits.weight = model.embedding.weight
    return model


def partly_frozen() -> nn.Module:
    model: Any = MODELS["a hand-written recurrence"]()
    model.blocks[1].body.c_attn.requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [*MODELS.values(), tied, partly_frozen], ids=[*MODELS, "tied", "partly frozen"])
def test_it_counts_exactly_what_the_delay_holds(make):
    model = make()
    seen = latebloom.inspect(model, horizon=False)
    assert seen.parameters() == sum(p.numel() for p in model.parameters())
    if seen.refusal is not None:
        assert not any(row.held for row in seen.rows)
        return
    delay = DelayedAttention(model, until=at_step(1), automatic=False)
    held = sum(p.numel() for p in delay.parameters().values())
    assert held == sum(row.parameters - row.frozen for row in seen.rows if row.held)
    assert f" with {held:,} parameters" in seen.sentences()[1]
    assert ("and 816 that are not trained" in seen.sentences()[1]) == (make is partly_frozen)


@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_every_parameter_is_counted_once(family):
    model = build(family)
    seen = latebloom.inspect(model, horizon=False)
    assert seen.parameters() == sum(p.numel() for p in model.parameters())
    assert sum(seen.share(kind) for kind in ("attention", "recurrence", "other")) == pytest.approx(1.0)


def test_the_packages_own_models():
    model = SequenceModel(hybrid(width=8, blocks=2, heads=2), 11)
    seen = latebloom.inspect(model)
    kinds = {row.path: (row.kind, row.class_name, row.held) for row in seen.rows}
    assert kinds["blocks.0.0"] == ("recurrence", "LSTMLayer", False)
    assert kinds["blocks.1.1"] == ("attention", "SelfAttention", True)
    assert kinds["embedding"] == ("other", "Embedding", False)
    assert seen.horizon is not None
    assert "blocks.{0,1}.1" in str(seen)
    assert "LSTMLayer mixes tokens without attention; its state has 16 numbers per sequence" in str(seen)
    assert all(part.gate == 1.0 for part in model.modules() if hasattr(part, "gate"))


@pytest.mark.parametrize(
    ("model", "reason", "kinds"),
    [
        (lambda: build("mamba2", **MAMBA2), "no softmax attention was found", {"recurrence", "other"}),
        (
            lambda: build("llama"),
            "everything that mixes tokens in LlamaForCausalLM is attention",
            {"attention", "other"},
        ),
        (lambda: SequenceModel(lstm(width=8, blocks=1), 11), "no softmax attention was found", {"recurrence", "other"}),
        (lambda: SequenceModel(transformer(width=8, blocks=1, heads=2), 11), "everything that mixes tokens", None),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "nothing mixes tokens", {"other"}),
        (lambda: nn.LSTM(2, 2), "no softmax attention was found", {"recurrence"}),
    ],
)
def test_a_model_that_is_refused_is_described_with_the_reason(model, reason, kinds):
    model = model()
    seen = latebloom.inspect(model)
    assert reason in (seen.refusal or "")
    assert not any(row.held for row in seen.rows)
    assert seen.parameters() == sum(p.numel() for p in model.parameters())
    assert kinds is None or {row.kind for row in seen.rows} == kinds
    assert "refuses this model" in str(seen)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_weights_that_layers_share_are_counted_once():
    """Zamba2 calls one block of attention and MLP from several layers, and adds what comes out to the stream."""
    layers = {"layers_block_type": ["mamba", "hybrid", "hybrid"], "num_hidden_layers": 3}
    model = build("zamba2", **ZAMBA2 | layers)
    seen = latebloom.inspect(model, horizon=False)
    delay = DelayedAttention(model, until=at_step(1), automatic=False)
    assert seen.refusal is None
    assert seen.parameters() == sum(p.numel() for p in model.parameters())
    assert seen.parameters("attention") == sum(p.numel() for p in delay.parameters().values())
    assert "shared_transformer" in repr(delay)


def test_names_override_the_search():
    seen = latebloom.inspect(build("llama"), where=["model.layers.2.self_attn"], horizon=False)
    assert [row.path for row in seen.rows if row.held and "alone" not in row.note] == ["model.layers.2.self_attn"]
    assert seen.refusal is None
    assert {row.note for row in seen.rows if row.kind == "attention" and not row.held} == {
        "LlamaAttention is self-attention, which was not chosen"
    }
    assert "is not known" in (latebloom.inspect(build("llama"), where=["nowhere"], horizon=False).refusal or "")


def test_a_model_under_a_delay_keeps_it():
    for model in (build("bamba"), SequenceModel(hybrid(width=8, blocks=1, heads=2), 64)):
        delay = DelayedAttention(model, until=at_step(1), automatic=False)
        tokens = torch.arange(12)[None]
        before = model(tokens)
        seen = latebloom.inspect(model)
        assert seen.horizon is None
        assert seen.no_horizon
        after = model(tokens)
        assert torch.equal(getattr(after, "logits", after), getattr(before, "logits", before))
        delay.remove()


def test_a_model_of_ones_own_with_torchs_attention():
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrence, self.attention = nn.GRU(8, 8, batch_first=True), nn.MultiheadAttention(8, 2)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.scale * self.recurrence(x)[0]
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y = x.transpose(0, 1)
            return x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0].transpose(0, 1)

    torch.manual_seed(0)
    seen = latebloom.inspect(nn.Sequential(nn.Embedding(9, 8), Layer(), Layer()))
    assert [row.path for row in seen.rows if row.held] == ["1.attention", "2.attention"]
    assert [row.note for row in seen.rows if row.path == "1"] == ["parameters of its own"]
    assert seen.horizon is not None
    assert 0 < seen.horizon.tokens < 127
    assert "{1,2}.attention" in str(seen)


def test_a_model_without_weights_in_memory_has_a_table_and_no_horizon():
    with torch.device("meta"):
        model = build("bamba")
    seen = latebloom.inspect(model)
    assert [row.path for row in seen.rows if row.held] == MATCHED["bamba"]
    assert "has no weights in memory" in (seen.no_horizon or "")


def test_layers_are_written_in_short():
    assert joined_paths(["a.0.b.7", "a.2.b.7", "a.4.b.7"]) == "a.{0,2,4}.b.7"
    assert joined_paths(["a.3.b"]) == "a.3.b"
    assert joined_numbers([0, 2, 4, 6, 8]) == "0,2,...,8"
    assert joined_numbers([0, 1, 2, 3, 5, 6, 8]) == "0-3,5,6,8"
