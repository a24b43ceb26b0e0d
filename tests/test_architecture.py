"""Data flows one way through the packages, and the core imports nothing but torch."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import latebloom

SOURCE = Path(latebloom.__file__).parent
COMMON = {"errors", "fields", "components", "plugins", "differences", "reading"}
CORE = {"layers", "tasks", "models", "delay", "evaluation", "engine", "probes"}
"""Packages that run where only torch is installed."""
MAY_IMPORT = {
    # The common ground, from the bottom up.
    "errors": set(),
    "reading": set(),
    "fields": {"errors"},
    "components": {"errors", "fields"},
    "plugins": {"errors", "components"},
    "validation": {"errors", "fields", "components"},
    "older_formats": set(),
    "differences": set(),
    # The core, and the configuration of a run.
    "layers": COMMON,
    "tasks": COMMON | {"layers"},
    "models": COMMON | {"delay", "layers", "validation", "older_formats"},
    "delay": COMMON,
    "evaluation": COMMON | {"tasks"},
    "config": COMMON | {"delay", "engine", "evaluation", "models", "older_formats", "tasks", "validation"},
    "engine": COMMON | {"config", "layers", "tasks", "models", "delay", "evaluation"},
    "probes": COMMON | {"delay", "engine", "evaluation", "layers", "models", "tasks"},
    # What is built from it.
    "results": COMMON | {"config", "evaluation", "engine", "layers", "probes"},
    "studies": COMMON | {"config", "recipes", "delay", "evaluation", "layers", "models", "results", "tasks", "engine"},
    "recipes": COMMON | {"config", "delay", "engine", "models", "studies", "tasks"},
    "trackers": COMMON | {"config", "evaluation", "engine"},
    "integrations": COMMON | {"config", "delay", "engine", "models"},
    "bench": COMMON | {"config", "delay", "evaluation", "layers", "models", "recipes", "studies", "tasks", "engine"},
    "report": COMMON | {"evaluation", "engine", "probes", "results"},
    "lm": COMMON
    | {"bench", "config", "delay", "engine", "evaluation", "integrations", "probes", "report", "results", "studies"}
    | {"trackers"},
    # What a user sees.
    "listing": COMMON | {"probes", "recipes", "studies", "trackers"},
    "checks": COMMON
    | {"config", "delay", "layers", "listing", "probes", "recipes", "studies", "tasks", "trackers", "validation"},
}
FREE = {"__init__", "__main__", "api", "cli", "demo", "lengths", "progress"}
FREE |= {"study", "arguments", "commands", "dry_run", "estimate"}
"""Commands and views at the top, which nothing below imports."""


def imports(file: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names if _is_module(f"{node.module}.{alias.name}")
            }
    return found


def _is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def files_of(part: str) -> list[Path]:
    return [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").is_file() else sorted((SOURCE / part).rglob("*.py"))


def imported_parts(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(file) if name.startswith("latebloom.")}


def test_every_package_and_module_has_its_place():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there == MAY_IMPORT.keys() | FREE


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part):
    for file in files_of(part):
        inner = imported_parts(file) - {part}
        assert inner <= MAY_IMPORT[part], f"{file.relative_to(SOURCE)} imports {inner - MAY_IMPORT[part]}"


def test_nothing_below_imports_a_command_or_a_view():
    for part in MAY_IMPORT:
        for file in files_of(part):
            assert not imported_parts(file) & (FREE - {"__init__"}), file


def modules() -> dict[str, Path]:
    names = {file: file.relative_to(SOURCE.parent).with_suffix("").as_posix() for file in SOURCE.rglob("*.py")}
    return {name.replace("/", ".").removesuffix(".__init__"): file for file, name in names.items()}


def test_there_is_no_cycle_of_imports():
    """Between modules, by what they import when they are imported; a package stands for what it re-exports."""
    known = modules()
    graph = {name: (imports(file, top_level_only=True) & known.keys()) - {name} for name, file in known.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("part", sorted(CORE | COMMON | {"config", "older_formats", "validation"}))
def test_the_core_imports_nothing_but_torch_when_it_is_imported(part):
    for file in files_of(part):
        outer = {name.split(".")[0] for name in imports(file, top_level_only=True)} - {"latebloom", "torch"}
        allowed = {"triton"} if file.stem.endswith("_triton") else set()
        assert outer - allowed <= set(sys.stdlib_module_names), f"{file.relative_to(SOURCE)} imports {outer}"


def test_the_delay_does_not_name_another_library():
    for file in files_of("delay"):
        named = [
            library for library in ("transformers", "accelerate", "lightning") if library in file.read_text().lower()
        ]
        assert named == [], file


def test_triton_is_imported_only_where_it_is_used():
    for file in SOURCE.rglob("*.py"):
        if not file.stem.endswith("_triton"):
            eager = imports(file, top_level_only=True)
            assert not any(name.split(".")[-1].endswith("_triton") or name == "triton" for name in eager), file


def test_no_file_is_longer_than_400_lines():
    long = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
