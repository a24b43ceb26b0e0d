"""Which kernels compute the recurrences of Transformers' models: those of other packages, or pure torch.

Transformers takes the kernels of packages that can be imported: flash-linear-attention (fla) for the gated delta rule,
mamba-ssm and causal-conv1d for the Mamba families. None of them runs on a CPU. The backward pass of fla's gated delta
rule is wrong on Hopper GPUs with Triton 3.4 to 3.7.0, where fla 0.6.0 refuses it. In both cases fla is hidden from
Transformers, which then uses its own torch code.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

UNSOUND_TRITON = ((3, 4), (3, 7, 0))
"""The first and the last version with wrong gradients on Hopper."""


def choose_kernels(model_type: str) -> dict[str, Any]:
    """Decide on fla's kernels before a model's code is imported, and return the decision for the record of a run."""
    found = _version("flash-linear-attention", "fla-core")
    others = {name: one for name in ("mamba-ssm", "causal-conv1d") if (one := _version(name)) is not None}
    why = "it is not installed" if found is None else _unsound(model_type)
    if why and found is not None:
        if sys.modules.get("fla") is not None:
            why = f"{why}, but it was imported before and may be used"
        else:
            sys.modules["fla"] = None  # type: ignore[assignment] (an import of it now raises)
    return {"recurrence": f"torch; fla is not used: {why}" if why else f"fla {found}", **others}


def _unsound(model_type: str) -> str:
    """Return why fla's kernels cannot be used for training here; an empty string if they can."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    if torch.cuda.get_device_capability() != (9, 0) or model_type == "delta_net":
        return ""
    triton = tuple(int(part) for part in (_version("triton") or "0").split("+")[0].split(".")[:3] if part.isdecimal())
    first, last = UNSOUND_TRITON
    if first <= triton <= last:
        return f"with Triton {'.'.join(map(str, triton))} its gated delta rule has wrong gradients on this GPU"
    return ""


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown" if "fla-core" in names and "fla" not in sys.modules and find_spec("fla") is not None else None
