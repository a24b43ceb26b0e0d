"""What the Makefile would install: little for the demo, everything for the tests."""

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("target", "installed"), [("demo", ["."]), ("lint", [".", '".[dev]"']), ("test", [".", '".[dev]"'])]
)
def test_a_target_installs_what_it_needs(target, installed, tmp_path):
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    root = Path(__file__).parent.parent
    commands = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    pip = [line for line in commands if "pip install --" in line and "--target" not in line]
    assert [line.split("--editable ")[1] for line in pip] == installed
    assert all(line.startswith("PIP_CONSTRAINT=constraints.txt ") for line in pip)
    assert not any("--quiet" in line for line in pip)
    apart = [line.split(" --target ")[1] for line in commands if " --target " in line]
    fla = "flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2"
    assert apart == ([] if target == "demo" else [f"{tmp_path / 'venv'}/fla {fla}"])
