"""Which kernels compute the recurrences of Transformers' models: those of other packages, or pure torch.

Transformers takes the kernels of packages that can be imported: flash-linear-attention (fla) for the gated delta rule,
mamba-ssm and causal-conv1d for the Mamba families. None of them runs on a CPU, and the backward pass of fla's gated
delta rule is wrong on Hopper GPUs with Triton 3.4 to 3.7.0, where fla 0.6.0 refuses it. In both cases the package is
hidden from Transformers, which then uses its own torch code.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

UNSOUND_TRITON = ((3, 4), (3, 7, 0))
"""The first and the last version with wrong gradients on Hopper."""
PACKAGES = {"fla": ("flash-linear-attention", "fla-core"), "mamba_ssm": ("mamba-ssm",)}
"""The packages with kernels of recurrences, by the names of their modules, and what their distributions are called."""


def choose_kernels(model_type: str) -> dict[str, Any]:
    """Decide on kernels before a model's code is imported, and return the decision for the record of a run."""
    source = _source(model_type)
    module = next((name for name in PACKAGES if source is None or re.search(rf"\b{name}\b", source)), None)
    if module is None:
        return {"recurrence": "torch"}
    name = "fla" if module == "fla" else PACKAGES[module][0]
    found = _version(*PACKAGES[module])
    why = "it is not installed" if found is None else _unsound(model_type, module)
    if why and found is not None:
        if sys.modules.get(module) is not None:
            why = f"{why}, but it was imported before and may be used"
        else:
            sys.modules[module] = None  # type: ignore[assignment] (an import of it now raises)
    others = {"causal-conv1d": one} if (one := _version("causal-conv1d")) and "causal_conv1d" in (source or "") else {}
    return {"recurrence": f"torch; {name} is not used: {why}" if why else f"{name} {found}", **others}


def _source(model_type: str) -> str | None:
    """Return the code of a family of Transformers; None for a family that is registered by another package, as fla's.

    It is read and not imported, because an import would decide on the kernels.
    """
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    try:
        spec = find_spec(f"transformers.models.{model_type_to_module_name(model_type)}")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return "".join(one.read_text() for one in sorted(Path(spec.submodule_search_locations[0]).glob("modeling_*.py")))


def _unsound(model_type: str, module: str) -> str:
    """Return why a package's kernels cannot be used for training here; an empty string if they can."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    if module != "fla" or torch.cuda.get_device_capability() != (9, 0) or model_type == "delta_net":
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
