"""Hybrids of flash-linear-attention: attention is held back, every other part is trained, and then all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PATHS = [Path(sys.prefix) / "fla", TESTS / "delay" / "stand_ins", TESTS.parent / "src"]


def train(*families: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS)), "TRITON_INTERPRET": "1"}
    program = Path(__file__).with_name("fla_hybrids.py")
    ended = subprocess.run([sys.executable, program, *families], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


def check(family: str, seen: dict[str, Any]) -> None:
    layers, mixer = ("backbone.layers", "mixer") if family == "samba" else ("model.layers", "attn")
    assert seen["attention"] == [f"{layers}.1.{mixer}"]
    assert f"{layers}.0.{mixer}" in seen["others"]
    projections = {f"{layers}.1.{mixer}.{part}_proj" for part in "qkvo"}
    assert {name.rpartition(".")[0] for name in seen["held"]} == projections | {f"{layers}.1.{mixer}_norm"}
    assert set(seen["still"][0]) >= set(seen["held"])  # RWKV-7 has weights that are zero and move from the second step
    assert set(seen["still"][1]) == set(seen["held"])
    assert seen["still"][3] == []


def test_hybrids_with_attention():
    for family, seen in train("gla", "retnet", "samba").items():
        check(family, seen)


@pytest.mark.slow  # their kernels take long in Triton's interpreter
@pytest.mark.parametrize("family", ["gated_deltanet", "delta_net", "rwkv7", "kda"])
def test_more_hybrids_with_attention(family):
    check(family, train(family)[family])
