"""The policy of delayed attention training: the stage at each step, as a pure function of settings and switch.

The engine applies it to its own models; `DelayedAttention` applies the same policy to any model, by hooks.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from latebloom.delay.triggers import Moment, Trigger
from latebloom.errors import ConfigError, require
from latebloom.fields import at_least, check_fields

Hold = Literal["bypass", "freeze", "ramp", "none"]
HOLDS: dict[str, str] = {
    "bypass": "attention is left out of the residual stream until the switch",
    "freeze": "attention is present but not trained until the switch",
    "ramp": "attention is left out until the switch, then scaled by a gate that rises from 0 to 1",
    "none": "attention is present and trained from the start; the rest of the delay applies, for comparison",
}


@dataclass(frozen=True, kw_only=True)
class Delay:
    """How attention is held back, which answers are left out of the loss meanwhile, and until when."""

    until: Trigger
    """The trigger that ends the delay."""
    hold: Hold = "bypass"
    """How attention is held back."""
    ramp_steps: int = 0
    """With hold ramp: the steps in which the gate rises to 1 after the switch."""
    withhold: tuple[str, ...] = ()
    """Answers that are left out of the loss until the switch; in the paper's form, none."""

    def __post_init__(self) -> None:
        if isinstance(self.withhold, str):  # accept a single name
            object.__setattr__(self, "withhold", (self.withhold,))
        check_fields(self)
        if self.hold == "ramp":
            require(self.ramp_steps >= 1, "ramp_steps", self.ramp_steps, "1 or more with hold ramp")
        else:
            require(self.ramp_steps == 0, "ramp_steps", self.ramp_steps, f"0 with hold {self.hold}")


@dataclass(frozen=True, kw_only=True)
class HookedDelay(Delay):
    """A delay in a loop of the user's own, whose scheduler knows nothing of the switch.

    A run of this package has no `warmup_steps`: its phase after the switch has a warm-up in its schedule.
    """

    warmup_steps: Annotated[int, at_least(0)] = 0
    """The steps in which attention's learning rate rises to that of the scheduler after the switch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hold == "none":
            require(self.warmup_steps == 0, "warmup_steps", self.warmup_steps, "0 with hold none")


@dataclass(frozen=True)
class Stage:
    """The delay policy at one optimizer step."""

    phase: Literal["delayed", "full"] = "full"
    gate: float = 1.0
    """The factor on attention's output, from 0 (left out) to 1."""
    attention_since: int | None = 0
    """The step at which attention's training began; None while it is not trained."""
    withheld: tuple[str, ...] = ()
    """Answers that are left out of the loss."""
    rate: float = 1.0
    """The factor on the learning rate of attention's parameters, once they are trained."""


def stage_at(delay: Delay | None, step: int, switch_step: int | None) -> Stage:
    """Return the stage at step 0, 1, ...; `switch_step` is None until the switch."""
    if delay is None:
        return Stage()
    attention_since = 0 if delay.hold == "none" else switch_step
    if switch_step is None:
        return Stage("delayed", 1.0 if delay.hold in ("freeze", "none") else 0.0, attention_since, delay.withhold)
    done = step - switch_step + 1
    warmup_steps = delay.warmup_steps if isinstance(delay, HookedDelay) else 0
    return Stage("full", _rise(done, delay.ramp_steps), attention_since, rate=_rise(done, warmup_steps))


def _rise(done: int, steps: int) -> float:
    """Return a factor that rises linearly to 1 in so many steps."""
    return 1.0 if steps == 0 else min(1.0, done / steps)


@dataclass
class Switch:
    """When and why attention was enabled (None until then), and the memory of the trigger."""

    step: int | None = None
    reason: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    def update(self, until: Trigger, moment: Moment) -> bool:
        """Evaluate the trigger after a step; return whether attention was enabled."""
        if self.step is not None:
            return False
        self.reason = until.decide(moment, self.memory)
        if self.reason is not None:
            self.step = moment.step
        return self.step is not None


def check_trigger(until: Trigger, steps: int | None) -> None:
    """Raise if the trigger would fire only after training has ended, or needs a number of steps that is not known."""
    latest = until.latest_step(steps)
    if steps is not None and latest >= steps:
        raise ConfigError(
            f"until: the switch at step {latest} is not before the last step {steps}; "
            f"choose a step from 1 to {steps - 1}"
        )
