"""The progress of one run or many: a live bar in a terminal, a few lines in a log."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import Progress as Seen
from latebloom.errors import CheckpointError
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.studies.plan import Stage

SECONDS_BETWEEN_DRAWINGS = 0.1
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


class RunProgress:
    """One bar for all runs: how many are done, running and failed, and about how much time is left.

    A few runs have a line each, with loss and held-out accuracy; of many, the two best arms are shown. Where there is
    no terminal, the same is written as a line at each tenth of the work. Use as a context manager.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.stage = Stage("")
        """The purpose of the next set of runs."""
        self._now: dict[str, Seen | None] = {}
        self._before: dict[str, Seen | None] = {}
        self._lengths: dict[str, int] = {}
        self._pace = _Pace()
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
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def expect(self, configs: Mapping[str, RunConfig], folder: Path | None) -> None:
        """Begin a set of runs, each in `folder/name`; those that are finished count as done."""
        self._before |= self._now
        self._now = {
            name: folder and _finished_before(RunFolder(folder / name), config.training.steps)
            for name, config in configs.items()
        }
        self._lengths |= {name: config.training.length for name, config in configs.items()}
        self._pace.expect(configs, folder, self._now, self.stage)
        self._logged.clear()
        self._draw()

    def show(self, name: str, seen: Seen) -> None:
        """Take in what a run reports."""
        known = self._now[name]
        if known is not None and known.phase == "done":
            return  # a resumed stack reports on all its members, including those that were done
        self._now[name] = seen
        self._pace.update(name, seen)
        now = time.monotonic()
        is_over = seen.phase in ("done", "failed")
        if is_over or now - self._drawn > SECONDS_BETWEEN_DRAWINGS:  # a stack reports on hundreds of runs at once
            self._drawn = now
            self._draw(name)

    def _draw(self, last: str = "") -> None:
        """Draw the state of all runs, and the arms that are compared with the run that reported last."""
        told = [one for one in (self._before | self._now).values() if one is not None]
        finished, failed = (sum(one.phase == phase for one in told) for phase in ("done", "failed"))
        total = len(self._before) + len(self._now) + len(self.stage.later)
        running = [one for one in told if one.phase not in ("done", "failed")]
        stand = f"{finished} done, {len(running)} running{f', {failed} failed' * bool(failed)}"
        is_few = total <= FEW
        stage = ": ".join(part for part in (self.stage.purpose, "" if is_few else _steps(running)) if part)
        details = self._run_lines() if is_few else self._leaders(last)
        left = ", ".join(filter(None, (self._pace.left(), stage)))
        self._bars.lines = tuple(filter(None, (left, *details)))
        runs = f"{total} run{'s' * (total > 1)}"
        done = total * self._pace.share
        self._bars.update(self._bar, description=runs, total=float(total), completed=done, stand=stand)
        # The log has a line where a stage begins, at each tenth of the work, and at the end. Of a few runs it has one
        # for each phase, and none before the first report, so that an early error stands alone.
        tenth = 11 if finished + failed == total else int(10 * self._pace.share)
        news = {*range(tenth + 1), *((name, one.phase) for name, one in self._now.items() if one and is_few)}
        if not self.console.is_terminal and news - self._logged and (last or not is_few):
            self._logged |= news
            self.console.print(f"{runs}: {', '.join((stand, *self._bars.lines))}", highlight=False, soft_wrap=True)

    def _run_lines(self) -> tuple[str, ...]:
        """Return a line for each run; narrow terminals leave out the loss and the accuracy at the training length."""
        runs = self._before | self._now
        short = len({name.rpartition("/")[2] for name in runs}) == 1 and "/" in next(iter(runs), "")
        lines = []
        for name, seen in runs.items():
            if seen is None:
                continue
            length = self._lengths[name]
            parts = [
                f"{name.rpartition('/')[0] if short else name}: step {seen.step}/{seen.steps} {seen.phase}",
                _part(f"acc@{CLAIM * length}", seen.accuracy_beyond, ".0%"),
                _part(f"acc@{length}", seen.accuracy, ".0%"),
                _part("loss", seen.loss, ".3f"),
            ]
            width = self.console.width if self.console.is_terminal else 1_000
            text = ""
            for part in filter(None, parts):
                text += f"{', ' * bool(text)}{part}" if len(text) + 2 + len(part) <= width or not text else ""
            lines.append(text)
        return tuple(lines)

    def _leaders(self, last: str) -> tuple[str, ...]:
        """Return the two best groups of the comparison that a run belongs to: the arms of its task, or the settings
        that are tried for its arm. They are ranked by the last accuracy beyond the training length, once all answers
        are in the loss. A group is a folder of runs."""
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


