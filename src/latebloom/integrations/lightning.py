"""Delayed attention in Lightning.

    L.Trainer(callbacks=[DelayedAttention(until=at_step(6_000))])

The delay begins when training begins, is saved with every checkpoint and restored with it. Gate and phase are logged as
`attention_gate` and `attention_held`. For `at_tokens`, call `callback.delay.saw(tokens)` in `training_step`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import lightning as L

from latebloom.delay.controller import DelayedAttention as Controller
from latebloom.delay.controller import Hold
from latebloom.delay.find import Where
from latebloom.delay.triggers import Trigger, WhenPlateau
from latebloom.errors import ConfigError


class DelayedAttention(L.Callback):
    """Holds the attention of the module back until the trigger fires."""

    def __init__(
        self,
        until: Trigger,
        *,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        where: Where | None = None,
        measure: Callable[[float], float] | None = None,
        example: dict[str, Any] | None = None,
    ) -> None:
        self.until, self.ramp_steps = until, ramp_steps
        self.hold: Hold = hold
        self.where, self.measure, self.example = where, measure, example
        self.delay: Controller | None = None
        self._attached = False
        self._restored: dict[str, Any] | None = None
        self._told: Any = None
        self._in_validation = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise ConfigError(f"delay: one optimizer is needed, and this module has {len(trainer.optimizers)}")
        state = self._state_to_continue(trainer)
        self._detach()  # of a training before this one that did not come to its end
        steps = trainer.estimated_stepping_batches
        self.delay = Controller(
            pl_module,
            trainer.optimizers[0],
            until=self.until,
            hold=self.hold,
            ramp_steps=self.ramp_steps,
            steps=int(steps) if steps != float("inf") else None,
            measure=self.measure,
            where=self.where,
            example=self.example,
        )
        self._attached = True
        if state is not None:
            self.delay.load_state_dict(state)

    def _state_to_continue(self, trainer: L.Trainer) -> dict[str, Any] | None:
        """The state to go on from: of a checkpoint, or of this trainer's `fit` before; None where training begins."""
        restored, self._restored = self._restored, None
        if trainer.global_step == 0 or restored is not None:
            return restored
        if trainer.ckpt_path is None and self.delay is not None:
            return self.delay.state_dict()
        raise ConfigError(
            f"delay: the checkpoint at step {trainer.global_step} was saved without {type(self).__name__}, so it does "
            "not say whether attention was let in"
        )

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        if self.delay is not None:  # before Lightning clips, also where processes have shared their gradients
            self.delay.before_step()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.delay is None:
            return
        if not self._in_validation:
            self._report(trainer)
        pl_module.log_dict({"attention_gate": self.delay.gate, "attention_held": float(self.delay.holding)})

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._told = self._metric(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Told here once, and not after the batches that follow, where Lightning still shows the value.
        self._in_validation = self._report(trainer)

    def _report(self, trainer: L.Trainer) -> bool:
        """Tell the delay of a new value of the metric that it watches; True if there is one."""
        value, told = self._metric(trainer), self._told
        self._told = value
        if value is None or value is told or self.delay is None or trainer.sanity_checking:
            return False
        self.delay.report(float(value))
        return True

    def _metric(self, trainer: L.Trainer) -> Any:
        return trainer.callback_metrics.get(self.until.metric) if isinstance(self.until, WhenPlateau) else None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.delay is None:
            return
        if self.delay.holding:
            warnings.warn(
                "delay: training ended before attention was let in; it is still left out and was never trained",
                stacklevel=2,
            )
            return
        self._detach()

    def _detach(self) -> None:
        if self.delay is not None and self._attached:
            self.delay.remove()
        self._attached = False

    def state_dict(self) -> dict[str, Any]:
        return {} if self.delay is None else self.delay.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None
