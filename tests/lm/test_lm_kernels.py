"""fla's kernels are hidden from Transformers where they are not sound, and a run records why."""

import sys

import pytest
import torch

from latebloom.lm import kernels


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that packages of these versions are installed; `fla` may be hidden until the test ends."""
    versions = {"flash-linear-attention": "0.6.0", "triton": "3.6.0"}
    monkeypatch.setattr(kernels, "_version", lambda *names: next((versions[n] for n in names if n in versions), None))
    monkeypatch.setitem(sys.modules, "fla", None)
    del sys.modules["fla"]
    return versions


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_without_a_gpu_fla_is_hidden(installed):
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
