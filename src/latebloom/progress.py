"""Progress bars for runs: a line each, with what a person wants to know while waiting."""

import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from latebloom.training.loop import Observer
from latebloom.training.loop import Progress as Seen

SECONDS_BETWEEN_DRAWINGS = 0.1
TESTING_SHARE = 0.1
"""The part of a bar that stands for the evaluation at the end."""


class RunBars:
    """Live bars on a terminal; a plain line now and then where there is none. Use as a context manager."""

    def __init__(self, names: list[str], training_length: int, beyond: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        at, far = f"acc@{training_length}", f"acc@{beyond * training_length}"
        self._bars = Progress(
            TextColumn("[bold]{task.description:<6}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[step]:>11}"),
            TextColumn("{task.fields[phase]:<8}"),
            TextColumn("loss {task.fields[loss]:>6}"),
            TextColumn(f"{at} {{task.fields[near]:>5}}"),
            TextColumn(f"{far} {{task.fields[far]:>5}}"),
            TimeElapsedColumn(),
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


class CrowdBar:
    """One bar for many runs: how many are done or have failed, and how the others stand. Use as a context manager."""

    def __init__(self, names: list[str], console: Console | None = None, what: str = "") -> None:
        self.console = console or Console(file=sys.stderr)
        self._what = what
        self._seen: dict[str, Seen | None] = dict.fromkeys(names)
        self._bars = _BarWithLines(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[stand]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._bars.add_task(f"{len(names)} runs", total=float(len(names)), stand="starting")
        self._said = -1
        self._drawn = 0.0
        self._before, self._began = 0, time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def count_finished(self, names: list[str]) -> None:
        """Runs that were finished before; they say nothing of how long the others take."""
        for name in names:
            self._seen[name] = Seen(1, 1, "done", tested=1.0)
        self._before = len(names)
        if names:
            self._bars.reset(self._bar, completed=self._before)
            self._draw()

    def show(self, name: str, seen: Seen) -> None:
        self._seen[name] = seen
        now = time.monotonic()
        is_over = seen.phase in ("done", "failed")
        if is_over or now - self._drawn > SECONDS_BETWEEN_DRAWINGS:  # a stack tells of hundreds at once
            self._drawn = now
            self._draw(seen)

    def _draw(self, seen: Seen | None = None) -> None:
        """The stand of all, and of the run that was seen last."""
        started = [one for one in self._seen.values() if one is not None]
        done = sum(_share(one) for one in started)
        finished, failed = (sum(one.phase == phase for one in started) for phase in ("done", "failed"))
        losses = sorted(one.loss for one in started if one.loss is not None)
        loss = _number(losses[len(losses) // 2] if losses else None, ".3f")
        stand = f"{finished} done, {len(started) - finished - failed} running"
        stand += f", {failed} failed" if failed else ""
        last = f"step {seen.step}/{seen.steps}, {seen.phase}, median loss {loss}" if seen else ""
        stage = ": ".join(part for part in (self._what, last) if part)
        lines = (*((stage,) if stage else ()), *self._leaders())
        self._bars.lines = lines
        self._bars.update(self._bar, completed=done, stand=stand)
        tenth = 11 if finished + failed == len(self._seen) else int(10 * done / len(self._seen))
        if not self.console.is_terminal and tenth > self._said:
            self._said = tenth
            said = ", ".join((stand, *self._left(done), *lines))
            self.console.print(f"{len(self._seen)} runs: {said}", highlight=False, soft_wrap=True)

    def _left(self, done: float) -> tuple[str, ...]:
        """How long the rest takes at the pace so far, if there is one."""
        to_do = len(self._seen) - done
        if to_do <= 0 or done <= self._before:
            return ()
        seconds = to_do * (time.monotonic() - self._began) / (done - self._before)
        return (f"about {timedelta(seconds=round(seconds))} left",)

    def _leaders(self) -> tuple[str, ...]:
        """The best groups of runs so far by held-out accuracy beyond the training length; a group is a folder."""
        groups: dict[str, list[float]] = {}
        for name, one in self._seen.items():
            if one is not None and one.accuracy_beyond is not None and "/" in name:
                groups.setdefault(name.rpartition("/")[0], []).append(one.accuracy_beyond)
        best = sorted(groups, key=lambda group: -mean(groups[group]))[:2]
        return ("beyond: " + ", ".join(f"{group} {mean(groups[group]):.0%}" for group in best),) if best else ()


class StudyBar:
    """A study's stand: runs done, running and failed, the time left, and how its arms do so far."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.what = ""
        """What the next runs are for, in a word or two."""
        self._crowd: CrowdBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def expect(self, configs: Mapping[str, object], folder: Path) -> None:
        """Another set of runs begins; those that are finished count as done."""
        self._end()
        self._crowd = CrowdBar(list(configs), self.console, self.what)
        self._crowd.__enter__()
        self._crowd.count_finished([name for name in configs if (folder / name / "result.json").exists()])

    def show(self, name: str, seen: Seen) -> None:
        if self._crowd is not None:
            self._crowd.show(name, seen)

    def _end(self) -> None:
        if self._crowd is not None:
            self._crowd.__exit__(None, None, None)
            self._crowd = None
