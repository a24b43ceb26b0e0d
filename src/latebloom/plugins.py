"""Components from outside the package, in modules or Python files.

Installed plugins are found by their entry points (components.py). This module loads what a configuration or the command
line names, and reports a mistake in it as one sentence with its place.
"""

import atexit
import hashlib
import importlib
import importlib.util
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from latebloom.components import PACKAGE, components_in, forget_module, origin_of
from latebloom.errors import ConfigError, unknown

_loaded: dict[str, tuple[str, ModuleType]] = {}
"""Modules that were loaded from files, by path, each with a digest of the file."""
_sent: set[str] = set()
"""The paths of files that another machine has sent."""


def load(name: str, field: str = "--import") -> ModuleType:
    """Import a module or a Python file; what it defines is known by name from then on."""
    if name.endswith(".py"):
        return load_file(Path(name), field)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigError(f"{field}: there is no module {name!r}; give one that can be imported, or a Python file")
    if found.origin is not None and (known := _loaded.get(str(Path(found.origin).resolve()))):
        return known[1]
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{field}: {name}{_line(error, found.origin)}: {explain(error, found.origin)}") from error


def load_file(file: Path, field: str = "--import", *, as_path: Path | None = None) -> ModuleType:
    """Execute a Python file as a module, or return the module that it is already.

    `as_path` is where the file is on the machine that it was sent from.
    """
    if not file.is_file():
        raise ConfigError(f"{field}: there is no file {file}")
    path = str((as_path or file).resolve())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if path in _loaded and _loaded[path][0] == digest:
        return _loaded[path][1]
    if path not in _loaded and (known := _imported_from(path)):
        return known
    name = f"{file.stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{field}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__latebloom_file__"] = path
    forget_module(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        forget_module(name)
        raise ConfigError(f"{field}: {file}{_line(error, spec.origin)}: {explain(error, spec.origin)}") from error
    _loaded[path] = digest, module
    return module


def _imported_from(path: str) -> ModuleType | None:
    """Return the module that was imported from a file in the usual way, such as the script that is running."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).name == Path(path).name and str(Path(file).resolve()) == path:
            return module
    return None


def load_imports(names: Iterable[str]) -> dict[str, str]:
    """Import what a configuration names; return the reason for each file or module that is not there."""
    missing = {}
    for name in names:
        if name in _sent:
            continue
        if _is_here(name):
            load(name, "imports")
        else:
            kind = "file" if name.endswith(".py") else "module"
            missing[name] = f"the {kind} {name} that defines it is not here; give --import with where it is now"
    return missing


def _is_here(name: str) -> bool:
    try:
        return Path(name).is_file() if name.endswith(".py") else importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def plugin_sources(names: Iterable[str]) -> dict[str, bytes]:
    """Return the Python files among what a configuration imports, by path, to send them to another machine."""
    return {name: Path(name).read_bytes() for name in names if name.endswith(".py") and Path(name).is_file()}


def receive_sources(sources: dict[str, bytes]) -> None:
    """Load Python files that another machine has sent, under the paths that they have there."""
    for path, content in sources.items():
        if Path(path).is_file() and Path(path).read_bytes() == content:
            continue  # this machine has them too
        place = Path(tempfile.mkdtemp(prefix="latebloom-plugin-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        file = place / Path(path).name
        file.write_bytes(content)
        load_file(file, "imports", as_path=Path(path))
        _sent.add(path)


def origins(settings: Any) -> list[str]:
    """Return what must be imported to read settings: the modules and files of their components."""
    found = {origin_of(type(component)) for component in components_in(settings)}
    return sorted(origin for origin in found if origin is not None)


def explain(error: Exception, file: str | None) -> str:
    """Return the message for an error in a user's file, with the choices for an unknown setting of this package."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, SyntaxError) and error.filename == file:  # its own text repeats the place
        return f"SyntaxError: {error.msg}"
    misspelt = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    settings = None if misspelt is None else _our_settings(misspelt[1], error)
    if misspelt is not None and settings is not None:
        return str(unknown(misspelt[1], misspelt[2], [field.name for field in fields(settings)]))
    return f"{type(error).__name__}: {error}"


def _line(error: Exception, file: str | None) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _our_settings(name: str, error: Exception) -> Any:
    """Return the class of this package that was called by a name where an error was raised; None if it was another."""
    innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
    seen = list((innermost.f_globals | innermost.f_locals).values())
    within = [vars(module).get(name) for module in seen if isinstance(module, ModuleType)]
    # By itself, in a module that was imported, or as the argument of `replace`.
    called = [one for one in [*seen, *within, *map(type, seen)] if isinstance(one, type) and one.__name__ == name]
    ours = [one for one in called if is_dataclass(one) and one.__module__.startswith(f"{PACKAGE}.")]
    return ours[0] if ours and len(set(called)) == 1 else None
