"""The progress of a long piece of work: a bar in a terminal, a line for each stage in a log."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Work:
    """Shows one stage after another; without `visible` it shows nothing. Use as a context manager."""

    def __init__(self, visible: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.visible = visible
        columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[note]}"))
        self._bars = Progress(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (visible and self.console.is_terminal),
        )
        self._stage: TaskID | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def begin(self, stage: str, total: int | None, note: str = "") -> None:
        """Begin a stage of so much work; `total` is None if it is not known."""
        if self._stage is not None:
            self._bars.update(self._stage, total=1, completed=1)
        self._stage = self._bars.add_task(stage, total=total, note=note)
        self.note(stage)

    def note(self, text: str) -> None:
        """Write a line into a log; a terminal has the bar."""
        if self.visible and not self.console.is_terminal:
            seconds = time.monotonic() - self._began
            self.console.print(f"{seconds:.0f} s: {text}", highlight=False, markup=False, soft_wrap=True)

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """Add to what is done of the stage."""
        if self._stage is not None:
            self._bars.update(self._stage, advance=amount)
            if note is not None:
                self._bars.update(self._stage, note=note)
