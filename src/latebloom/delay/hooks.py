"""Delayed attention training for any model: hooks that apply the policy of `delay.policy`.

    delay = DelayedAttention(model, optimizer, until=at_step(6_000))

Nothing else is needed: the optimizer's own steps advance the delay. A loop with other steps, such as captured
ones, passes `automatic=False` and calls `delay.before_step()` before clipping and `delay.after_step()` after each step.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from latebloom.delay.example import Example, wrapped
from latebloom.delay.find import Found, Where, check_weights, class_name, examine, find_attention, has_gate
from latebloom.delay.gate import Gate, GatedForward, GatedResidual
from latebloom.delay.observe import KINDS, Kind
from latebloom.delay.policy import Delay, Hold, Stage, Switch, check_trigger, stage_at
from latebloom.delay.triggers import Moment, Trigger, WhenBeyond
from latebloom.errors import ConfigError

_delayed_models: WeakSet[nn.Module] = WeakSet()
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class DelayedAttention:
    """Hold the attention of a model back until a trigger fires."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | None = None,
        *,
        until: Trigger,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        steps: int | None = None,
        measure: Callable[[float], float] | None = None,
        where: Where | Found | None = None,
        kinds: Collection[Kind] = KINDS,
        allow: Collection[str] = (),
        example: Example | None = None,
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
        check_weights(model)
        self.model, self.steps, self.measure, self.automatic = model, steps, measure, automatic
        self.step, self.tokens = 0, 0
        self._switch = Switch()
        self._reports: list[float] = []
        self._prepared = False
        self._gate, self._ramp = Gate(), None
        self._optimizers = _unwrapped(optimizer)
        self._stepped: set[int] = set()
        self._found = where if isinstance(where, Found) else None
        self._where = None if isinstance(where, Found) else where
        self._kinds, self._allow = kinds, allow
        self._parameters: dict[str, nn.Parameter] = {}
        self._attached: list[Any] = []
        _delayed_models.add(model)
        try:
            if self._found is None:
                self._found = find_attention(
                    model, example, where=self._where, kinds=kinds, leaves_out=self._leaves_out
                )
            if self._found is not None:
                self._begin()
            else:
                self._look_at_first_call()
        except BaseException:
            self.remove()
            raise

    @property
    def _leaves_out(self) -> bool:
        return self.settings.hold in ("bypass", "ramp")

    def _look_at_first_call(self) -> None:
        """Find attention when the model, or the model that it is a wrapper of, is called for the first time."""
        for path in wrapped(self.model):

            def see(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                if self._found is None:
                    for handle in handles:
                        handle.remove()
                    run = partial(module, *args, **kwargs)
                    self._found = examine(self.model, path, run, self._where, self._kinds, self._leaves_out)
                    self._begin()

            module = self.model.get_submodule(path)
            self._attached.append(module.register_forward_pre_hook(see, with_kwargs=True, prepend=True))
        handles = list(self._attached)
        # A step before that call would train attention: asking what was found raises.
        self._attached += [one.register_step_pre_hook(lambda *_: self.found and None) for one in self._optimizers]

    def _begin(self) -> None:
        self.found.check(self._allow)
        self._hold(self.found)
        self._attach()
        self._set_gate()

    def _hold(self, found: Found) -> None:
        modules = dict(self.model.named_modules())
        for one in found.attention:
            if has_gate(modules[one.path]):
                self._attached.append(GatedResidual(modules[one.path], self._gate))
                continue
            held = [modules[path] for path in found.held[one.path]]
            for path in one.modules:
                self._attached.append(GatedForward(modules[path], self._gate, held, path == one.modules[-1]))
        named = {
            f"{path}.{name}": parameter
            for paths in found.held.values()
            for path in paths
            for name, parameter in modules[path].named_parameters()
            if parameter.requires_grad
        }
        names = {id(parameter): name for name, parameter in reversed(named.items())}  # the first, if weights are tied
        self._parameters = {name: parameter for name, parameter in named.items() if names[id(parameter)] == name}
        if not self._parameters:
            names = ", ".join(found.matched[:4])
            raise ConfigError(f"delay: requires_grad is off for all of attention's parameters ({names})")

    @property
    def found(self) -> Found:
        """The attention that is held back, and what else mixes tokens."""
        if self._found is None:
            raise ConfigError(
                f"delay: {type(self.model).__name__} has not been called yet, and what it does is seen at its first "
                "batch; give `example` to see it now"
            )
        return self._found

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
        return self._parameters if self.found else {}

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
        """Restore the model and the optimizers; a second call does nothing."""
        self._gate.value = 1.0  # for copies of the model too
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
        self._set_gate()

    def _attach(self) -> None:
        if not self._optimizers:
            return
        trained = {id(p) for one in self._optimizers for group in one.param_groups for p in group["params"]}
        missing = [name for name, parameter in self._parameters.items() if id(parameter) not in trained]
        if missing:
            raise ConfigError(
                f"delay: the optimizer does not hold {len(missing)} of attention's parameters, so they would never be "
                f"trained: {', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}"
            )
        if not self.automatic:
            return
        # Gradients are dropped as soon as they are computed, so that clipping does not include them, and again before
        # the step, for gradients that are set in other ways.
        self._attached += [p.register_post_accumulate_grad_hook(self._drop) for p in self._parameters.values()]
        for optimizer in self._optimizers:
            self._attached += [
                optimizer.register_step_pre_hook(lambda *_: self.before_step()),
                optimizer.register_step_post_hook(lambda stepped, *_: self._after_optimizer(stepped)),
            ]

    def _drop(self, parameter: Tensor) -> None:
        if self.attention_held:
            parameter.grad = None

    def _after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        # After an overflow GradScaler still calls a fused optimizer, with `found_inf` set: the step does nothing.
        overflow: Tensor | None = getattr(optimizer, "found_inf", None)
        if overflow is not None and overflow.item():
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._stepped.clear()
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
            if switched and was_held:
                for optimizer in self._optimizers:
                    for parameter in self._parameters.values():  # start with a fresh optimizer state
                        optimizer.state.pop(parameter, None)
        self._set_gate()
        return switched

    def _set_gate(self) -> None:
        value: float | Tensor = self.gate
        if 0.0 < value < 1.0:
            if self._ramp is None:
                self._ramp = torch.zeros((), device=next(iter(self._parameters.values())).device)
            # Filled in place, so that a compiled or captured step reads the new value.
            value = self._ramp.fill_(value)
        self._gate.value = value

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self._parameters.values())
        hold = self.settings.hold
        now = f"held back ({hold})" if self.holding else f"enabled at step {self.switch_step}: {self.switch_reason}"
        if hold == "none":
            now = "enabled from the start, for comparison"
        if self._found is None:
            return f"DelayedAttention({now}, until={self.settings.until}, to be seen at the first batch)"
        lines = [f"DelayedAttention({now}, until={self.settings.until}, {count:,} parameters)"]
        for one in self._found.attention:
            module = self.model.get_submodule(one.path)
            place = "" if one.modules[-1:] in ((one.path,), ()) else f", gated behind {one.modules[-1]}"
            lines.append(f"  attention  {one.path}: {class_name(module)}{place}")
        lines += [f"  not        {name}: {reason}" for name, reason in self._found.passed_over.items()]
        return "\n".join(lines)


def _unwrapped(optimizer: Optimizers | None) -> list[torch.optim.Optimizer]:
    """Return optimizers as a list; one that a library has wrapped may skip steps, so its own is taken."""
    given = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    return [getattr(one, "optimizer", one) for one in given]
