"""TensorBoard: event files in FOLDER/tensorboard."""

import json
from collections.abc import Mapping
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.trackers.tracking import Tracker


class TensorBoard(Tracker):
    def __init__(self, folder: Path, config: RunConfig, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run had written past its checkpoint is hidden, not shown twice.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if first_step == 0:
            self._writer.add_text("configuration", f"```json\n{json.dumps(config.to_json(), indent=2)}\n```")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


make = TensorBoard
