"""Weights & Biases."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from latebloom.config import RunConfig
from latebloom.trackers.tracking import PROJECT, Tracker, TrackerSession


@dataclass(frozen=True, kw_only=True)
class WeightsAndBiases(Tracker):
    """Weights & Biases: offline in the run's folder unless WANDB_MODE is set; `wandb sync` uploads."""

    package: ClassVar = "wandb"

    name: Literal["wandb"] = "wandb"

    def build(self, folder: Path, config: RunConfig, first_step: int) -> TrackerSession:
        return WeightsAndBiasesSession(folder, config, first_step)


class WeightsAndBiasesSession(TrackerSession):
    """A run of W&B, in FOLDER/wandb. Each start is a separate W&B run; the starts of a resumed run share a group."""

    def __init__(self, folder: Path, config: RunConfig, first_step: int) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            group=f"{folder.name}-{config.hash}",
            config=config.to_json(),
            dir=str(folder),
            mode=mode,  # pyright: ignore[reportArgumentType] (wandb checks it)
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()
