"""What a study is: arms to compare, each trained with the same seeds; and the studies by name.

    @study("mine")
    def mine(scale: str) -> Plan:
        '''Whether a longer delay helps.'''
        return Plan(arms=(Arm("early", ...), Arm("late", ...)), seeds=range(10))

A file with such functions is run like the named ones: `latebloom study my_file.py`.
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from latebloom.config import RunConfig
from latebloom.errors import ConfigError, require, unknown

Scale = Literal["tiny", "paper", "large"]
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Arm:
    """One thing that is compared: a configuration, trained with every seed of the study."""

    name: str
    """What the report calls it, such as joint or dat."""
    config: RunConfig
    """The run; the study sets its seed. Where there are choices, they are told by what they change in it."""
    choices: tuple[RunConfig, ...] = ()
    """Configurations of which the best on held-out seeds is trained instead, such as a grid of learning rates."""
    group: str = ""
    """Arms of one group are compared with each other; the task's name unless given."""
    seeds: Sequence[int] = ()
    """Seeds of its own, where it takes fewer or more than the study's others; the study's unless given."""
    against: str | tuple[str, ...] = ()
    """The arm of its group, or several, that it is held against, such as the one that it differs from in one thing.
    Where arms say so, only these pairs are compared: the fewer comparisons, the more each can show. Unless any does,
    all arms of a group are compared with each other."""

    @property
    def task(self) -> str:
        return self.group or self.config.task.name

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the arms that it is held against."""
        return (self.against,) if isinstance(self.against, str) else tuple(self.against)


@dataclass(frozen=True)
class Plan:
    """Arms, the seeds that each is trained with, and the held-out seeds on which choices are made."""

    arms: Sequence[Arm]
    seeds: Sequence[int]
    tuning_seeds: Sequence[int] = ()
    """On which every choice of an arm is tried."""
    second_round: Sequence[int] = ()
    """More held-out seeds, on which the best of them are tried: the best of many on few seeds is often a lucky one."""
    finalists: int = 3
    """How many of an arm's choices go on to the second round, if there is one."""

    def __post_init__(self) -> None:
        require(isinstance(self.arms, Sequence), "arms", self.arms, "a row of Arm(name, config)")
        _check_seeds("seeds", self.seeds)
        _check_seeds("tuning_seeds", self.tuning_seeds)
        _check_seeds("second_round", self.second_round)
        if not self.arms or not self.seeds:
            raise ConfigError("a study has at least one arm and one seed")
        for arm in self.arms:
            if not isinstance(arm, Arm) or not isinstance(arm.config, RunConfig):
                raise ConfigError(f"a study's arms are Arm(name, config); {arm!r} is none")
            _check_seeds(f"arm {arm.name}: seeds", arm.seeds)
            if arm.choices and not self.tuning_seeds:
                raise ConfigError(f"arm {arm.name}: choices take tuning_seeds to choose on")
        names = [(arm.task, arm.name) for arm in self.arms]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two arms of a study are called {double[1]} in {double[0]}; each name stands for one")
        self._check_against()
        reported = [(self.seeds, "seeds"), *((arm.seeds, f"arm {arm.name}: seeds") for arm in self.arms)]
        held_out = [(self.tuning_seeds, "tuning_seeds"), (self.second_round, "second_round")]
        for kept, what in held_out:
            both = sorted({seed for seeds, _ in reported for seed in seeds} & set(kept))
            if both:
                raise ConfigError(
                    f"{what}: a choice is made on seeds that the study does not report; in both: "
                    f"{', '.join(map(str, both))}"
                )
        if set(self.tuning_seeds) & set(self.second_round):
            raise ConfigError("second_round: its seeds are other ones than tuning_seeds")
        if self.second_round:
            if not self.tuning_seeds:
                raise ConfigError("second_round: it takes a first one; give tuning_seeds too")
            require(self.finalists >= 1, "finalists", self.finalists, "1 or more")
        for seeds, what in (*reported, *held_out):
            if len(set(seeds)) != len(seeds):
                raise ConfigError(f"{what}: a seed is there twice; each is one run")

    def _check_against(self) -> None:
        """That arms are held against others that there are, and every pair is compared once."""
        pairs: set[tuple[str, str, str]] = set()
        for arm in self.arms:
            if not isinstance(arm.against, str | tuple | list) or not all(isinstance(one, str) for one in arm.against):
                raise ConfigError(
                    f"arm {arm.name}: against: {arm.against!r} is neither the name of an arm nor a row of such names"
                )
            beside = {other.name: other for other in self.arms if other.task == arm.task and other is not arm}
            for other in arm.others:
                if other == arm.name:
                    raise ConfigError(f"arm {arm.name}: against: it cannot be held against itself")
                if not beside:
                    raise ConfigError(f"arm {arm.name}: against: there is no {other}, nor any other arm, on {arm.task}")
                if other not in beside:
                    raise unknown(f"arm {arm.name}: against", other, beside)
                lengths = arm.config.training.length, beside[other].config.training.length
                if lengths[0] != lengths[1]:
                    raise ConfigError(
                        f"arm {arm.name}: against: it is trained up to length {lengths[0]} and {other} up to "
                        f"{lengths[1]}; arms are compared at multiples of one length"
                    )
                if not self._shared_seeds(arm, beside[other]):
                    raise ConfigError(
                        f"arm {arm.name}: against: it shares no seed with {other}, and seeds are compared"
                    )
                if pairs & {(arm.task, arm.name, other), (arm.task, other, arm.name)}:
                    raise ConfigError(f"arm {arm.name}: against: it is compared with {other} already; once is enough")
                pairs.add((arm.task, arm.name, other))

    def seeds_of(self, arm: Arm) -> Sequence[int]:
        """The seeds that an arm is trained with."""
        return arm.seeds or self.seeds

    @property
    def shared_seeds(self) -> list[int]:
        """Of each pair of arms that is compared, how many seeds both have: of the pairs that are named among the arms
        of one group and training length, or else of all; two seeds or more make a comparison."""
        groups: dict[tuple[str, int], list[Arm]] = {}
        for arm in self.arms:
            groups.setdefault((arm.task, arm.config.training.length), []).append(arm)
        shared = []
        for arms in groups.values():
            named = [(arm, other) for arm in arms for other in arms if other.name in arm.others]
            shared += [self._shared_seeds(*pair) for pair in named or combinations(arms, 2)]
        return [seeds for seeds in shared if seeds > 1]

    def _shared_seeds(self, first: Arm, second: Arm) -> int:
        return len(set(self.seeds_of(first)) & set(self.seeds_of(second)))

    @property
    def run_count(self) -> int:
        """How many runs are reported."""
        return len(self.reported_steps)

    @property
    def tuning_count(self) -> int:
        """How many runs are made to choose settings."""
        first = sum(len(arm.choices) for arm in self.arms) * len(self.tuning_seeds)
        return first + len(self.second_round_steps)

    @property
    def second_round_steps(self) -> list[int]:
        """The steps of each run of the second round, if no choice fails in the first."""
        counts = ((arm, min(self.finalists, len(arm.choices)) * len(self.second_round)) for arm in self.arms)
        return [arm.config.training.steps for arm, count in counts for _ in range(count)]

    @property
    def reported_steps(self) -> list[int]:
        """The steps of each run that is reported."""
        return [arm.config.training.steps for arm in self.arms for _ in self.seeds_of(arm)]


def _check_seeds(what: str, seeds: object) -> None:
    is_row = isinstance(seeds, Sequence) and all(type(seed) is int and seed >= 0 for seed in seeds)
    require(is_row, what, seeds, "a row of whole numbers, such as range(3)")


@dataclass(frozen=True)
class Stage:
    """What a set of a study's runs is for, and what comes after it."""

    purpose: str
    later: Sequence[int] = ()
    """The steps of each run that comes after them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Words for folders whose own names say little: the choices of an arm."""


Study = Callable[[Scale], Plan]
STUDIES: dict[str, Study] = {}


def study(name: str) -> Callable[[Study], Study]:
    """Make a study known by a name; a decorator."""

    def add(function: Study) -> Study:
        STUDIES[name] = function
        return function

    return add


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
