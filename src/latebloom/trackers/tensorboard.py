"""TensorBoard."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from latebloom.config import RunConfig
from latebloom.trackers.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class TensorBoard(Tracker):
    """TensorBoard: event files in the run's folder; show them with `tensorboard --logdir runs`."""

    package: ClassVar = "tensorboard"

    name: Literal["tensorboard"] = "tensorboard"

    def build(self, folder: Path, config: RunConfig, first_step: int) -> "TensorBoardSession":
        return TensorBoardSession(folder, config, first_step)


class TensorBoardSession:
    """Event files in FOLDER/tensorboard."""

    def __init__(self, folder: Path, config: RunConfig, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hide what an interrupted run has written after its checkpoint, because it is written again.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if first_step == 0:
            self._writer.add_text("configuration", f"```json\n{json.dumps(config.to_json(), indent=2)}\n```")

    def log(self, numbers: dict[str, float], *, step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()
