"""Hybrids of flash-linear-attention: attention is held back, every other part is trained, and then all of it."""

from typing import Any

import pytest
from fla_hybrids import in_own_process


def check(family: str, seen: dict[str, Any]) -> None:
    layers, mixer = ("backbone.layers", "mixer") if family == "samba" else ("model.layers", "attn")
    assert seen["attention"] == [f"{layers}.1.{mixer}"]
    assert f"{layers}.0.{mixer}" in seen["others"]
    projections = {f"{layers}.1.{mixer}.{part}_proj" for part in "qkvo"}
    assert {name.rpartition(".")[0] for name in seen["held"]} == projections | {f"{layers}.1.{mixer}_norm"}
    assert set(seen["still"][0]) >= set(seen["held"])  # RWKV-7 has weights that are zero and move from the second step
    assert set(seen["still"][1]) == set(seen["held"])
    assert seen["still"][3] == []
    assert seen["copy"]
    assert seen["removed"]


def test_hybrids_with_attention():
    for family, seen in in_own_process("gla", "retnet", "samba").items():
        check(family, seen)


@pytest.mark.slow  # their kernels take long in Triton's interpreter
@pytest.mark.parametrize("family", ["gated_deltanet", "delta_net", "rwkv7", "kda"])
def test_more_hybrids_with_attention(family):
    check(family, in_own_process(family)[family])
