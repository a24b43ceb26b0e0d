"""Progress bars for runs: a line each, with what a person wants to know while waiting."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import Observer
from latebloom.engine.outcome import Progress as Seen
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.studies.plan import Stage

SECONDS_BETWEEN_DRAWINGS = 0.1
WIDE = 112
"""Columns that the bar of a run needs for all that it tells; in narrower terminals it leaves out the loss and the time
gone by."""
ENOUGH_TO_TELL = 0.01
"""The part of the work from which on the time left is told: before that it is mostly that of starting."""
TESTING_SHARE = 0.1
"""The part of a bar that stands for the evaluation at the end."""


class RunBars:
    """Live bars on a terminal; a plain line now and then where there is none. Use as a context manager."""

    def __init__(self, names: list[str], training_length: int, beyond: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        at, far = f"acc@{training_length}", f"acc@{beyond * training_length}"
        is_wide = self.console.width >= WIDE
        self._bars = Progress(
            TextColumn("[bold]{task.description:<6}"),
            BarColumn(bar_width=20 if is_wide else 6),
            TextColumn("{task.fields[step]:>11}"),
            TextColumn("{task.fields[phase]:<8}"),
            *((TextColumn("loss {task.fields[loss]:>6}"),) if is_wide else ()),
            TextColumn(f"{at} {{task.fields[near]:>5}}"),
            TextColumn(f"{far} {{task.fields[far]:>5}}"),
            *((TimeElapsedColumn(),) if is_wide else ()),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        empty: dict[str, Any] = {"step": "", "phase": "starting", "loss": "-", "near": "-", "far": "-"}
        self._ids: dict[str, TaskID] = {name: self._bars.add_task(name, total=1.0, **empty) for name in names}
        self._said: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def observer(self, name: str) -> Observer:
        return lambda seen: self.show(name, seen)

    def show(self, name: str, seen: Seen) -> None:
        done = _share(seen)
        fields: dict[str, Any] = {
            "step": f"{seen.step}/{seen.steps}",
            "phase": seen.phase,
            "loss": _number(seen.loss, ".3f"),
            "near": _number(seen.accuracy, ".0%"),
            "far": _number(seen.accuracy_beyond, ".0%"),
        }
        self._bars.update(self._ids[name], completed=done, **fields)
        if not self.console.is_terminal:
            self._say_plainly(name, seen, fields)

    def _say_plainly(self, name: str, seen: Seen, fields: dict[str, Any]) -> None:
        """Logs want a few lines, not a redrawn bar: one a phase, and one for every tenth of the steps."""
        moment = (seen.phase, 10 * seen.step // seen.steps)
        if self._said.get(name) != moment:
            self._said[name] = moment
            self.console.print(
                f"{name}: step {fields['step']}, {fields['phase']}, loss {fields['loss']}, "
                f"accuracy {fields['near']} at the training length and {fields['far']} beyond",
                highlight=False,
                soft_wrap=True,
            )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _share(seen: Seen) -> float:
    """How much of a run is done; of one that has failed nothing is left to do."""
    return 1.0 if seen.phase == "failed" else (1 - TESTING_SHARE) * seen.step / seen.steps + TESTING_SHARE * seen.tested


class _BarWithLines(Progress):
    """A bar, and lines below it, which are shortened where a terminal is too narrow for them."""

    lines: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in self.lines:
            yield Text(line, no_wrap=True, overflow="ellipsis")


class StudyBar:
    """One bar for many runs, of which some are known only later: how many are done, running and failed, the time left,
    and how the arms do so far. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.stage = Stage("")
        """What the next set of runs is for."""
        self._now: dict[str, Seen | None] = {}
        self._before: dict[str, Seen | None] = {}
        self._pace = _Pace()
        self._bars = _BarWithLines(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[stand]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._bars.add_task("", total=None, stand="starting")
        self._said = -1
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def expect(self, configs: Mapping[str, RunConfig], folder: Path) -> None:
        """The stage's runs begin, each in `folder/name`; those that are finished count as done."""
        self._before |= self._now
        self._now = {name: _seen_before(RunFolder(folder / name)) for name in configs}
        self._pace.expect(configs, folder, self._now, self.stage)
        self._said = -1
        self._draw()

    def show(self, name: str, seen: Seen) -> None:
        known = self._now[name]
        if known is not None and known.phase == "done":
            return  # a stack that goes on tells of all its members, also of those that were done
        self._now[name] = seen
        self._pace.heed(name, seen)
        now = time.monotonic()
        is_over = seen.phase in ("done", "failed")
        if is_over or now - self._drawn > SECONDS_BETWEEN_DRAWINGS:  # a stack tells of hundreds at once
            self._drawn = now
            self._draw(name)

    def _draw(self, last: str = "") -> None:
        """The stand of all, and how those do that are like the run that was heard of last."""
        told = [one for one in (self._before | self._now).values() if one is not None]
        finished, failed = (sum(one.phase == phase for one in told) for phase in ("done", "failed"))
        total = len(self._before) + len(self._now) + len(self.stage.later)
        running = [one for one in told if one.phase not in ("done", "failed")]
        stand = f"{finished} done, {len(running)} running"
        stand += f", {failed} failed" if failed else ""
        stage = ": ".join(part for part in (self.stage.purpose, _steps(running)) if part)
        left = self._pace.left()
        lines = tuple(part for part in (", ".join(filter(None, (left, stage))), *self._leaders(last)) if part)
        self._bars.lines = lines
        done = total * self._pace.share
        self._bars.update(self._bar, description=f"{total} runs", total=float(total), completed=done, stand=stand)
        # Where there is no terminal: a line where a stage begins, one for every tenth of all, and one at the end.
        tenth = 11 if finished + failed == total else int(10 * self._pace.share)
        if not self.console.is_terminal and tenth > self._said:
            self._said = tenth
            self.console.print(f"{total} runs: {', '.join((stand, *lines))}", highlight=False, soft_wrap=True)

    def _leaders(self, last: str) -> tuple[str, ...]:
        """The best two so far of what is compared with a run: the arms of its task, or the choices of its arm; by the
        last accuracy beyond the training length, once everything is asked. Each is a folder of runs."""
        siblings = last.rpartition("/")[0].rpartition("/")[0]
        groups: dict[str, list[float]] = {}
        for name, one in (self._before | self._now).items():
            group = name.rpartition("/")[0]
            if one is None or one.accuracy_beyond is None or one.phase == "delayed":
                continue
            if siblings and group.rpartition("/")[0] == siblings:
                groups.setdefault(group, []).append(one.accuracy_beyond)
        best = sorted(groups, key=lambda group: -mean(groups[group]))[:2]
        return tuple(f"{mean(groups[group]):.0%} at {CLAIM}x: {self.stage.names.get(group, group)}" for group in best)


def _steps(running: Sequence[Seen]) -> str:
    """How far runs are, if they have as many steps to go."""
    if len({one.steps for one in running}) != 1:
        return ""
    least, most = (which(one.step for one in running) for which in (min, max))
    return f"step {least}{f' to {most}' if most > least else ''} of {running[0].steps}"


class _Pace:
    """How long runs take, by their steps. What was done before, or by runs that failed, says nothing of that."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: dict[str, int] = {}
        self._shares: dict[str, float] = {}
        self._first: dict[str, float] = {}
        """How much of a run was done when it was first heard of."""
        self._failed: set[str] = set()
        self._later = 0

    def expect(
        self, configs: Mapping[str, RunConfig], folder: Path, seen: Mapping[str, Seen | None], stage: Stage
    ) -> None:
        self._later = sum(stage.later)
        for name, config in configs.items():
            self._steps[name] = config.training.steps
            was_begun = RunFolder(folder / name).config_file.exists()
            known = seen[name]
            self._shares[name] = 0.0 if known is None else _share(known)
            if known is not None or not was_begun:
                self._first[name] = self._shares[name]

    def heed(self, name: str, seen: Seen) -> None:
        self._shares[name] = _share(seen)
        self._first.setdefault(name, self._shares[name])
        if seen.phase == "failed":
            self._failed.add(name)

    @property
    def share(self) -> float:
        """How much of all is done."""
        done = sum(steps * self._shares[name] for name, steps in self._steps.items())
        return done / max(1, sum(self._steps.values()) + self._later)

    def left(self) -> str:
        """How long the rest takes at the pace so far, if there is one."""
        going_on = self._steps.keys() - self._failed
        here = sum(self._steps[name] * (self._shares[name] - self._first.get(name, 0.0)) for name in going_on)
        to_do = self._later + sum(self._steps[name] * (1 - self._shares[name]) for name in going_on)
        if to_do <= 0 or here <= ENOUGH_TO_TELL * (here + to_do):
            return ""
        return f"about {timedelta(seconds=round(to_do * (time.monotonic() - self._began) / here))} left"


def _seen_before(folder: RunFolder) -> Seen | None:
    """What a run would say that was finished before; None if it was not."""
    if not folder.is_finished:
        return None
    evaluation = Evaluation.from_json(folder.read_json(folder.evaluation_file))
    beyond = round(CLAIM * evaluation.training_length)
    known = evaluation.accuracy(beyond) if beyond in evaluation.lengths else None
    return Seen(1, 1, "done", accuracy_beyond=known, tested=1.0)
