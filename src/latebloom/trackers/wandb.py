"""Weights & Biases."""

import os
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
        """Open a session in FOLDER/wandb. Each start is a W&B run; the starts of a resumed run share a group."""
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            group=f"{folder.name}-{config.hash}",
            config=config.to_json(),
            dir=str(folder),
            mode=mode,  # pyright: ignore[reportArgumentType] (wandb checks it)
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
