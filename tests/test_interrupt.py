"""Ctrl-C in the first seconds of a command, while what it needs is imported: one line and status 130."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ENTRY = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["scripts"]["latebloom"]
MODULE, FUNCTION = ENTRY.split(":")

SCRIPT = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.{{handler}})  # whatever this suite was started with

class Interrupter:
    def find_spec(name, path=None, target=None):
        if name == {{moment!r}}:
            sys.meta_path.remove(Interrupter)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter)
from {MODULE} import {FUNCTION}
sys.argv = ["latebloom", *{{words!r}}]
{FUNCTION}()
"""


@pytest.mark.parametrize(
    "moment",
    ["latebloom.cli", "argparse", "rich.table", "torch", "torch.nn", "numpy", "latebloom.progress"],
)
def test_ctrl_c_while_something_is_imported_is_one_line(moment, tmp_path):
    words = ["train", "--recipe", "demo-dat", "--out", "run", "training.steps=100000"]
    script = SCRIPT.format(moment=moment, words=words, handler="default_int_handler")
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stderr == "latebloom: stopped at once; a run keeps its last checkpoint\n"
    assert ran.returncode == 130
    assert not (tmp_path / "run").exists()


LOSES_INTERRUPTS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from latebloom import cli
from latebloom.__main__ import main

def work(arguments):
    import os, signal
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    print("went on")

cli.main = work
main()
"""


def test_ctrl_c_is_not_lost_in_code_that_catches_everything():
    """Torch's import does so now and then."""
    ran = subprocess.run([sys.executable, "-c", LOSES_INTERRUPTS], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (130, "")


def test_a_command_whose_interrupts_are_ignored_goes_on_ignoring_them(tmp_path):
    """As a shell starts `latebloom ... &` from a script."""
    script = SCRIPT.format(moment="argparse", words=["list"], handler="SIG_IGN")
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "demo-dat" in ran.stdout


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["train", "--sed", "1"]])
def test_help_and_mistakes_in_the_words_do_not_wait_for_torch(words):
    script = f"import sys\nfrom {MODULE} import {FUNCTION}\ntry:\n    {FUNCTION}({words!r})\n"
    script += "finally:\n    assert 'torch' not in sys.modules"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "AssertionError" not in ran.stderr
    assert ran.returncode == (0 if "--help" in words else 2)
