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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from latebloom.components import (
    PACKAGE,
    UnknownComponentError,
    check_definitions,
    components_in,
    forget_module,
    origin_of,
)
from latebloom.errors import ConfigError, unknown

_loaded: dict[str, ModuleType] = {}
"""Modules that were loaded from files, by path."""
_contents: dict[str, bytes] = {}
"""Files as they were when they were loaded, and their neighbours; a study sends these, also if a file changes later."""
_sent: dict[str, Path] = {}
"""Files that another machine has sent, by their path there."""


def load(name: str, field: str = "--import") -> ModuleType:
    """Import a module or a Python file; what it defines is known by name from then on."""
    if name.endswith(".py"):
        return load_file(Path(name), field)
    found = _find(name)
    if found is None:
        raise ConfigError(f"{field}: there is no module {name!r}; give one that can be imported, or a Python file")
    if found.origin is not None and (known := _loaded.get(str(Path(found.origin).resolve()))):
        return known
    try:
        module = importlib.import_module(name)
        check_definitions(name)
        return module
    except Exception as error:
        raise ConfigError(f"{field}: {name}{_line(error, found.origin)}: {_explain(error, found.origin)}") from error


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def load_file(file: Path, field: str = "--import", *, as_path: Path | None = None) -> ModuleType:
    """Execute a Python file as a module, or return the module that it is already.

    `as_path` is where the file is on the machine that it was sent from.
    """
    if not file.is_file():
        raise ConfigError(f"{field}: there is no file {file}")
    path = str((as_path or file).resolve())
    content = file.read_bytes()
    if path in _loaded and _contents[path] == content:
        return _loaded[path]
    if path not in _loaded and (known := _imported_from(path)):
        return known
    name = f"{file.stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{field}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__latebloom_file__"] = path
    forget_module(name)
    try:
        with _neighbours_importable(file.resolve().parent, path):
            sys.modules[name] = module
            spec.loader.exec_module(module)
            check_definitions(module.__name__)
    except Exception as error:
        sys.modules.pop(name, None)
        forget_module(name)
        raise ConfigError(f"{field}: {file}{_line(error, spec.origin)}: {_explain(error, spec.origin)}") from error
    _loaded[path], _contents[path] = module, content
    return module


@contextmanager
def _neighbours_importable(folder: Path, path: str) -> Iterator[None]:
    """Make the modules beside a file importable, as for a script, and note that they come with the file.

    Modules that came with files of other folders do not stand in for neighbours of the same name.
    """
    tops = {entry.stem for entry in folder.iterdir()}
    home = Path(path).parent
    foreign = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in tops
        and (file := getattr(module, "__latebloom_file__", None))
        and Path(file).parent != home
    }
    for name in foreign:
        del sys.modules[name]
    loaded = {Path(file).stem: module for file, module in _loaded.items() if Path(file).parent == home}
    aliases = {name: module for name, module in loaded.items() if name not in sys.modules}
    sys.modules.update(aliases)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for imports inside functions
        for name in sys.modules.keys() - before:
            top = name.partition(".")[0]
            file = Path(getattr(sys.modules[name], "__file__", None) or "")
            if file == folder / f"{top}.py" or file.is_relative_to(folder / top):
                vars(sys.modules[name]).setdefault("__latebloom_file__", path)
                _contents[str(file)] = file.read_bytes()
        for name in aliases:
            sys.modules.pop(name, None)
        for name, module in foreign.items():
            sys.modules.setdefault(name, module)


def _imported_from(path: str) -> ModuleType | None:
    """Return the module that was imported from a file in the usual way, such as the script that is running."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).name == Path(path).name and str(Path(file).resolve()) == path:
            return module
    return None


@contextmanager
def imported(names: Iterable[str]) -> Iterator[set[str]]:
    """Import what a configuration names, and yield the names that are not here.

    If a component is unknown within the context, the error says what to import.
    """
    missing = {}
    for name in names:
        if name in _sent:
            load_file(_sent[name], "imports", as_path=Path(name))
        elif Path(name).is_file() if name.endswith(".py") else _find(name):
            load(name, "imports")
        else:
            kind = "file" if name.endswith(".py") else "module"
            missing[name] = f"the {kind} {name} that defines it is not here; give --import with where it is now"
    try:
        yield set(missing)
    except UnknownComponentError as error:
        hints = missing.values() or ["if it is your own, give its file with --import FILE.py"]
        raise ConfigError("; ".join([str(error), *hints])) from None


def plugin_sources(names: Iterable[str]) -> dict[str, bytes]:
    """Return the Python files among what a configuration imports and the files that came with them, by path."""
    wanted = {name for name in names if name.endswith(".py")}
    # A copy: looking for the attribute makes some modules import others.
    modules = [module for module in [*sys.modules.values()] if getattr(module, "__latebloom_file__", None) in wanted]
    files = sorted(wanted | {str(module.__file__) for module in modules})
    for name in files:
        if name not in _contents and Path(name).is_file():
            _contents[name] = Path(name).read_bytes()
    return {name: _contents[name] for name in files if name in _contents}


def receive_sources(sources: dict[str, bytes]) -> None:
    """Keep Python files that another machine has sent, to be imported under the paths that they have there."""
    here = {path: _sent.get(path, Path(path)) for path in sources}
    if all(here[path].is_file() and here[path].read_bytes() == content for path, content in sources.items()):
        return
    place = Path(tempfile.mkdtemp(prefix="latebloom-plugin-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for path, content in sources.items():
        _sent[path] = place / Path(path).relative_to(Path(path).anchor)
        _sent[path].parent.mkdir(parents=True, exist_ok=True)
        _sent[path].write_bytes(content)


def origins(settings: Any) -> list[str]:
    """Return what must be imported to read settings: the modules and files of their components."""
    found = {origin_of(type(component)) for component in components_in(settings)}
    return sorted(origin for origin in found if origin is not None)


def _explain(error: Exception, file: str | None) -> str:
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


def explain_at(error: Exception, file: str | None) -> str:
    """Return the message for an error in a user's file, with the line in that file if it is known."""
    # The line of an error in a helper function is that in the helper.
    line = _line(error, file)
    return f"{_explain(error, file)} ({Path(file).name}{line})" if file and line else _explain(error, file)


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
