"""Where the wall-clock time of runs goes, so that a study can tell which share of it is not training steps."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from latebloom.engine.files import write_json
from latebloom.engine.folder import read_json
from latebloom.errors import CheckpointError

STEPS = "steps"
PARTS = ("set-up", "capture", STEPS, "checks", "evaluation", "checkpoints")
"""Building models and loading checkpoints; capturing steps as CUDA graphs; training steps with their logs and the
measurements of triggers; regular checks of held-out accuracy and interference; the final test and those at pauses;
saving."""
TIMES_FILE = "times.json"


class Times:
    """The seconds of each part of one run or of a stack; every moment belongs to one part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._last = perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last lap for a part."""
        now = perf_counter()
        self.seconds[part] += now - self._last
        self._last = now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count seconds for another part."""
        self.seconds[source] -= seconds
        self.seconds[target] += seconds

    def add(self, more: Mapping[str, float]) -> None:
        """Add the seconds of earlier processes."""
        for part, seconds in more.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def share(self, runs: int) -> dict[str, float]:
        """Return the seconds of one of so many runs that were trained at once."""
        return {part: round(seconds / runs, 4) for part, seconds in self.seconds.items()}


def write_times(folder: Path, seconds: Mapping[str, float]) -> None:
    """Write the seconds of each part into the folder of a run or of a study."""
    write_json(folder / TIMES_FILE, {part: round(value, 4) for part, value in seconds.items()})


def read_times(folders: Iterable[Path]) -> dict[str, float]:
    """Return the seconds of each part, added up over the runs that have recorded them."""
    total = Times()
    for folder in folders:
        if (folder / TIMES_FILE).exists():
            with suppress(CheckpointError):  # no number depends on it, so a damaged one is left out
                seconds = read_json(folder / TIMES_FILE)
                total.add({part: value for part, value in seconds.items() if isinstance(value, int | float)})
    return total.seconds


def describe_times(seconds: Mapping[str, float]) -> str:
    """Return the share of the time that is not training steps, and its parts, in words; "" if nothing was recorded."""
    total = sum(seconds.values())
    if total <= 0:
        return ""
    rest = sorted(((s / total, part) for part, s in seconds.items() if part != STEPS), reverse=True)
    parts = ", ".join(f"{part} {share:.1%}" for share, part in rest if share >= 0.0005)
    return f"{1 - seconds.get(STEPS, 0.0) / total:.1%} of the time was not training steps{f' ({parts})' * bool(parts)}"
