"""Data flows one way: no room imports a later one, and the core imports nothing but torch."""

import ast
import sys
from pathlib import Path

import pytest

import latebloom

SOURCE = Path(latebloom.__file__).parent
COMMON = {"errors", "choice", "fields", "differences"}
MAY_IMPORT = {
    "tasks": COMMON | {"tasks", "kernels"},
    "kernels": {"kernels"},
    "models": COMMON | {"models", "kernels", "validation"},
    "delay": COMMON | {"delay"},
    "evaluation": COMMON | {"evaluation", "tasks"},
    "engine": COMMON | {"engine", "config", "kernels", "tasks", "models", "delay", "evaluation"},
    "trackers": COMMON | {"trackers", "config", "evaluation", "engine"},
    "probes": COMMON | {"probes", "delay"},
    "studies": COMMON | {"studies", "config", "recipes", "delay", "evaluation", "models", "results", "tasks", "engine"},
    "bench": COMMON
    | {"bench", "config", "delay", "evaluation", "kernels", "models", "recipes", "studies", "tasks", "engine"},
    "results": COMMON | {"results", "config", "evaluation", "engine"},
    "report": COMMON | {"report", "evaluation", "results"},
}
CORE = ("kernels", "tasks", "models", "delay", "evaluation", "engine", "probes")


def imports(file: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_before_it(room):
    for file in (SOURCE / room).rglob("*.py"):
        inner = {name.split(".")[1] for name in imports(file) if name.startswith("latebloom.")}
        assert inner <= MAY_IMPORT[room], f"{file.relative_to(SOURCE)} imports {inner - MAY_IMPORT[room]}"


@pytest.mark.parametrize("room", CORE)
def test_the_core_imports_nothing_but_torch_when_it_is_imported(room):
    for file in (SOURCE / room).rglob("*.py"):
        outer = {name.split(".")[0] for name in imports(file, top_level_only=True)} - {"latebloom", "torch"}
        allowed = {"triton"} if file.stem.endswith("_triton") else set()
        assert outer - allowed <= set(sys.stdlib_module_names), f"{file.relative_to(SOURCE)} imports {outer}"


def test_triton_is_imported_only_where_it_is_used():
    for file in SOURCE.rglob("*.py"):
        if not file.stem.endswith("_triton"):
            eager = imports(file, top_level_only=True)
            assert not any(name.split(".")[-1].endswith("_triton") or name == "triton" for name in eager), file


def test_no_file_has_grown_past_one_idea():
    long = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
