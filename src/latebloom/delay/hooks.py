"""Delayed attention training for any model: hooks that apply the policy of `delay.policy`.

    delay = DelayedAttention(model, optimizer, until=at_step(6_000))

Nothing else is needed: the optimizer's own steps advance the delay. A loop with other steps, such as captured
ones, passes `automatic=False` and calls `delay.before_step()` before clipping and `delay.after_step()` after each step.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from latebloom.delay.find import Where, find_attention
from latebloom.delay.gate import build_gates
from latebloom.delay.policy import Delay, Hold, Stage, Switch, check_trigger, stage_at
from latebloom.delay.triggers import Moment, Trigger, WhenBeyond
from latebloom.errors import ConfigError

_delayed_models: WeakSet[nn.Module] = WeakSet()


class DelayedAttention:
    """Hold the attention of a model back until a trigger fires."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        until: Trigger,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        steps: int | None = None,
        measure: Callable[[float], float] | None = None,
        where: Where | None = None,
        example: Mapping[str, Any] | None = None,
        automatic: bool = True,
    ) -> None:
        if not isinstance(until, Trigger):
            raise ConfigError(f"until: {until!r} is not a trigger; write for example until=at_step(6_000)")
        self.settings = Delay(until=until, hold=hold, ramp_steps=ramp_steps)
        check_trigger(until, steps)
        if isinstance(until, WhenBeyond) and measure is None:
            raise ConfigError(
                "until: when_beyond needs `measure`, a function from a multiple of the training length to an accuracy"
            )
        if automatic and optimizer is None:
            raise ConfigError(
                "delay: give the optimizer, DelayedAttention(model, optimizer, until=...), whose steps end the delay; "
                "or automatic=False, and call before_step() and after_step() yourself"
            )
        if model in _delayed_models:
            raise ConfigError(f"delay: this {type(model).__name__} has a delay already; call its remove() first")
        self.found = find_attention(model, where)
        self.gates = build_gates(model, self.found.matched, example)
        self.model, self.steps, self.measure, self.automatic = model, steps, measure, automatic
        self.step, self.tokens = 0, 0
        self._switch = Switch()
        self._reports: list[float] = []
        self._prepared = False
        self._ramp: Tensor | None = None
        self._parameters = {name: p for gate in self.gates for name, p in gate.parameters().items()}
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # of a wrapper, which may skip steps
        self._attached: list[Any] = [*self.gates]
        _delayed_models.add(model)
        try:
            self._attach()
        except ConfigError:
            self.remove()
            raise
        self._set_gates()

    @property
    def stage(self) -> Stage:
        """The stage of the policy at the next step."""
        return stage_at(self.settings, self.step, self._switch.step)

    @property
    def switch_step(self) -> int | None:
        """The step after which attention was enabled; None until then."""
        return self._switch.step

    @property
    def switch_reason(self) -> str | None:
        """Why attention was enabled; None until then."""
        return self._switch.reason

    @property
    def holding(self) -> bool:
        """True until the switch."""
        return self._switch.step is None

    @property
    def attention_held(self) -> bool:
        """True while attention's parameters are not trained."""
        return self.stage.attention_since is None

    @property
    def gate(self) -> float:
        """The factor on attention's output, from 0 to 1."""
        return self.stage.gate

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return attention's parameters by name; they do not change during the delay."""
        return self._parameters

    def count_tokens(self, tokens: int) -> None:
        """Add the tokens of a batch to those seen so far, for `at_tokens`."""
        self.tokens += tokens

    def report(self, value: float) -> None:
        """Report the value of a metric, for `when_plateau`."""
        self._reports.append(float(value))

    def before_step(self) -> None:
        """Drop the gradients of attention while it is held back; with `automatic=False`, call it before clipping."""
        if self.attention_held:
            # None and not zero, because weight decay and momentum change a parameter with a zero gradient.
            for parameter in self._parameters.values():
                parameter.grad = None
        self._prepared = True

    def after_step(self) -> bool:
        """Advance by one step and return whether attention was enabled; for loops with `automatic=False`."""
        if self.automatic:
            raise ConfigError("delay: the optimizer's own steps advance this delay; do not call after_step()")
        return self._advance()

    def remove(self) -> None:
        """Restore the model and the optimizer; a second call does nothing."""
        if self._attached:
            for attached in self._attached:
                attached.remove()
            self._attached = []
            _delayed_models.discard(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "switch_step": self._switch.step,
            "switch_reason": self._switch.reason,
            "memory": dict(self._switch.memory),
            "reports": list(self._reports),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = self.state_dict().keys() - (state or {}).keys()
        if missing:
            raise ConfigError(f"delay: this is not the state of a delay; it has no {', '.join(sorted(missing))}")
        self.step, self.tokens, self._reports = state["step"], state["tokens"], list(state["reports"])
        self._switch = Switch(state["switch_step"], state["switch_reason"], dict(state["memory"]))
        self._set_gates()

    def _attach(self) -> None:
        optimizer = self._optimizer
        if optimizer is None:
            return
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, parameter in self._parameters.items() if id(parameter) not in held]
        frozen = [name for name, parameter in self._parameters.items() if not parameter.requires_grad]
        for names, what in ((missing, "the optimizer does not hold"), (frozen, "requires_grad is off for")):
            if names:
                raise ConfigError(
                    f"delay: {what} {len(names)} of attention's parameters, so they would never be trained: "
                    f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
                )
        if not self.automatic:
            return
        # Gradients are dropped as soon as they are computed, so that clipping does not include them, and again before
        # the step, for gradients that are set in other ways.
        self._attached += [
            *(parameter.register_post_accumulate_grad_hook(self._drop) for parameter in self._parameters.values()),
            optimizer.register_step_pre_hook(lambda *_: self.before_step()),
            optimizer.register_step_post_hook(lambda *_: self._after_optimizer()),
        ]

    def _drop(self, parameter: Tensor) -> None:
        if self.attention_held:
            parameter.grad = None

    def _after_optimizer(self) -> None:
        # After an overflow GradScaler still calls a fused optimizer, with `found_inf` set: the step does nothing.
        overflow: Tensor | None = getattr(self._optimizer, "found_inf", None)
        if overflow is None or not overflow.item():
            self._advance()

    def _advance(self) -> bool:
        if not self._prepared:
            raise ConfigError("delay: after_step() without before_step(); attention may have been trained")
        self._prepared = False
        self.step += 1
        switched = False
        if self.holding:
            was_held = self.attention_held
            moment = Moment(self.step, self.steps, self.measure, self.tokens, tuple(self._reports))
            self._reports = []
            switched = self._switch.update(self.settings.until, moment)
            if switched and was_held and self._optimizer is not None:
                for parameter in self._parameters.values():  # start with a fresh optimizer state
                    self._optimizer.state.pop(parameter, None)
        self._set_gates()
        return switched

    def _set_gates(self) -> None:
        value: float | Tensor = self.gate
        if 0.0 < value < 1.0:
            if self._ramp is None:
                self._ramp = torch.zeros((), device=next(iter(self._parameters.values())).device)
            # Filled in place, so that a compiled or captured step reads the new value.
            value = self._ramp.fill_(value)
        for gate in self.gates:
            gate.set(value)

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self._parameters.values())
        hold = self.settings.hold
        now = f"held back ({hold})" if self.holding else f"enabled at step {self.switch_step}"
        if hold == "none":
            now = "enabled from the start, for comparison"
        lines = [f"DelayedAttention({now}, until={self.settings.until}, {count:,} parameters)"]
        lines += [f"  attention  {gate}" for gate in self.gates]
        lines += [f"  not        {name}: {reason}" for name, reason in self.found.passed_over.items()]
        return "\n".join(lines)
