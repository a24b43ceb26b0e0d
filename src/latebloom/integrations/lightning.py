"""Delayed attention in Lightning.

    L.Trainer(callbacks=[DelayedAttention(until=at_step(6_000))])

The delay begins when training begins, is saved with every checkpoint and restored with it. The gate is logged as
`attention_gate` and `attention_held`. For `at_tokens`, call `callback.delay.count_tokens(tokens)` in `training_step`.

With manual optimization there may be several optimizers. A step of the delay is one that each optimizer with parameters
of attention has done, so in a GAN the optimizer of the other network does not count.
"""

from collections import OrderedDict
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightning_callbacks

from latebloom.delay.gate import MARK
from latebloom.delay.marks import awaiting, mark_of
from latebloom.delay.triggers import AtFraction, WhenPlateau
from latebloom.errors import ConfigError
from latebloom.integrations.callback import DelayCallback

AVERAGING: Any = getattr(lightning_callbacks, "WeightAveraging", ())  # since Lightning 2.6


class DelayedAttention(DelayCallback, L.Callback):
    """Hold the attention of the module back until the trigger fires."""

    _restored: dict[str, Any] | None = None
    _last_value: Any = None
    _is_validation_metric = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        awaiting.add(pl_module)
        # Weight averaging replaces the weights of a checkpoint, without their mark, so this callback comes after it. A
        # new list, because Lightning is iterating over the present one. Its `Trainer` does not declare the attribute.
        callbacks = [one for one in trainer.callbacks if one is not self]  # type: ignore[attr-defined]
        last = max((i for i, one in enumerate(callbacks) if isinstance(one, AVERAGING)), default=None)
        if last is not None:
            trainer.callbacks = [*callbacks[: last + 1], self, *callbacks[last + 1 :]]  # type: ignore[attr-defined]

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        mark = mark_of(pl_module)
        if mark is not None and not hasattr(checkpoint["state_dict"], "_metadata"):
            weights: Any = OrderedDict(checkpoint["state_dict"])
            weights._metadata = {"": {MARK: mark}}
            checkpoint["state_dict"] = weights

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._begin(pl_module, trainer.optimizers, self._steps(trainer, pl_module), self._state_to_continue(trainer))

    def _steps(self, trainer: L.Trainer, pl_module: L.LightningModule) -> int | None:
        """Return the number of steps in this training, if it is known."""
        if pl_module.automatic_optimization:
            steps = trainer.estimated_stepping_batches
            return int(steps) if steps != float("inf") else None
        if isinstance(self.until, AtFraction):
            raise ConfigError(
                f"until: at_fraction {self.until.fraction:g} needs the number of steps, which Lightning does not know "
                "with manual optimization; use at_step"
            )
        return None

    def _state_to_continue(self, trainer: L.Trainer) -> dict[str, Any] | None:
        """Return the state of a checkpoint or of this trainer's previous `fit`; None if training begins."""
        restored, self._restored = self._restored, None
        if trainer.global_step == 0 or restored is not None:
            return restored
        if trainer.ckpt_path is None and self.delay is not None:
            return self.delay.state_dict()
        raise self._missing_state(trainer.global_step)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        if self.delay is not None:  # before Lightning clips, also in distributed training
            self.delay.before_step()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.delay is None:
            return
        if not self._is_validation_metric:
            self._report(trainer)
        pl_module.log_dict({"attention_gate": self.delay.gate, "attention_held": float(self.delay.attention_held)})

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last_value = self._metric(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Reported here once, because Lightning still shows the value after the following batches.
        self._is_validation_metric = self._report(trainer)

    def _report(self, trainer: L.Trainer) -> bool:
        """Report a new value of the metric to the delay; return whether there was one."""
        value, previous = self._metric(trainer), self._last_value
        self._last_value = value
        if value is None or value is previous or self.delay is None or trainer.sanity_checking:
            return False
        self.delay.report(float(value))
        return True

    def _metric(self, trainer: L.Trainer) -> Any:
        return trainer.callback_metrics.get(self.until.metric) if isinstance(self.until, WhenPlateau) else None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.delay is None else self.delay.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None
