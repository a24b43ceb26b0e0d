"""trackio: a database on this machine, in TRACKIO_DIR or where trackio keeps it."""

from collections.abc import Mapping
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.trackers.tracking import PROJECT, Tracker


class Trackio(Tracker):
    """An interrupted run goes on under its name; steps past its checkpoint are there twice, with the same numbers."""

    def __init__(self, folder: Path, config: RunConfig, first_step: int) -> None:
        import trackio

        self._run = trackio.init(
            project=PROJECT,
            name=f"{folder.name}-{config.hash}",
            config=config.to_json(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


make = Trackio
