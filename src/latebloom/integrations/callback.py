"""The base of the callbacks for different trainers."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from latebloom.delay.example import Example
from latebloom.delay.find import Found, Where
from latebloom.delay.hooks import DelayedAttention
from latebloom.delay.kinds import KINDS, Kind
from latebloom.delay.marks import awaiting
from latebloom.delay.optimizers import Optimizers
from latebloom.delay.policy import Hold
from latebloom.delay.triggers import Trigger
from latebloom.errors import ConfigError, warn_user


class DelayCallback:
    """Keeps the settings of a delay until a trainer has a model and an optimizer."""

    def __init__(
        self,
        until: Trigger,
        *,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        warmup_steps: int = 0,
        where: Where | Found | None = None,
        kinds: Collection[Kind] = KINDS,
        allow: Collection[str] = (),
        measure: Callable[[float], float] | None = None,
        example: Example | None = None,
    ) -> None:
        self.until = until
        self._settings: dict[str, Any] = {"until": until, "hold": hold, "ramp_steps": ramp_steps}
        self._settings["warmup_steps"] = warmup_steps
        self._settings |= {"where": where, "kinds": kinds, "allow": allow, "measure": measure, "example": example}
        self.delay: DelayedAttention | None = None

    def _begin(self, model: nn.Module, optimizer: Optimizers, steps: int | None, state: dict[str, Any] | None) -> None:
        """Hold attention back, or continue from a state."""
        if self.delay is not None:
            self.delay.remove()  # in case an earlier training was interrupted
        self.delay = DelayedAttention(model, optimizer, steps=steps, **self._settings)
        if state is not None:
            self.delay.load_state_dict(state)

    def _missing_state(self, step: int) -> ConfigError:
        """Return the error for a checkpoint without the state of the delay."""
        return ConfigError(
            f"delay: the checkpoint at step {step} was saved without {type(self).__name__}, so it is not known whether "
            "attention was enabled"
        )

    def _end(self) -> None:
        """Restore the model, or warn if attention is still left out."""
        if self.delay is not None:
            awaiting.discard(self.delay.model)
        if self.delay is not None and not self.delay.attention_held:
            self.delay.remove()
        elif self.delay is not None:
            warn_user("delay: training ended before attention was enabled; it is still left out and was never trained")
