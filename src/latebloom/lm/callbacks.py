"""Callbacks of Trainer: the progress of training, and held-out losses in its log. They import Transformers."""

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from latebloom.errors import NonFiniteLossError
from latebloom.lm.seal import seal_checkpoint
from latebloom.lm.work import Work


class Observer(TrainerCallback):
    """Shows steps and loss, and stops training when a logged loss is not finite."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.work.begin("training", state.max_steps)
        self.step = 0
        self._advance(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        self._advance(state)
        if logs and "loss" in logs:
            if not isfinite(float(logs["loss"])):
                raise NonFiniteLossError(
                    f"the loss is {logs['loss']} at step {state.global_step}; use a smaller --learning-rate and a new "
                    "folder"
                )
            held = ", attention held back" * bool(logs.get("attention_held"))
            self.work.advance(
                0, note=f"step {state.global_step}/{state.max_steps}, loss {float(logs['loss']):.3f}{held}"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._advance(state)

    def _advance(self, state: Any) -> None:
        self.work.advance(state.global_step - self.step)
        self.step = state.global_step


class Seal(TrainerCallback):
    """Writes the digests of each checkpoint, after all processes and other callbacks have written their files."""

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            seal_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class HeldOutLog(TrainerCallback):
    """Logs the held-out loss at a multiple of the training context, for a trigger that waits for its plateau."""

    def __init__(self, measure: Callable[[float], float], multiple: float, every: int) -> None:
        self.measure, self.multiple, self.every = measure, multiple, every
        self.log: Callable[[dict[str, float]], None] = lambda _: None

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if state.global_step % self.every == 0:
            self.log({f"held_out_loss_{self.multiple:g}x": self.measure(self.multiple)})
