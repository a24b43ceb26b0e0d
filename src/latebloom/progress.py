"""Progress bars for runs: a line each, with what a person wants to know while waiting."""

import sys
import time
from collections.abc import Collection, Iterable, Mapping
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


class StudyBar:
    """One bar for many runs, of which some are known only later: how many are done, running and failed, the time left,
    and how the arms do so far. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._purpose = ""
        self._called: Mapping[str, str] = {}
        self._now: tuple[str, ...] = ()
        self._seen: dict[str, Seen | None] = {}
        self._later = 0
        self._bars = _BarWithLines(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[stand]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._bars.add_task("", total=None, stand="starting", left="")
        self._said: tuple[str, int] | None = None
        self._drawn = 0.0
        self._before, self._began = 0, time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def expect(
        self,
        names: Collection[str],
        folder: Path,
        purpose: str = "",
        later: int = 0,
        called: Mapping[str, str] | None = None,
    ) -> None:
        """Another set of runs in `folder` begins, for a purpose, and `later` more will follow. Those that are finished
        say nothing of how long the others take. Groups of runs are folders; `called` has other words for them."""
        self._purpose, self._called, self._now, self._later = purpose, called or {}, tuple(names), later
        for name in names:
            is_finished = (folder / name / "result.json").exists()
            self._seen[name] = Seen(1, 1, "done", tested=1.0) if is_finished else None
            self._before += is_finished
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
        stage = ": ".join(part for part in (self._purpose, last) if part)
        lines = (*((stage,) if stage else ()), *self._leaders())
        total = len(self._seen) + self._later
        left = self._left(total - done, done - self._before)
        self._bars.lines = lines
        self._bars.update(
            self._bar, description=f"{total} runs", total=float(total), completed=done, stand=stand, left=left
        )
        # A line for every tenth of all runs, one where another set of them begins, and one at the end.
        moment = self._purpose, 11 if finished + failed == total else int(10 * done / total)
        if not self.console.is_terminal and moment != self._said:
            self._said = moment
            said = ", ".join(part for part in (stand, left, *lines) if part)
            self.console.print(f"{total} runs: {said}", highlight=False, soft_wrap=True)

    def _left(self, to_do: float, done_here: float) -> str:
        """How long the rest takes at the pace so far, if there is one."""
        if to_do <= 0 or done_here <= 0:
            return ""
        seconds = to_do * (time.monotonic() - self._began) / done_here
        return f"about {timedelta(seconds=round(seconds))} left"

    def _leaders(self) -> tuple[str, ...]:
        """The best groups of this set of runs so far, by held-out accuracy beyond the training length."""
        groups: dict[str, list[float]] = {}
        for name in self._now:
            one = self._seen[name]
            if one is not None and one.accuracy_beyond is not None and "/" in name:
                groups.setdefault(name.rpartition("/")[0], []).append(one.accuracy_beyond)
        best = sorted(groups, key=lambda group: -mean(groups[group]))[:2]
        told = (f"{self._called.get(group, group)} {mean(groups[group]):.0%}" for group in best)
        return (f"beyond: {', '.join(told)}",) if best else ()
