"""Transformers' hybrids: what is matched, that it is really left out, really restored, and really trained."""

from typing import Any

import pytest
import torch
from families import FAMILIES, MATCHED, build
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from latebloom import DelayedAttention, at_step
from latebloom.errors import ConfigError

TOKENS = torch.arange(2 * 12).reshape(2, 12) % 57 + 3


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits


def delayed(model: Any, hold: Any = "bypass", step: int = 3, **more: Any) -> DelayedAttention:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    return DelayedAttention(model, optimizer, until=at_step(step), hold=hold, **more)


def silence_attention(model: Any, names: list[str]) -> None:
    """The oracle: an attention whose output projection is zero says nothing."""
    for name in names:
        attention = model.get_submodule(name)
        output = next(getattr(attention, n) for n in ("o_proj", "out_proj") if hasattr(attention, n))
        torch.nn.init.zeros_(output.weight)
        if output.bias is not None:
            torch.nn.init.zeros_(output.bias)


@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_attention_is_matched_and_nothing_else(family):
    delay = delayed(build(family))
    assert list(delay.found.matched) == MATCHED[family]
    assert delay.found.passed_over
    assert all(name in repr(delay) for name in MATCHED[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_bypassed_it_says_nothing_and_removed_it_is_as_it_was(family):
    model, silent = build(family), build(family)
    before = logits(model)
    silence_attention(silent, MATCHED[family])
    delay = delayed(model)
    for _ in range(2):  # the first call learns the form of the output, the second computes nothing
        assert torch.equal(logits(model), logits(silent))
    assert not torch.equal(before, logits(silent))
    delay.remove()
    assert torch.equal(logits(model), before)
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_held_back_is_not_computed(family):
    model = build(family)
    delayed(model)
    logits(model)
    calls = []
    for name in MATCHED[family]:
        attention = model.get_submodule(name)
        next(m for m in attention.children() if isinstance(m, torch.nn.Linear)).register_forward_hook(
            lambda *_: calls.append(1)
        )
    logits(model)
    assert calls == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_it_does_not_move_during_the_delay_and_moves_after_it(family, hold):
    model = build(family)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold=hold)
    before = {name: parameter.detach().clone() for name, parameter in delay.parameters().items()}
    for step in range(4):
        model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        moved = [name for name, p in delay.parameters().items() if not torch.equal(p, before[name])]
        assert len(moved) == (0 if step < 2 else len(before)), moved
    assert delay.switch_step == 2


@pytest.mark.parametrize("family", ["bamba", "olmo_hybrid", "falcon_h1"])
def test_the_ramp_scales_what_enters_the_stream(family):
    """Half the gate is half of the branch: the output projection, or the norm behind it, at half its weight."""
    model, oracle = build(family), build(family)
    delay = delayed(model, "ramp", step=1, ramp_steps=2)
    delay.before_step()
    delay._advance()
    assert delay.gate == 0.5
    for name in MATCHED[family]:
        layer = oracle.get_submodule(name.rpartition(".")[0])
        scaled = layer.post_attention_layernorm if family == "olmo_hybrid" else layer.self_attn.o_proj
        with torch.no_grad():
            scaled.weight.mul_(0.5)
    torch.testing.assert_close(logits(model), logits(oracle))


@pytest.mark.parametrize("family", ["bamba", "qwen3_next", "jamba"])
def test_generation_with_a_cache_works_while_attention_is_held_back(family):
    model, silent = build(family), build(family)
    silence_attention(silent, MATCHED[family])
    delayed(model)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(TOKENS[:, :5], **options), silent.generate(TOKENS[:, :5], **options))


def test_a_model_without_or_with_nothing_but_attention_is_refused():
    with pytest.raises(ConfigError, match="no softmax attention was found in Mamba2ForCausalLM"):
        delayed(build("mamba2", num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=16, expand=2))
    with pytest.raises(ConfigError, match="everything that mixes tokens in LlamaForCausalLM is attention"):
        delayed(build("llama"))
    delay = delayed(build("llama"), where=["model.layers.2.self_attn"])
    assert list(delay.found.matched) == ["model.layers.2.self_attn"]


def test_a_block_of_attention_and_mlp_that_layers_share_is_held_as_one():
    """Zamba2 adds to the stream what comes out of a whole block, and several layers call the same one."""
    model = build(
        "zamba2",
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        mamba_d_state=8,
        n_mamba_heads=4,
        mamba_headdim=16,
        mamba_ngroups=1,
        chunk_size=16,
        num_mem_blocks=1,
        attention_head_dim=16,
        attention_hidden_size=64,
    )
    before = logits(model)
    delay = delayed(model)
    without = logits(model)
    assert not torch.equal(before, without)
    with torch.no_grad():
        for parameter in delay.parameters().values():
            parameter.mul_(2.0)
    assert torch.equal(logits(model), without)
    with torch.no_grad():
        for parameter in delay.parameters().values():
            parameter.div_(2.0)
    delay.remove()
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", ["bamba", "olmo_hybrid"])
def test_attention_in_a_kernel_that_torch_does_not_see_is_known_by_its_name(family):
    def kernel(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("unseen", kernel)
    AttentionMaskInterface.register("unseen", sdpa_mask)
    model = build(family)
    model.config._attn_implementation = "unseen"
    assert list(delayed(model).found.matched) == MATCHED[family]


def test_names_and_predicates_override_the_search():
    model = build("bamba")
    delay = delayed(model, where=lambda name, module: name.endswith("layers.3.self_attn"))
    assert list(delay.found.matched) == ["model.layers.3.self_attn"]
    with pytest.raises(ConfigError, match=r"where: 'model.layers.9.self_attn' is not known; did you mean"):
        delayed(build("bamba"), where=["model.layers.9.self_attn"])
    with pytest.raises(ConfigError, match="the predicate matches no module"):
        delayed(build("bamba"), where=lambda name, module: False)
