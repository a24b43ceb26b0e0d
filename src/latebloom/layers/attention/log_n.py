"""Softmax with log-n scaling of the scores.

Softmax over n equal scores gives each 1/n. A score that stands out by a constant drowns among many others; one that
stands out by log(n) does not.

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.layers.attention.scores import Scores
from latebloom.layers.attention.softmax import SoftmaxLayer


@dataclass(frozen=True, kw_only=True)
class LogN(Scores):
    """Softmax over dot products times log(1 + t) at token t, so that attention stays as sharp over many tokens."""

    name: Literal["log_n"] = "log_n"

    def build(self, width: int, heads: int) -> "LogNLayer":
        return LogNLayer()


class LogNLayer(SoftmaxLayer):
    """softmax(log(1 + t) q k / sqrt(E)) over the t tokens up to each token."""

    def query_scale(self, x: Tensor) -> Tensor:
        return torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype).log1p()[:, None]
