"""trackio."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from latebloom.config import RunConfig
from latebloom.trackers.tracking import PROJECT, Tracker, TrackerSession


@dataclass(frozen=True, kw_only=True)
class Trackio(Tracker):
    """trackio: a database on this machine; show it with `trackio show`."""

    package: ClassVar = "trackio"

    name: Literal["trackio"] = "trackio"

    def build(self, folder: Path, config: RunConfig, first_step: int) -> TrackerSession:
        """Open a session. A resumed run keeps its name; steps after its checkpoint are recorded twice."""
        import trackio

        return trackio.init(
            project=PROJECT,
            name=f"{folder.name}-{config.hash}",
            config=config.to_json(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