def _part(name: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{name} {value:{form}}"


def _steps(running: Sequence[Seen]) -> str:
    """Return how far runs are, if all have the same number of steps."""
    if len({one.steps for one in running}) != 1:
        return ""
    least, most = (which(one.step for one in running) for which in (min, max))
    return f"step {least}{f' to {most}' if most > least else ''} of {running[0].steps}"


def _share(seen: Seen) -> float:
    """Return the share of a run that is done; a failed run has nothing left to do."""
    return 1.0 if seen.phase == "failed" else (1 - TESTING_SHARE) * seen.step / seen.steps + TESTING_SHARE * seen.tested


def _finished_before(folder: RunFolder, steps: int) -> Seen | None:
    """Return the last report of a run that was finished before; None if it was not, or if more steps extend it."""
    if not folder.is_finished:
        return None
    try:
        if folder.read_json(folder.result_file).get("steps", steps) != steps:
            return None
        evaluation = Evaluation.from_json(folder.read_json(folder.evaluation_file))
    except CheckpointError:  # the run itself will say what is wrong
        return None
    beyond = round(CLAIM * evaluation.training_length)
    known = evaluation.accuracy(beyond) if beyond in evaluation.lengths else None
    return Seen(1, 1, "done", accuracy_beyond=known, tested=1.0)


class _Pace:
    """The speed of the runs in steps. Work done earlier, and that of failed runs, does not count."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: dict[str, int] = {}
        self._shares: dict[str, float] = {}
        self._first: dict[str, float] = {}
        """The share of a run that was done at its first report."""
        self._failed: set[str] = set()
        self._later = 0

    def expect(
        self, configs: Mapping[str, RunConfig], folder: Path | None, seen: Mapping[str, Seen | None], stage: Stage
    ) -> None:
        self._later = sum(stage.later)
        for name, config in configs.items():
            self._steps[name] = config.training.steps
            was_begun = folder is not None and RunFolder(folder / name).config_file.exists()
            known = seen[name]
            self._shares[name] = 0.0 if known is None else _share(known)
            if known is not None or not was_begun:
                self._first[name] = self._shares[name]

    def update(self, name: str, seen: Seen) -> None:
        self._shares[name] = _share(seen)
        self._first.setdefault(name, self._shares[name])
        if seen.phase == "failed":
            self._failed.add(name)

    @property
    def share(self) -> float:
        """The share of all work that is done."""
        done = sum(steps * self._shares[name] for name, steps in self._steps.items())
        return done / max(1, sum(self._steps.values()) + self._later)

    def left(self) -> str:
        """Return the time left at the pace so far, or nothing if it is not known yet."""
        going_on = self._steps.keys() - self._failed
        here = sum(self._steps[name] * (self._shares[name] - self._first.get(name, 0.0)) for name in going_on)
        to_do = self._later + sum(self._steps[name] * (1 - self._shares[name]) for name in going_on)
        if to_do <= 0 or here <= ENOUGH_TO_TELL * (here + to_do):
            return ""
        return f"about {timedelta(seconds=round(to_do * (time.monotonic() - self._began) / here))} left"
