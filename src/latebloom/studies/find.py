"""Studies by name or from a file, and their plans; a mistake in a file is one sentence with its place."""

import importlib
import importlib.util
import re
import sys
import traceback
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from latebloom.errors import ConfigError, unknown
from latebloom.studies.plan import SCALES, STUDIES, Plan, Scale, Study


def known_studies() -> dict[str, Study]:
    """The package's own studies, which are known once their files are imported, and any that were added."""
    importlib.import_module("latebloom.studies.named")
    return STUDIES


def find_study(name: str) -> tuple[str, Study]:
    """The study of a name, or the only one in a Python file (`file.py`, or `file.py:name` of several)."""
    known_studies()
    file, _, chosen = name.partition(":")
    if not file.endswith(".py"):
        if name not in STUDIES:
            raise unknown("study", name, [*STUDIES, "a Python file"])
        return name, STUDIES[name]
    found = studies_in(Path(file))
    if chosen:
        if chosen not in found:
            raise unknown(f"study in {file}", chosen, found)
        return chosen, found[chosen]
    if len(found) > 1:
        raise ConfigError(f"study: {file} has {', '.join(found)}; choose one, such as {file}:{next(iter(found))}")
    return next(iter(found.items()))


def studies_in(file: Path) -> dict[str, Study]:
    """The studies that a file defines; a mistake in it is an error with the line."""
    if not file.is_file():
        raise ConfigError(f"study: there is no file {file}")
    before = dict(STUDIES)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if sys.modules.get(file.stem) is module:  # half of it is none
            del sys.modules[file.stem]
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
        if isinstance(error, SyntaxError) and error.filename == spec.origin:
            lines.append(error.lineno)
        where = f", line {lines[-1]}" if lines else ""
        raise ConfigError(f"study: {file}{where}: {_in_words(error, spec.origin)}") from error
    found = {name: function for name, function in STUDIES.items() if before.get(name) is not function}
    STUDIES.clear()
    STUDIES.update(before)
    if not found:
        raise ConfigError(f'study: {file} defines none; write @study("name") above a function that returns a Plan')
    return found


def plan_of(name: str, function: Study, scale: Scale) -> Plan:
    """The study's plan at a scale; a mistake in its function is one sentence."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    try:
        plan = function(scale)
    except Exception as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        # A mistake in a helper is there, and not where the study's function calls it.
        where = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
        raise ConfigError(f"study {name}: {_in_words(error, file)}{where}") from error
    if not isinstance(plan, Plan):
        raise ConfigError(f"study {name}: it returns {type(plan).__name__}, not a Plan")
    return plan


def _in_words(error: Exception, file: str | None) -> str:
    """What is wrong in a study's file; where it is a setting that there is none of, the choices."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, SyntaxError) and error.filename == file:  # its own text has the place once more
        return f"SyntaxError: {error.msg}"
    misspelt = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    settings = None if misspelt is None else _our_settings(misspelt[1], error)
    if misspelt is not None and settings is not None:
        return str(unknown(misspelt[1], misspelt[2], [field.name for field in fields(settings)]))
    return f"{type(error).__name__}: {error}"


def _our_settings(name: str, error: Exception) -> Any:
    """The class of ours that was called by a name where an error is from; None if it was another's."""
    innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
    seen = list((innermost.f_globals | innermost.f_locals).values())
    within = [vars(module).get(name) for module in seen if isinstance(module, ModuleType)]
    # By itself, in a module that was imported, or as what `replace` was given.
    called = [one for one in [*seen, *within, *map(type, seen)] if isinstance(one, type) and one.__name__ == name]
    ours = [one for one in called if is_dataclass(one) and one.__module__.startswith("latebloom.")]
    return ours[0] if ours and len(set(called)) == 1 else None
