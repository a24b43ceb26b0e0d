"""The rotation of pairs of neighbouring channels."""

import torch
from torch import Tensor


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the first R pairs of neighbouring channels of x (..., N) by angles (..., R)."""
    pairs = angle.shape[-1]
    even, odd = x[..., : 2 * pairs].unflatten(-1, (pairs, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., 2 * pairs :].expand(*turned.shape[:-1], -1)], dim=-1)
