"""The progress of one run or many: a live bar in a terminal, a few lines in a log."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.outcome import Progress as Seen
from latebloom.engine.pause import has_reached
from latebloom.errors import CheckpointError
from latebloom.evaluation.result import CLAIM
from latebloom.studies.plan import Stage
from latebloom.studies.stacks import NO_STOPS, Stops

if TYPE_CHECKING:
    from latebloom.probes.probe import Probe
    from latebloom.results.collect import StudyRun
    from latebloom.results.probe_runs import ProbeResults

SECONDS_BETWEEN_DRAWINGS = 0.1
SHARE_OF_DRAWING = 0.05
"""Of the time of this process, at most: with ten thousand runs a drawing takes a fiftieth of a second."""
SECONDS_BETWEEN_LINES = 300
"""Where there is no terminal, the first report after so long writes a line: a tenth of a study can be an hour."""
MANY = 100
"""Of more runs, not every end of a run is drawn at once."""
FEW = 4
"""Up to this many runs have a line each."""
WIDE = 80
"""Narrower terminals get a shorter bar."""
ENOUGH_TO_TELL = 0.01
"""The share of the work after which the time left is shown: before that it is mostly start-up time."""
TESTING_SHARE = 0.1
"""The share of a run that stands for its final evaluation."""


class _BarWithLines(Progress):
    """A bar with lines below it, which are shortened if the terminal is too narrow."""

    lines: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in self.lines:
            yield Text(line, no_wrap=True, overflow="ellipsis")


@dataclass
class _Run:
    config: RunConfig
    seen: Seen | None
    """Its last report."""
    share_before: float | None
    """The share that was done earlier, which says nothing of the pace; None until a continued run reports it."""
    steps: int
    """The step up to which it is trained: its last one, or that of a pause."""
    start: int = 0
    """The step at which a round of tuning before this one has paused it."""

    @property
    def size(self) -> int:
        """The steps that it is trained for from there on."""
        return self.steps - self.start

    @property
    def is_over(self) -> bool:
        """Whether it is finished, failed, or paused where it should be."""
        if self.seen is None:
            return False
        return self.seen.phase in ("done", "failed") or (self.seen.phase == "paused" and self.seen.step >= self.steps)

    @property
    def has_failed(self) -> bool:
        return self.seen is not None and self.seen.phase == "failed"

    @property
    def share(self) -> float:
        """The share that is done; a failed run has nothing left to do."""
        if self.seen is None or self.has_failed:
            return float(self.has_failed)
        tested = self.seen.tested if self.seen.phase != "paused" or self.is_over else 0.0
        trained = min(1.0, max(0, self.seen.step - self.start) / self.size)
        return (1 - TESTING_SHARE) * trained + TESTING_SHARE * tested


class RunProgress:
    """One bar for all runs: how many are done, running and failed, and about how much time is left.

    A few runs have a line each, with loss and held-out accuracy; of many, the two best arms are shown. Where there is
    no terminal, the same is written as a line at each tenth of the work, and at the first report after five minutes
    without a line. Use as a context manager.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.stage = Stage("")
        """The purpose of the next set of runs."""
        self._runs: dict[str, _Run] = {}
        self._earlier: list[_Run] = []
        """What runs did in rounds of tuning before the current one, after which they went on."""
        self._bars = _BarWithLines(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20 if self.console.width >= WIDE else 6),
            TextColumn("{task.fields[stand]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._bars.add_task("", total=None, stand="starting")
        self._logged: set[object] = set()
        self._began, self._drawn = time.monotonic(), 0.0
        self._written = self._began
        """When the last line was written to a log."""
        self._last, self._left, self._cost = "", 0, 0.0
        """The run that reported since the last drawing, how many are not over, and the seconds of a drawing."""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._last and error[0] is None:
            self._draw(self._last)
        self._bars.stop()

    def expect(self, configs: Mapping[str, RunConfig], folder: Path | None, stops: Stops = NO_STOPS) -> None:
        """Begin a set of runs, each in `folder/name`, to its end or its pause; those that have been there are done."""
        for name, config in configs.items():
            place = folder and RunFolder(folder / name)
            seen = place and _finished_before(place, config.training.steps)
            stop = stops.get(name)
            if seen is None and place and stop is not None and has_reached(place, stop):
                seen = Seen(stop.step, config.training.steps, "paused", tested=1.0)
            run = _Run(config, seen, None, config.training.steps if stop is None else stop.step)
            before = self._runs.get(name)
            if before is not None and before.is_over and before.steps < run.steps:
                self._earlier.append(before)
                run.start = before.steps
            self._runs[name] = run
            if run.seen is not None or place is None or not place.config_file.exists():
                run.share_before = run.share
        self._logged.clear()
        self._left = sum(not run.is_over for run in self._runs.values())
        self._draw()

    def show(self, name: str, seen: Seen) -> None:
        """Take in what a run reports."""
        run = self._runs[name]
        if run.seen is not None and run.seen.phase == "done":
            return  # a resumed stack reports on all its members, including those that were done
        self._left += run.is_over
        run.seen, self._last = seen, name
        self._left -= run.is_over
        if run.share_before is None:
            run.share_before = run.share
        # A stack reports on hundreds of runs at once.
        wait = max(SECONDS_BETWEEN_DRAWINGS, self._cost / SHARE_OF_DRAWING)
        is_news = run.is_over and (len(self._runs) <= MANY or not self._left)
        if is_news or time.monotonic() - self._drawn > wait:
            self._draw(name)
            self._drawn = time.monotonic()

    def _draw(self, last: str = "") -> None:
        """Draw the state of all runs, and the arms that are compared with the run that reported last."""
        began, self._last = time.perf_counter(), ""
        told = {name: run.seen for name, run in self._runs.items() if run.seen is not None}
        # A run that waits at a pause, until others can be forked from it, is not running.
        running = [one for name, one in told.items() if not self._runs[name].is_over and one.phase != "paused"]
        failed = sum(seen.phase == "failed" for seen in told.values())
        over = sum(run.is_over for run in self._runs.values())
        stand = f"{over - failed} done, {len(running)} running{f', {failed} failed' * bool(failed)}"
        total = len(self._runs) + len(self.stage.later)
        is_few = total <= FEW
        stage = ": ".join(filter(None, (self.stage.purpose, "" if is_few else _steps(running))))
        details = self._run_lines(told) if is_few else self._leaders(told, last)
        left = ", ".join(filter(None, (self._time_left(), stage)))
        self._bars.lines = tuple(filter(None, (left, *details)))
        runs = f"{total} run{'s' * (total > 1)}"
        parts = [*self._runs.values(), *self._earlier]
        work = sum(run.size for run in parts) + sum(self.stage.later) + self.stage.going_on
        share = sum(run.size * run.share for run in parts) / max(1, work)
        self._bars.update(self._bar, description=runs, total=float(total), completed=total * share, stand=stand)
        # The log has a line where a stage begins, at each tenth of the work, after some minutes without one, and at the
        # end. Of a few runs it has one for each phase, and none before the first report, so that an early error stands
        # alone.
        tenth = 11 if over == total else int(10 * share)
        news = {*range(tenth + 1), *((name, seen.phase) for name, seen in told.items() if is_few)}
        is_late = time.monotonic() - self._written > SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (news - self._logged or is_late) and (last or not is_few):
            self._logged |= news
            self._written = time.monotonic()
            self.console.print(f"{runs}: {', '.join((stand, *self._bars.lines))}", highlight=False, soft_wrap=True)
        self._cost = time.perf_counter() - began

    def _time_left(self) -> str:
        """Return the time left at the pace so far, or nothing if it is not known yet; failed runs do not count."""
        going_on = [run for run in (*self._runs.values(), *self._earlier) if not run.has_failed]
        here = sum(run.size * (run.share - (run.share_before or 0.0)) for run in going_on)
        to_do = sum(self.stage.later) + self.stage.going_on + sum(run.size * (1 - run.share) for run in going_on)
        if to_do <= 0 or here <= ENOUGH_TO_TELL * (here + to_do):
            return ""
        return f"about {timedelta(seconds=round(to_do * (time.monotonic() - self._began) / here))} left"

    def _run_lines(self, told: Mapping[str, Seen]) -> Iterable[str]:
        """Yield a line for each run; narrow terminals leave out the loss and the accuracy at the training length."""
        share_seed = len({name.rpartition("/")[2] for name in self._runs}) == 1 and "/" in next(iter(self._runs))
        width = self.console.width if self.console.is_terminal else 1_000
        for name, seen in told.items():
            config = self._runs[name].config
            length, withheld = config.training.length, config.delay.withhold if config.delay is not None else ()
            asked = [answer for answer in config.task.answers if answer not in withheld]
            of = "+".join(asked) if withheld and seen.phase == "delayed" else "acc"
            line = f"{name.rpartition('/')[0] if share_seed else name}: step {seen.step}/{seen.steps} {seen.phase}"
            for label, value, form in (
                (f"{of}@{CLAIM * length}", seen.accuracy_beyond, ".0%"),
                (f"{of}@{length}", seen.accuracy, ".0%"),
                ("loss", seen.loss, ".3f"),
            ):
                part = "" if value is None else f", {label} {value:{form}}"
                line += part if len(line) + len(part) <= width else ""
            yield line

    def _leaders(self, told: Mapping[str, Seen], last: str) -> Iterable[str]:
        """Yield the two best groups of the comparison that a run belongs to: the arms of its task, or the settings
        that are tried for its arm. They are ranked by the last accuracy beyond the training length, once all answers
        are in the loss. A group is a folder of runs."""
        siblings = last.rpartition("/")[0].rpartition("/")[0]
        groups: dict[str, list[float]] = {}
        for name, seen in told.items():
            group = name.rpartition("/")[0]
            is_compared = siblings and group.rpartition("/")[0] == siblings and seen.phase != "delayed"
            if is_compared and seen.accuracy_beyond is not None:
                groups.setdefault(group, []).append(seen.accuracy_beyond)
        for group in sorted(groups, key=lambda group: -mean(groups[group]))[:2]:
            yield f"{mean(groups[group]):.0%} at {CLAIM}x: {self.stage.names.get(group, group)}"


def _steps(running: Sequence[Seen]) -> str:
    """Return how far runs are, if all have the same number of steps."""
    if len({one.steps for one in running}) != 1:
        return ""
    least, most = (which(one.step for one in running) for which in (min, max))
    return f"step {least}{f' to {most}' if most > least else ''} of {running[0].steps}"


def _finished_before(folder: RunFolder, steps: int) -> Seen | None:
    """Return the last report of a run that was finished before; None if it was not, or if more steps extend it."""
    if not folder.is_finished:
        return None
    try:
        if read_json(folder.result_file).get("steps", steps) != steps:
            return None
        evaluation = folder.read_evaluation()
    except CheckpointError:  # the run itself will say what is wrong
        return None
    beyond = round(CLAIM * evaluation.training_length)
    known = evaluation.accuracy(beyond) if beyond in evaluation.lengths else None
    return Seen(steps, steps, "done", accuracy_beyond=known, tested=1.0)


def probe_with_bar(
    runs: "Sequence[StudyRun]", probes: "Sequence[Probe]", out: Path, *, device: str | None, at_once: int | None = None
) -> "ProbeResults":
    """Measure every run with every probe, with a progress bar on a terminal."""
    from latebloom.results.probe_runs import probe_runs

    notes = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}", markup=False),  # an arm may have any name
        BarColumn(),
        TimeElapsedColumn(),
        console=notes,
        disable=not notes.is_terminal,
    )
    with bars:
        bar = bars.add_task("probing", total=1.0)

        def report(what: str, share: float) -> None:
            bars.update(bar, description=what, completed=share)

        return probe_runs(runs, probes, out, device=device, at_once=at_once, report=report)
