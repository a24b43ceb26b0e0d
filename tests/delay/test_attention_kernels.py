"""Attention in kernels: recognised by the functions called, however a model has imported them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from foreign import (
    HEADS,
    WIDTH,
    CausalSelfAttention,
    LanguageModel,
    Residual,
    SequenceToSequence,
    gru,
    heads_of,
)
from stand_ins import flash_attn
from stand_ins.flash_attn import (
    bound_apply,
    flash_attn_func,
    flash_attn_op,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    kernel,
    memory_efficient_attention,
)
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from latebloom import DelayedAttention, at_step
from latebloom.delay.observe import observe
from latebloom.errors import ConfigError

TOKENS = torch.arange(14).view(2, 7)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(B, T, H, E) -> (B, T, H, E)"""


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Both sequences in one axis."""
    starts = torch.arange(0, q.shape[0] * q.shape[1] + 1, q.shape[1])
    y = flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), cu_seqlens_q=starts, causal=True)
    return y.unflatten(0, q.shape[:2])


KERNELS: dict[str, Attend] = {
    "flash_attn_func": lambda q, k, v: flash_attn_func(q, k, v, causal=True),
    "flash_attn_func by attribute": lambda q, k, v: flash_attn.flash_attn_func(q, k, v, causal=True),
    "flash_attn_func = FlashAttnFunc.apply": lambda q, k, v: bound_apply(q, k, v, True),
    "flash_attn_qkvpacked_func": lambda *qkv: flash_attn_qkvpacked_func(torch.stack(qkv, 2), causal=True),
    "flash_attn_varlen_func": packed,
    "an operator of torch.ops": flash_attn_op,
    "memory_efficient_attention": memory_efficient_attention,
}


class KernelAttention(CausalSelfAttention):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        return self.c_proj(self.attend(q, k, v).flatten(2))


class FlexibleAttention(CausalSelfAttention):
    """FlexAttention with a bias and a window; `compiled` as its documentation advises.

    It is no model of docs/models.md, because FlexAttention has no backward pass on a CPU.
    """

    def __init__(self, window: int = 100, compiled: bool = False) -> None:
        super().__init__()
        self.attend = torch.compile(flex_attention, backend="aot_eager") if compiled else flex_attention
        self.near = lambda b, h, query, key: (query >= key) & (query - key < window)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        mask = create_block_mask(self.near, None, None, x.shape[1], x.shape[1], device=str(x.device))
        y = self.attend(q, k, v, score_mod=lambda score, b, h, query, key: score - 0.1 * (query - key), block_mask=mask)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class GatedKernel(KernelAttention):
    """A kernel in the forward of a block; a recurrence multiplies its result, and is also added if `added` is set."""

    def __init__(self, added: bool) -> None:
        super().__init__(KERNELS["flash_attn_func"])
        self.recurrence, self.added = gru(), added

    def forward(self, x: Tensor) -> Tensor:
        state = self.recurrence(x)[0]
        return x + state * super().forward(x) + (state if self.added else 0)


def hybrid(attention: nn.Module) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Residual(gru()), Residual(attention))


def delayed(model: nn.Module, **options: Any) -> DelayedAttention:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    return DelayedAttention(model, optimizer, until=at_step(2), **options)


def silenced(model: LanguageModel) -> LanguageModel:
    """The oracle: attention whose last projection is zero adds nothing."""
    attention: Any = model.get_submodule("blocks.1.body")
    nn.init.zeros_(attention.c_proj.weight)
    nn.init.zeros_(attention.c_proj.bias)
    return model


def moved_in(model: nn.Module, delay: DelayedAttention, steps: int) -> list[set[str]]:
    """Train, and return which parameters have moved after each step."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    moved = []
    for _ in range(steps):
        nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        for optimizer in delay._optimizers.listed:
            optimizer.step()
            optimizer.zero_grad()
        moved.append({name for name, p in model.named_parameters() if not torch.equal(p, before[name])})
    return moved


