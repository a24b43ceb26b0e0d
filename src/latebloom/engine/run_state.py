"""The state of one run of a trainer on the host."""

from dataclasses import dataclass, field
from typing import Any

from latebloom.config import RunConfig
from latebloom.delay.policy import Stage, Switch, stage_at
from latebloom.engine.schedule import rate_of_step


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
    _stage: Stage | None = None

    def stage(self, step: int) -> Stage:
        """Return the stage of the delay policy at a step."""
        if self._stage is None or 0.0 < self._stage.gate < 1.0:  # otherwise it changes only at the switch
            self._stage = stage_at(self.config.delay, step, self.switch.step)
        return self._stage

    def switched(self) -> None:
        """Drop the cached stage from before the switch."""
        self._stage = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return rate_of_step(self.config.training, self.config.delay, self.switch.step, step)

    def rate_factors(self) -> dict[str, float]:
        """Return the factors on the learning rate, by role of the parameters; they apply after a switch."""
        if self.switch.step is None:
            return {}
        training = self.config.training
        return {"recurrence": training.recurrence_factor, "attention": training.attention_factor}

    def unsupervised(self) -> set[str]:
        """Return the answers that were not in the loss of the last step."""
        delay = self.config.delay
        return set(delay.withhold) if delay is not None and self.phase_done == "delayed" else set()

    def state_dict(self) -> dict[str, Any]:
        """Return plain data that `load_state_dict` reads."""
        return {
            "switch_step": self.switch.step,
            "switch_reason": self.switch.reason,
            "memory": dict(self.switch.memory),
            "summed": self.summed,
            "failed_step": self.failed_step,
            "phase_done": self.phase_done,
            "rate_done": self.rate_done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.switch = Switch(state["switch_step"], state["switch_reason"], dict(state["memory"]))
        self.summed, self.failed_step = state["summed"], state["failed_step"]
        self.phase_done, self.rate_done = state["phase_done"], state["rate_done"]
        self._stage = None
