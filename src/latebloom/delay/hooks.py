"""Delayed attention training for any model: hooks that apply the policy of `delay.policy`.

    delay = DelayedAttention(model, optimizer, until=at_step(6_000))

Nothing else is needed: the optimizer's own steps advance the delay. A loop with other steps, such as captured
ones, passes `automatic=False` and calls `delay.before_step()` before clipping and `delay.after_step()` after each step.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.bypass import attach
from latebloom.delay.example import Example, wrapped
from latebloom.delay.find import Found, Where, check_weights, class_name, examine, find_attention
from latebloom.delay.gate import Gate, gated_in
from latebloom.delay.kinds import KINDS, Kind
from latebloom.delay.marks import check_no_delay, check_step, delayed, take_loaded
from latebloom.delay.optimizers import DelayedOptimizers, Optimizers
from latebloom.delay.parts import watch_parts
from latebloom.delay.policy import Hold, HookedDelay, Stage, Switch, check_trigger, stage_at
from latebloom.delay.triggers import Moment, Trigger, WhenBeyond
from latebloom.delay.undisturbed import reshard
from latebloom.errors import ConfigError


class _FirstCall:
    """A hook on the first call of a model. It cannot be copied, because the copy would have no gate."""

    def __init__(self, see: Callable[..., None], model: str) -> None:
        self._see, self._model = see, model

    def __call__(self, *call: Any) -> None:
        self._see(*call)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ConfigError(
            f"delay: a copy of this {self._model} would not follow the switch, because its attention is found at its "
            "first batch; copy or pickle it after that, or give DelayedAttention an `example`"
        )


class DelayedAttention:
    """Hold the attention of a model back until a trigger fires.

    model: the model, with weights; with FSDP2, after `fully_shard`
    optimizer: the optimizer, or a list; a step counts when each optimizer with attention parameters has stepped
    until: the trigger that ends the delay
    hold: what happens to attention until then: `"bypass"`, `"freeze"`, `"ramp"` or `"none"`
    ramp_steps: with `"ramp"`, the steps in which attention's output rises from 0 to its full size
    warmup_steps: the steps after the switch in which attention's learning rate rises to that of your scheduler
    steps: the number of training steps, for `at_fraction`
    measure: for `when_beyond`: a function that returns the accuracy at a multiple of the training length
    where: the modules to hold back instead of those found: names, a predicate on (name, module), or a `Found`
    kinds: which attention to hold back: `"self"`, `"cross"`, `"sliding"` (attention with a window)
    allow: reasons for refusing a model that become warnings: `"only attention"`, `"no gradient"`
    example: the arguments of one small forward pass: a tensor, a tuple, or a dict by name
    automatic: whether the optimizer's steps advance the delay; if not, call `before_step()` and `after_step()`
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers | None = None,
        *,
        until: Trigger,
        hold: Hold = "bypass",
        ramp_steps: int = 0,
        warmup_steps: int = 0,
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
        self.settings = HookedDelay(until=until, hold=hold, ramp_steps=ramp_steps, warmup_steps=warmup_steps)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model: a {type(model).__name__} is not a torch.nn.Module")
        if steps is not None and not isinstance(steps, int):
            raise ConfigError(f"steps: {steps!r} is not possible; it must be a whole number")
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
        if warmup_steps and optimizer is None:
            raise ConfigError(f"warmup_steps: {warmup_steps} needs the optimizer, whose learning rate is scaled")
        check_no_delay(model)
        check_weights(model)
        for owner in list(gated_in(model)):  # of a copy that was made during a delay, or of bypass_attention
            owner.remove()
        self.model, self.steps, self.measure, self.automatic = model, steps, measure, automatic
        self.step, self.tokens = 0, 0
        self._switch = Switch()
        self._reports: list[float] = []
        self._prepared = False
        self._gate, self._ramp = Gate(is_delayed=True), None
        self._optimizers = DelayedOptimizers(optimizer, lambda: self._parameters, lambda: self.stage.rate)
        self._found = where if isinstance(where, Found) else None
        self._where = None if isinstance(where, Found) else where
        self._kinds, self._allow = kinds, allow
        self._parameters: dict[str, nn.Parameter] = {}
        self._attached: list[Any] = []
        delayed.add(model)
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
        """Find attention when the model, or the model that it wraps, is called for the first time."""
        for path in wrapped(self.model):

            def see(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                if self._found is None:
                    for handle in handles:
                        handle.remove()
                    run = partial(module, *args, **kwargs)
                    self._found = examine(self.model, path, run, self._where, self._kinds, self._leaves_out)
                    self._begin()

            module = self.model.get_submodule(path)
            hook = _FirstCall(see, type(self.model).__name__)
            self._attached.append(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
        handles = list(self._attached)
        # A step before that call would train attention: asking what was found raises.
        self._attached += [
            one.register_step_pre_hook(lambda *_: self.found and None) for one in self._optimizers.listed
        ]

    def _begin(self) -> None:
        self.found.check(self._allow)
        self._hold(self.found)
        self._attach()
        self._set_gate()

    def _hold(self, found: Found) -> None:
        self._attached += attach(self.model, found, self._gate)
        self._gate.loaded = take_loaded(self.model)
        self._parameters = {name: one for name, one in found.parameters(self.model).items() if one.requires_grad}
        names = ", ".join(found.matched[:4])
        if not self._parameters:
            raise ConfigError(
                f"delay: requires_grad is off for all of attention's parameters ({names}), so nothing would be held "
                "back; with LoRA, name attention's projections in target_modules, or train the rest without attention "
                "after bypass_attention(model)"
            )
        held = set(map(id, self._parameters.values()))
        others = (parameter for parameter in self.model.parameters() if id(parameter) not in held)
        if self.attention_held and not any(parameter.requires_grad for parameter in others):
            raise ConfigError(
                f"delay: only attention is trained ({names}), so nothing would learn while it is held back; train "
                "other parameters too, such as adapters on what else mixes tokens"
            )
        parts = [self.model.get_submodule(path) for path in found.held_paths]
        self._attached.append(watch_parts(parts, self._parameters.values(), self._is_enabled))

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

    def _is_enabled(self) -> bool:
        return self.gate == 1.0 and not self.attention_held

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
        check_step(self._gate)
        if self.attention_held:
            # None and not zero, because weight decay and momentum change a parameter with a zero gradient.
            for parameter in self._parameters.values():
                parameter.grad = None
            self._optimizers.forget_attention()
        self._prepared = True

    def _hold_in_closure(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Return the arguments of an optimizer's step with a closure that drops the gradients it computes."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        def held() -> Any:
            loss = closure()
            self.before_step()
            return loss

        return (args, {**kwargs, "closure": held}) if "closure" in kwargs else ((args[0], held, *args[2:]), kwargs)

    def after_step(self) -> bool:
        """Advance by one step and return whether attention was enabled; for loops with `automatic=False`."""
        if self.automatic:
            raise ConfigError("delay: the optimizer's own steps advance this delay; do not call after_step()")
        if self.stage.rate < 1.0 and not self._optimizers.was_rate_scaled():
            raise ConfigError(
                f"warmup_steps: {self.settings.warmup_steps} needs the optimizer's step() in Python in every step; "
                "leave it out in a loop with captured steps"
            )
        return self._advance()

    def remove(self) -> None:
        """Restore the model and the optimizers; a second call does nothing."""
        self._gate.value, self._gate.delay = 1.0, ""  # for copies of the model too
        for attached in (*self._attached, self._optimizers):
            attached.remove()
        self._attached = []
        delayed.discard(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "switch_step": self._switch.step,
            "switch_reason": self._switch.reason,
            "memory": dict(self._switch.memory),
            "reports": list(self._reports),
            "optimizers": self._optimizers.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = self.state_dict().keys() - (state or {}).keys() - {"optimizers"}
        if missing:
            raise ConfigError(
                f"delay: this is not the state of a delay; it has no {', '.join(sorted(missing))}; save that of "
                "delay.state_dict() and load it"
            )
        self.step, self.tokens, self._reports = state["step"], state["tokens"], list(state["reports"])
        self._switch = Switch(state["switch_step"], state["switch_reason"], dict(state["memory"]))
        if "optimizers" in state:
            self._optimizers.load_state_dict(state["optimizers"])
        self._set_gate()

    def _attach(self) -> None:
        self._optimizers.check(self._parameters, self.settings.warmup_steps)
        self._attached += [one.register_step_pre_hook(self._hold_in_closure) for one in self._optimizers.listed]
        if not self.automatic:
            return
        # Gradients are dropped as soon as they are computed, so that clipping does not include them, and again before
        # the step, for gradients that are set in other ways.
        self._attached += [p.register_post_accumulate_grad_hook(self._drop) for p in self._parameters.values()]
        self._attached += self._optimizers.around_each(self.before_step, self._advance)

    def _drop(self, parameter: Tensor) -> None:
        if self.attention_held:
            parameter.grad = None

    def _advance(self) -> bool:
        if not self._prepared:
            raise ConfigError("delay: after_step() without before_step(); attention may have been trained")
        self._prepared = False
        self.step += 1
        switched = False
        if self.holding:
            was_held = self.attention_held
            measure = None if self.measure is None else partial(self._measure, self.measure)
            moment = Moment(self.step, self.steps, measure, self.tokens, tuple(self._reports))
            self._reports = []
            switched = self._switch.update(self.settings.until, moment)
            if switched and was_held:
                self._optimizers.start_attention()
        self._set_gate()
        return switched

    def _measure(self, measure: Callable[[float], float], multiple: float) -> float:
        """Return the accuracy at a multiple of the training length; a model under FSDP2 is sharded again afterwards."""
        accuracy = measure(multiple)
        reshard(self.model)
        return accuracy

    def _set_gate(self) -> None:
        value: float | Tensor = self.gate
        if 0.0 < value < 1.0:
            if self._ramp is None:
                self._ramp = torch.zeros((), device=next(iter(self._parameters.values())).device)
            # Filled in place, so that a compiled or captured step reads the new value.
            value = self._ramp.fill_(value)
        self._gate.value, self._gate.step = value, self.step

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
            lines.append(f"  attention  {one.path or 'the model'}: {class_name(module)}{place}")
        for path in self._found.besides:
            kind = class_name(self.model.get_submodule(path))
            lines.append(f"  attention  {path}: {kind} acts through attention alone")
        lines += [f"  attention  {name}: a parameter that acts through attention alone" for name in self._found.scales]
        lines += [f"  not held   {name}: {reason}" for name, reason in self._found.passed_over.items()]
        lines += [f"  not held   {name}: a parameter that other modules have too" for name in self._found.shared]
        return "\n".join(lines)
