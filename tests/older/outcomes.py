"""What a finished run left behind, as plain data, and whether this machine computes the same bits as another one."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def outcome(folder: Path) -> dict[str, Any]:
    """Return the weights' digests, the evaluation and the result of a finished run, without its wall-clock time."""
    weights = load_file(folder / "model" / "model.safetensors")
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    return {
        "weights": {name: digest([tensor]) for name, tensor in sorted(weights.items())},
        "evaluation": json.loads((folder / "evaluation.json").read_text()),
        "result": result,
    }


def digest(tensors: list[Tensor]) -> str:
    """Return 16 characters that depend on every bit of the tensors."""
    content = b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(content).hexdigest()[:16]


def arithmetic() -> str:
    """Return a digest of some training steps in plain torch, without this package.

    Two machines with the same digest and the same torch round the operations of a run in the same way, so that the
    results of one can be expected bit for bit on the other. The name of the processor would not tell: virtual
    machines hide it, and libraries choose their kernels by instruction set.
    """
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(20, 8),
            "lstm": nn.LSTM(8, 8, batch_first=True),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "mlp": nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 20)),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    weights = torch.randn(4, 8, 8)
    for size in (8, 16, 8, 16, 8, 16):
        tokens = torch.randint(20, (size, 13))
        hidden, _ = model["lstm"](model["embedding"](tokens))
        hidden = hidden + model["attention"](hidden, hidden, hidden, need_weights=False)[0]
        side_by_side = torch.einsum("btw,swv->sbtv", hidden, weights).softmax(-1).mean(0)
        loss = nn.functional.cross_entropy(model["mlp"](hidden + side_by_side).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return digest(list(model.parameters()))