@pytest.mark.parametrize("name", KERNELS)
def test_attention_in_a_kernel_is_held_back_and_then_trained(name: str) -> None:
    model, silent = hybrid(KernelAttention(KERNELS[name])), silenced(hybrid(KernelAttention(KERNELS[name])))
    delay = delayed(model)
    assert delay.found.matched == ("blocks.1.body",)
    assert list(delay.found.passed_over) == ["blocks.0.body"]
    assert torch.equal(model(TOKENS), silent(TOKENS))
    held, every = set(delay.parameters()), {name for name, _ in model.named_parameters()}
    assert {one.rpartition(".")[0] for one in held} == {"blocks.1.norm", "blocks.1.body.c_attn", "blocks.1.body.c_proj"}
    assert moved_in(model, delay, 3) == [every - held, every - held, every]


def test_a_kernel_in_the_forward_of_a_block() -> None:
    model = LanguageModel(GatedKernel(added=True))
    (attention,) = delayed(model).found.attention
    assert attention.inline
    assert attention.modules == ("blocks.0.c_proj",)


def test_a_recurrence_that_only_multiplies_the_result_of_a_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"blocks.0.recurrence \(GRU\) would get no gradient"):
        delayed(LanguageModel(GatedKernel(added=False)))


class KernelMemory(nn.Module):
    """Cross-attention over the states of an encoder, in a kernel."""

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        one_head = (state[:, None, None], memory.unsqueeze(2), memory.unsqueeze(2))
        return flash_attn_func(*one_head).reshape(-1, WIDTH)


def test_the_kind_of_attention_in_a_kernel() -> None:
    near = hybrid(KernelAttention(lambda q, k, v: flash_attn_func(q, k, v, causal=True, window_size=(100, 0))))
    assert [one.kind for one in observe(near, lambda: near(TOKENS)).attention] == ["sliding"]
    whole = hybrid(KernelAttention(lambda q, k, v: flash_attn_func(q, k, v, causal=True, window_size=(-1, -1))))
    assert [one.kind for one in observe(whole, lambda: whole(TOKENS)).attention] == ["self"]
    cross: Any = SequenceToSequence()
    cross.attention = KernelMemory()
    found = observe(cross, lambda: cross(TOKENS, TOKENS)).attention
    assert [(one.path, one.kind) for one in found] == [("attention", "cross")]


def test_a_kernel_with_a_name_that_says_nothing_is_shown_as_another_mixer_and_can_be_named() -> None:
    unknown = kernel("Fused", flash_attn.attend)
    model = LanguageModel(
        Residual(gru()), Residual(CausalSelfAttention()), Residual(KernelAttention(lambda *qkv: unknown.apply(*qkv)))
    )
    delay = delayed(model)
    assert delay.found.passed_over["blocks.2.body"] == "KernelAttention mixes tokens without attention"
    delay.remove()
    assert delayed(model, where=["blocks.1.body", "blocks.2.body"]).found.matched == ("blocks.1.body", "blocks.2.body")


def test_kernels_are_left_as_they_were() -> None:
    forward = flash_attn.FlashAttnFunc.forward
    model = hybrid(KernelAttention(KERNELS["flash_attn_func"]))
    observe(model, lambda: model(TOKENS))
    assert flash_attn.FlashAttnFunc.forward is forward


@pytest.mark.parametrize(("window", "kind"), [(100, "self"), (3, "sliding")])
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_is_seen_on_a_cpu_where_it_has_no_backward_pass(window: int, kind: str, compiled: bool) -> None:
    model = hybrid(FlexibleAttention(window, compiled))
    delay = delayed(model)
    assert [(one.path, one.kind) for one in delay.found.attention] == [("blocks.1.body", kind)]
    assert list(delay.found.passed_over) == ["blocks.0.body"]


# The first call while attention is left out shows the form of its output, so FlexAttention runs once, uncompiled.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_is_left_out() -> None:
    model, silent = hybrid(FlexibleAttention()), silenced(hybrid(FlexibleAttention()))
    delay = delayed(model)
    held, every = set(delay.parameters()), {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        assert torch.equal(model(TOKENS), silent(TOKENS))
    assert moved_in(model, delay, 2) == [every - held] * 2
