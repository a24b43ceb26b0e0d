"""Delayed attention training for one model: holds attention back, and lets it in when the trigger says so.

delay = DelayedAttention(model, until=at_step(6_000))
delay.attach(optimizer)
for batch in data:
    loss(model, batch).backward()
    delay.before_step()      # before clipping: what is held back has no gradient
    clip(model); optimizer.step(); optimizer.zero_grad()
    delay.after_step()       # the switch happens here, between two steps
"""

from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn

from latebloom.delay.find import find_attention
from latebloom.delay.triggers import Moment, Trigger, WhenBeyond
from latebloom.errors import ConfigError, require, unknown

Hold = Literal["bypass", "freeze", "ramp"]
HOLDS: dict[str, str] = {
    "bypass": "attention is left out of the stream until the switch",
    "freeze": "attention stands at its first weights and is not trained until the switch",
    "ramp": "attention is left out until the switch, then let in by a gate that rises from 0 to 1",
}

_delayed_models: WeakSet[nn.Module] = WeakSet()


class DelayedAttention:
    """Holds the attention of a model back until a trigger fires."""

    def __init__(
        self,
        model: nn.Module,
        *,
        until: Trigger,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        steps: int | None = None,
        measure: Callable[[float], float] | None = None,
    ) -> None:
        if hold not in HOLDS:
            raise unknown("hold", hold, HOLDS)
        if hold == "ramp":
            require(ramp_steps >= 1, "ramp_steps", ramp_steps, "1 or more with hold ramp")
        if steps is not None:
            check_trigger(until, steps)
        until.latest_step(steps)  # raises if the trigger needs to know the steps
        if isinstance(until, WhenBeyond) and measure is None:
            raise ConfigError("until: when_beyond takes a `measure`, a function from a multiple to an accuracy")
        if model in _delayed_models:
            raise ConfigError(f"delay: this {type(model).__name__} has a delay already; call its remove() first")
        self.sites = find_attention(model)
        self.model, self.until, self.hold, self.ramp_steps = model, until, hold, ramp_steps
        self.steps, self.measure = steps, measure
        self.step = 0
        self.switch_step: int | None = None
        self.switch_reason: str | None = None
        self._memory: dict[str, Any] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._prepared = False
        self._ramp: Tensor | None = None
        _delayed_models.add(model)
        self._set_gates()

    @property
    def holding(self) -> bool:
        """True until the switch."""
        return self.switch_step is None

    @property
    def gate(self) -> float:
        """How far attention is let in, from 0 to 1."""
        if self.switch_step is None:
            return 1.0 if self.hold == "freeze" else 0.0
        if self.hold == "ramp":
            return min(1.0, (self.step - self.switch_step + 1) / self.ramp_steps)
        return 1.0

    def parameters(self) -> dict[str, nn.Parameter]:
        """Attention's parameters by name: what does not move during the delay."""
        return {
            f"{site.name}.{name}": parameter
            for site in self.sites
            for name, parameter in site.module.named_parameters()
        }

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the optimizer, so that attention's state in it starts fresh at the switch."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, parameter in self.parameters().items() if id(parameter) not in held]
        if missing:
            raise ConfigError(
                f"delay: the optimizer does not hold {len(missing)} of attention's parameters, so they would never "
                f"be trained: {', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}"
            )
        self._optimizer = optimizer

    def before_step(self) -> None:
        """Call after the last backward and before clipping and the optimizer's step."""
        if self.holding:
            # A gradient of zero would not do: weight decay and momentum move a parameter that has one.
            for parameter in self.parameters().values():
                parameter.grad = None
        self._prepared = True

    def after_step(self) -> bool:
        """Call after the optimizer's step; True if attention was let in now."""
        if not self._prepared:
            raise ConfigError("delay: after_step() without before_step(); attention may have been trained")
        self._prepared = False
        self.step += 1
        switched = False
        if self.holding:
            self.switch_reason = self.until.decide(Moment(self.step, self.steps, self.measure), self._memory)
            if self.switch_reason is not None:
                self.switch_step = self.step
                self._forget_optimizer_state()
                switched = True
        self._set_gates()
        return switched

    def remove(self) -> None:
        """Leave the model as it was found."""
        for site in self.sites:
            site.gated.gate = 1.0
        _delayed_models.discard(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "switch_step": self.switch_step,
            "switch_reason": self.switch_reason,
            "memory": dict(self._memory),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.switch_step = state["step"], state["switch_step"]
        self.switch_reason, self._memory = state["switch_reason"], dict(state["memory"])
        self._set_gates()

    def _forget_optimizer_state(self) -> None:
        if self._optimizer is not None:
            for parameter in self.parameters().values():
                self._optimizer.state.pop(parameter, None)

    def _set_gates(self) -> None:
        gate: float | Tensor = self.gate
        if 0.0 < gate < 1.0:
            if self._ramp is None:
                self._ramp = torch.zeros((), device=next(iter(self.parameters().values())).device)
            # Filled in place: a compiled or captured step reads the new value without being built again.
            gate = self._ramp.fill_(gate)
        for site in self.sites:
            site.gated.gate = gate

    def __repr__(self) -> str:
        names = ", ".join(site.name for site in self.sites)
        count = sum(parameter.numel() for parameter in self.parameters().values())
        now = f"let in at step {self.switch_step}" if not self.holding else f"held back ({self.hold})"
        return f"DelayedAttention({now}, until={self.until}, {count:,} parameters in {names})"


def check_trigger(until: Trigger, steps: int) -> None:
    """Raise if the trigger would fire only after training has ended."""
    latest = until.latest_step(steps)
    if latest >= steps:
        raise ConfigError(
            f"until: the switch at step {latest} is not before the last step {steps}; "
            f"choose a step from 1 to {steps - 1}"
        )
