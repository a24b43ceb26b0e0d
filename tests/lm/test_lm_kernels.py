"""Kernels are hidden from Transformers where they are not sound, and a run records which its family uses, and why."""

import sys

import pytest
import torch

from latebloom.lm import kernels


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that packages of these versions are installed; `fla` may be hidden until the test ends."""
    versions = {"flash-linear-attention": "0.6.0", "triton": "3.6.0"}
    monkeypatch.setattr(kernels, "_version", lambda *names: next((versions[n] for n in names if n in versions), None))
    for module in ("fla", "mamba_ssm"):
        monkeypatch.setitem(sys.modules, module, None)
        del sys.modules[module]
    return versions


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_without_a_gpu_fla_is_hidden(installed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.choose_kernels("olmo_hybrid") == {"recurrence": "torch; fla is not used: there is no GPU"}
    with pytest.raises(ImportError):
        import fla  # pyright: ignore[reportMissingImports] # noqa: F401


@pytest.mark.parametrize(
    ("capability", "triton", "used"),
    [
        ((9, 0), "3.6.0", False),
        ((9, 0), "3.7.0", False),
        ((9, 0), "3.7.1", True),
        ((9, 0), "3.3.1", True),
        ((8, 0), "3.6.0", True),
    ],
)
def test_on_a_gpu_it_depends_on_the_gpu_and_on_triton(installed, monkeypatch, capability, triton, used):
    on_gpu(monkeypatch, capability)
    installed["triton"] = triton
    found = kernels.choose_kernels("olmo_hybrid")["recurrence"]
    assert found == "fla 0.6.0" if used else f"with Triton {triton} its gated delta rule has wrong gradients" in found
    assert ("fla" in sys.modules) is not used


@pytest.mark.parametrize(
    ("family", "recurrence"),
    [
        ("olmo_hybrid", "fla 0.6.0"),
        ("qwen3_next", "fla 0.6.0"),
        ("delta_net", "fla 0.6.0"),  # a family of fla's own
        ("bamba", "mamba-ssm 2.3.0"),
        ("falcon_h1", "mamba-ssm 2.3.0"),
        ("llama", "torch"),
        ("lfm2", "torch"),
    ],
)
def test_a_run_records_the_kernels_of_its_family_only(installed, monkeypatch, family, recurrence):
    on_gpu(monkeypatch, (8, 0))
    installed["mamba-ssm"] = "2.3.0"
    assert kernels.choose_kernels(family)["recurrence"] == recurrence
    del installed["mamba-ssm"]
    found = kernels.choose_kernels(family)["recurrence"]
    assert found == recurrence.replace("mamba-ssm 2.3.0", "torch; mamba-ssm is not used: it is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kernels.choose_kernels(family)
    assert ("fla" in sys.modules) is ("fla" in recurrence)
