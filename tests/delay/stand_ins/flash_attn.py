"""Stand-ins for the kernels of flash-attn and xformers, which need a GPU: of the same names, and as opaque to torch.

B batch, T tokens, H heads, E features of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window: tuple[int, int] = (-1, -1)) -> Tensor:
    """(B, T, H, E) -> (B, T, H, E)"""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen.triu(-window[0]) if window[0] >= 0 else seen
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


def kernel(name: str, compute: Callable[..., Tensor]) -> Any:
    """Return an autograd function whose operations torch's modes do not see."""

    def forward(ctx: Any, *args: Any) -> Tensor:
        ctx.args = args
        with torch._C.DisableTorchFunction():
            return compute(*args)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        args = [x.detach().requires_grad_() if _is_float(x) else x for x in ctx.args]
        with torch.enable_grad(), torch._C.DisableTorchFunction():
            found = iter(torch.autograd.grad(compute(*args), [x for x in args if _is_float(x)], gradient))
        return tuple(next(found) if _is_float(x) else None for x in args)

    return type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _attend_to_sequences(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, causal: bool) -> Tensor:
    """Tokens of several sequences in one axis: (T, H, E) -> (T, H, E)"""
    parts = zip(*(x.tensor_split(starts[1:-1].tolist()) for x in (q, k, v)), strict=True)
    return torch.cat([attend(q[None], k[None], v[None], causal)[0] for q, k, v in parts])


FlashAttnFunc = kernel("FlashAttnFunc", attend)
FlashAttnVarlenFunc = kernel("FlashAttnVarlenFunc", _attend_to_sequences)
FlashAttnQKVPackedFunc = kernel("FlashAttnQKVPackedFunc", lambda qkv, *options: attend(*qkv.unbind(2), *options))
MemoryEfficient = kernel("_fMHA", attend)
bound_apply = FlashAttnFunc.apply


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: Any = (-1, -1)) -> Tensor:
    return FlashAttnFunc.apply(q, k, v, causal, window_size)


def flash_attn_qkvpacked_func(qkv: Tensor, causal: bool = False, window_size: Any = (-1, -1)) -> Tensor:
    return FlashAttnQKVPackedFunc.apply(qkv, causal, window_size)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, causal: bool = False) -> Tensor:
    return FlashAttnVarlenFunc.apply(q, k, v, cu_seqlens_q, causal)


def memory_efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of xformers."""
    return MemoryEfficient.apply(q, k, v)


@torch.library.custom_op("stand_in::flash_attn_op", mutates_args=())
def flash_attn_op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A kernel that is registered with torch."""
    return attend(q, k, v, True).clone()


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
    with torch.enable_grad():
        return torch.autograd.grad(attend(inputs[0], inputs[1], inputs[2], True), inputs, gradient)


flash_attn_op.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
