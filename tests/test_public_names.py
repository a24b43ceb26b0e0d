"""The public names: imported when they are first used, and known to type checkers all the same."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import latebloom


def test_every_public_name_is_there_and_a_checker_sees_the_same():
    tree = ast.parse(Path(latebloom.__file__).read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("latebloom.")
        for alias in node.names
    }
    assert sorted(seen) == sorted(latebloom.__all__)
    for name, module in seen.items():
        __import__(str(module))
        assert getattr(latebloom, name) is getattr(sys.modules[str(module)], name)
    assert set(latebloom.__all__) <= set(dir(latebloom))


def test_importing_the_package_does_not_import_torch_and_a_room_is_found_by_its_name():
    script = "import latebloom, sys; print('torch' in sys.modules, latebloom.errors.__name__, latebloom.hybrid().width)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "latebloom.errors", "128"]


def test_a_misspelt_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'hybird'"):
        latebloom.hybird  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'hybird'"):
        exec("from latebloom import hybird")
