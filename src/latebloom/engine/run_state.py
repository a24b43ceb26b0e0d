"""The state of one run of a trainer on the host."""

from dataclasses import dataclass, field
from typing import Any

from latebloom.config import RunConfig
from latebloom.delay.policy import Stage, Switch, stage_at

_SAVED = ("summed", "failed_step", "phase_done", "rate_done")


@dataclass
class RunState:
    """The state of a run apart from its tensors."""

    config: RunConfig
    switch: Switch = field(default_factory=Switch)
    summed: int = 0
    """Steps since the sums of losses were read."""
    failed_step: int | None = None
    """The first step whose loss, gradient or weights were not finite."""
    phase_done: str = ""
    """The phase of the last step; at the switch it differs from that of the next."""
    rate_done: float = 0.0
    """The learning rate of the last step."""
    _stage: tuple[int | None, Stage] | None = None

    def stage(self, step: int) -> Stage:
        """Return the stage of the delay policy at a step."""
        # It is computed again only where it changes: at the switch, and while the gate rises.
        if self._stage is None or self._stage[0] != self.switch.step or 0.0 < self._stage[1].gate < 1.0:
            self._stage = self.switch.step, stage_at(self.config.delay, step, self.switch.step)
        return self._stage[1]

    def state_dict(self) -> dict[str, Any]:
        """Return plain data that `load_state_dict` reads."""
        switch = {"switch_step": self.switch.step, "switch_reason": self.switch.reason}
        return switch | {"memory": dict(self.switch.memory)} | {name: getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.switch = Switch(state["switch_step"], state["switch_reason"], dict(state["memory"]))
        for name in _SAVED:
            setattr(self, name, state[name])
