"""Softmax scores.

Shapes: B sequences, T tokens, D width, H heads, E features per head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.layers.attention.operation import causal_attention, joint_attention
from latebloom.layers.attention.scores import ScoreLayer, Scores


@dataclass(frozen=True, kw_only=True)
class Softmax(Scores):
    """Softmax over scaled dot products."""

    name: Literal["softmax"] = "softmax"

    def build(self, width: int, heads: int) -> "SoftmaxLayer":
        return SoftmaxLayer()


class SoftmaxLayer(ScoreLayer):
    """softmax(q k / sqrt(E)) over the tokens up to each token."""

    def weights(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return causal_attention(q, k, v)

    def attend_joint(self, joint: Tensor, extra: Tensor | None, heads: int, x: Tensor) -> Tensor:
        return joint_attention(joint, extra, heads)
