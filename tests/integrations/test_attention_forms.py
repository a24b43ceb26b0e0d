"""Attention of Transformers in other forms, beside a recurrence: ALiBi, MLA, sliding windows, cross-attention."""

from typing import Any

import pytest
import torch
from families import COMMON
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from latebloom import DelayedAttention, at_step
from latebloom.errors import ConfigError

SOURCE, TOKENS = torch.arange(3, 25).view(2, 11), torch.arange(3, 17).view(2, 7)
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DECODERS: dict[str, tuple[dict[str, Any], str, str]] = {
    # settings; the list of layers; the attention of a layer
    "bloom": ({"n_layer": 2, "n_head": 4}, "transformer.h", "self_attention"),
    "mpt": ({"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, "transformer.blocks", "attn"),
    "deepseek_v3": (
        {**LATENT, **EXPERTS, "num_key_value_heads": 4, "first_k_dense_replace": 2},
        "model.layers",
        "self_attn",
    ),
    "gemma3_text": (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "head_dim": 8},
        "model.layers",
        "self_attn",
    ),
}
ENCODER_DECODERS: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}, "{}.block"),
    "bart": (
        {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in [("layers", 2), ("ffn_dim", 48)]}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
        "model.{}.layers",
    ),
}


class Recurrent(nn.Module):
    """A layer with a recurrence before it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.recurrence, self.layer = nn.GRU(32, 32, batch_first=True), layer

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Any:
        return self.layer(x + self.recurrence(x)[0], *args, **options)


def decoder(family: str, **options: Any) -> Any:
    torch.manual_seed(0)
    settings, layers, _ = DECODERS[family]
    every: dict[str, Any] = COMMON | {"num_hidden_layers": 2} | settings
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**every), **options)
    model.get_submodule(layers)[0] = Recurrent(model.get_submodule(layers)[0])
    return model


def encoder_decoder(family: str) -> Any:
    torch.manual_seed(0)
    settings, layers = ENCODER_DECODERS[family]
    usual: dict[str, Any] = {name: COMMON[name] for name in COMMON if "token_id" in name or name == "vocab_size"}
    usual |= {"d_model": 32, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    config = CONFIG_MAPPING[family](**usual, **settings)
    model = AutoModelForSeq2SeqLM.from_config(config)
    for part in ("encoder", "decoder"):
        blocks: Any = model.get_submodule(layers.format(part))
        blocks[0] = Recurrent(blocks[0])
    return model


def delayed(model: Any, **options: Any) -> DelayedAttention:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    return DelayedAttention(model, optimizer, until=at_step(2), **options)


def train(model: Any, delay: DelayedAttention, **inputs: Tensor) -> None:
    """Train over the switch: what is held back does not move, all else does, and then all of it."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.train()
    for number in range(4):
        model(**inputs).loss.backward()
        delay._optimizers.listed[0].step()
        delay._optimizers.listed[0].zero_grad()
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        assert moved == set(before) - (set(delay.parameters()) if number < 2 else set()), number


@pytest.mark.parametrize("family", DECODERS)
def test_attention_of_every_form_is_held_back_beside_a_recurrence(family):
    model = decoder(family)
    delay = delayed(model)
    _, layers, attention = DECODERS[family]
    assert delay.found.matched == (f"{layers}.0.layer.{attention}", f"{layers}.1.{attention}")
    assert list(delay.found.passed_over) == [f"{layers}.0.recurrence"]
    train(model, delay, input_ids=TOKENS, labels=TOKENS)


# Transformers sets a flag of FlexAttention that is deprecated, and torch's compiler imports what is deprecated.
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_sliding_windows_are_held_back_by_choice(implementation):
    layers = {"sliding": "model.layers.0.layer.self_attn", "self": "model.layers.1.self_attn"}
    for kind, path in layers.items():
        model = decoder("gemma3_text", attn_implementation=implementation)
        assert delayed(model, kinds=[kind], example=TOKENS).found.matched == (path,)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_an_encoder_decoder_holds_back_its_self_attention(family):
    model = encoder_decoder(family)
    delay = delayed(model, kinds=["self"])
    assert len(delay.found.matched) == 4
    others = list(delay.found.passed_over)
    assert [name.rpartition(".")[2] for name in others[:2]] == ["recurrence"] * 2
    assert len(others) == 4
    assert all("is cross-attention, which was not chosen" in delay.found.passed_over[name] for name in others[2:])
    train(model, delay, input_ids=SOURCE, labels=TOKENS)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@pytest.mark.parametrize("kinds", [["cross"], ["self", "cross"]])
def test_an_encoder_that_only_cross_attention_reads_is_refused(family, kinds):
    with pytest.raises(ConfigError, match=r"encoder .* would get no gradient while attention is left out"):
        delayed(encoder_decoder(family), kinds=kinds)
    model = encoder_decoder(family)
    delay = delayed(model, kinds=kinds, hold="freeze")
    assert len(delay.found.matched) == 2 * (1 + 2 * ("self" in kinds))
    train(model, delay, input_ids=SOURCE, labels=TOKENS)
