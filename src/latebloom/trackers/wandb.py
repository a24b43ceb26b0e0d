"""Weights & Biases: offline in FOLDER/wandb unless WANDB_MODE says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.trackers.tracking import PROJECT, Tracker


class WeightsAndBiases(Tracker):
    """Each start is a run of its own there; the starts of an interrupted run share a group."""

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


make = WeightsAndBiases
