"""Studies by name or from a file, and their plans; an error in a file becomes one sentence with its line."""

import inspect
from importlib import import_module
from pathlib import Path

from latebloom.components import load_entry_points, members_of_module
from latebloom.errors import ConfigError, unknown
from latebloom.plugins import explain_at, load_file
from latebloom.studies import (  # noqa: F401 (the named studies, which register themselves)
    capability,
    capability_longer,
    coupling,
    far,
    holding,
    mechanism,
    paper,
    recurrences,
    rivals,
    sharpness,
    timing,
)
from latebloom.studies.plan import Plan, Scale, Study

APART = ("latebloom.lm.study",)
"""Modules of named studies that import this package, and so cannot be imported at its top."""


def known_studies() -> dict[str, Study]:
    """Return the studies of this package and of plugins."""
    load_entry_points()
    for module in APART:
        import_module(module)
    return {name: Study.named(name) for name in Study.members}


def find_study(name: str) -> Study:
    """Return a study by name, or from a Python file: `file.py`, or `file.py:name` if it has several."""
    file, _, chosen = name.partition(":")
    if not file.endswith(".py"):
        if name not in known_studies():
            raise unknown("study", name, [*Study.members, "a Python file"])
        return Study.named(name)
    found = studies_in(Path(file))
    if chosen:
        if chosen not in found:
            raise unknown(f"study in {file}", chosen, found)
        return found[chosen]
    if len(found) > 1:
        raise ConfigError(f"study: {file} has {', '.join(found)}; choose one, such as {file}:{next(iter(found))}")
    return next(iter(found.values()))


def studies_in(file: Path) -> dict[str, Study]:
    """Return the studies that a file defines."""
    module = load_file(file, "study")
    members = [member for member in members_of_module(module.__name__) if issubclass(member, Study)]
    if not members:
        raise ConfigError(f'study: {file} defines no study; write @study("name") above a function that returns a Plan')
    return {member.name: Study.named(member.name) for member in members}


def plan_of(study: Study, scale: Scale) -> Plan:
    """Return the plan of a study at a scale; an error in its function becomes one sentence."""
    if scale not in study.scales:
        raise ConfigError(f"study {study.name}: there is no scale {scale}; choices: {', '.join(study.scales)}")
    try:
        plan = study.build(scale)
    except Exception as error:
        file = inspect.getfile(getattr(study, "function", type(study)))
        raise ConfigError(f"study {study.name}: {explain_at(error, file)}") from error
    if not isinstance(plan, Plan):
        raise ConfigError(f"study {study.name}: it returns {type(plan).__name__}, not a Plan")
    return plan
