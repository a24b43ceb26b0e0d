"""Delayed attention training for one model: holds attention back, and lets it in when the trigger says so.

    delay = DelayedAttention(model, optimizer, until=at_step(6_000))

That is all: the optimizer's own step moves the delay on. A loop that steps in another way (a captured step, say) gives
`automatic=False` and calls `delay.before_step()` before clipping and `delay.after_step()` after each step.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn

from latebloom.delay.find import Found, Where, find_attention, is_own
from latebloom.delay.gate import Gate, OutputGate, OwnGate
from latebloom.delay.place import find_norm_after
from latebloom.delay.triggers import Moment, Trigger, WhenBeyond
from latebloom.errors import ConfigError, require, unknown

Hold = Literal["bypass", "freeze", "ramp", "none"]
HOLDS: dict[str, str] = {
    "bypass": "attention is left out of the stream until the switch",
    "freeze": "attention stands at its first weights and is not trained until the switch",
    "ramp": "attention is left out until the switch, then let in by a gate that rises from 0 to 1",
    "none": "attention is in and trained from the start, for comparison: all else of a delay is as it would be",
}

_delayed_models: WeakSet[nn.Module] = WeakSet()


class DelayedAttention:
    """Holds the attention of a model back until a trigger fires."""

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
        if hold not in HOLDS:
            raise unknown("hold", hold, HOLDS)
        if hold == "ramp":
            require(ramp_steps >= 1, "ramp_steps", ramp_steps, "1 or more with hold ramp")
        if steps is not None:
            check_trigger(until, steps)
        until.latest_step(steps)  # raises if the trigger needs to know the steps
        if isinstance(until, WhenBeyond) and measure is None:
            raise ConfigError("until: when_beyond takes a `measure`, a function from a multiple to an accuracy")
        if automatic and optimizer is None:
            raise ConfigError(
                "delay: give the optimizer, DelayedAttention(model, optimizer, until=...), whose steps end the delay; "
                "or automatic=False, and call before_step() and after_step() yourself"
            )
        if model in _delayed_models:
            raise ConfigError(f"delay: this {type(model).__name__} has a delay already; call its remove() first")
        self.found = find_attention(model, where)
        self.gates = _build_gates(model, self.found, example)
        self.model, self.until, self.ramp_steps = model, until, ramp_steps
        self.hold: Hold = hold
        self.steps, self.measure, self.automatic = steps, measure, automatic
        self.step, self.tokens = 0, 0
        self.switch_step: int | None = None
        self.switch_reason: str | None = None
        self._memory: dict[str, Any] = {}
        self._reports: list[float] = []
        self._prepared = False
        self._ramp: Tensor | None = None
        self._parameters = {name: p for gate in self.gates for name, p in gate.parameters().items()}
        self._optimizer = (
            None if optimizer is None else getattr(optimizer, "optimizer", optimizer)
        )  # Accelerate's wraps
        self._handles: list[Any] = []
        try:
            self._attach()
        except ConfigError:
            for gate in self.gates:
                gate.remove()
            raise
        _delayed_models.add(model)
        self._set_gates()

    @property
    def holding(self) -> bool:
        """True until the switch."""
        return self.switch_step is None

    @property
    def attention_held(self) -> bool:
        """True while attention's parameters do not move."""
        return self.holding and self.hold != "none"

    @property
    def gate(self) -> float:
        """How far attention is let in, from 0 to 1."""
        return gate_at(self.step, self.hold, self.switch_step, self.ramp_steps)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Attention's parameters by name: what does not move during the delay."""
        return self._parameters

    def saw(self, tokens: int) -> None:
        """Count tokens, for `at_tokens`."""
        self.tokens += tokens

    def report(self, value: float) -> None:
        """Tell the value of a metric, for `when_plateau`."""
        self._reports.append(float(value))

    def before_step(self) -> None:
        """Drop the gradients that are held back; by hand, call it before clipping and the optimizer's step."""
        if self.attention_held:
            # A gradient of zero would not do: weight decay and momentum move a parameter that has one.
            for parameter in self._parameters.values():
                parameter.grad = None
        self._prepared = True

    def after_step(self) -> bool:
        """Move on by one step; True if attention was let in now. By hand, call it after the optimizer's step."""
        if self.automatic:
            raise ConfigError("delay: the optimizer's own steps move this delay on; leave after_step() away")
        return self._advance()

    def remove(self) -> None:
        """Leave the model and the optimizer as they were found; once done, it does nothing more."""
        if self.model not in _delayed_models:
            return
        for gate in self.gates:
            gate.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _delayed_models.discard(self.model)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "switch_step": self.switch_step,
            "switch_reason": self.switch_reason,
            "memory": dict(self._memory),
            "reports": list(self._reports),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = self.state_dict().keys() - (state or {}).keys()
        if missing:
            raise ConfigError(f"delay: this is not the state of a delay; it has no {', '.join(sorted(missing))}")
        self.step, self.tokens, self.switch_step = state["step"], state["tokens"], state["switch_step"]
        self.switch_reason, self._memory = state["switch_reason"], dict(state["memory"])
        self._reports = list(state["reports"])
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
        # Dropped as soon as they are there, so that clipping does not see them, also where a trainer computes them
        # inside the optimizer's step; and once more before the step, for gradients that come by other ways.
        self._handles = [p.register_post_accumulate_grad_hook(self._drop) for p in self._parameters.values()]
        self._handles.append(optimizer.register_step_pre_hook(lambda *_: self.before_step()))
        self._handles.append(optimizer.register_step_post_hook(lambda *_: self._after_optimizer()))

    def _drop(self, parameter: Tensor) -> None:
        if self.attention_held:
            parameter.grad = None

    def _after_optimizer(self) -> None:
        # GradScaler calls a fused optimizer also after an overflow, and tells it so: a step that does nothing.
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
            moment = Moment(self.step, self.steps, self.measure, self.tokens, tuple(self._reports))
            self._reports = []
            self.switch_reason = self.until.decide(moment, self._memory)
            if self.switch_reason is not None:
                if self.attention_held:
                    self._forget_optimizer_state()
                self.switch_step = self.step
                switched = True
        self._set_gates()
        return switched

    def _forget_optimizer_state(self) -> None:
        if self._optimizer is not None:
            for parameter in self._parameters.values():
                self._optimizer.state.pop(parameter, None)

    def _set_gates(self) -> None:
        value: float | Tensor = self.gate
        if 0.0 < value < 1.0:
            if self._ramp is None:
                self._ramp = torch.zeros((), device=next(iter(self._parameters.values())).device)
            # Filled in place: a compiled or captured step reads the new value without being built again.
            value = self._ramp.fill_(value)
        for gate in self.gates:
            gate.set(value)

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self._parameters.values())
        now = f"let in at step {self.switch_step}" if not self.holding else f"held back ({self.hold})"
        if self.hold == "none":
            now = "in from the start, for comparison"
        lines = [f"DelayedAttention({now}, until={self.until}, {count:,} parameters)"]
        lines += [f"  attention  {gate}" for gate in self.gates]
        lines += [f"  not        {name}: {reason}" for name, reason in self.found.passed_over.items()]
        return "\n".join(lines)


def _build_gates(model: nn.Module, found: Found, example: Mapping[str, Any] | None) -> list[Gate]:
    """A gate for each attention, at the place where it does what it should."""
    gates: list[Gate] = []
    afters: dict[str, Any] = {}
    for name, module in found.matched.items():  # all looked at before any is changed
        if is_own(module):
            continue
        prefix, root, known = ("", model, example) if example is not None else _rooted_example(model, name)
        if known is not None:
            after = find_norm_after(root, name.removeprefix(prefix), module, known)
            afters[name] = None if after is None else (prefix + after[0], after[1])
    for name, module in found.matched.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        if is_own(module):
            gates.append(OwnGate(name, module, owner))
        else:
            gates.append(OutputGate(name, module, owner, afters.get(name), checked=name in afters))
    return gates


def _rooted_example(model: nn.Module, name: str) -> tuple[str, nn.Module, dict[str, Any] | None]:
    """The outermost module on the way to an attention for which an example is known: it may stand in a wrapper."""
    parts = name.split(".")
    for depth in range(len(parts)):
        root = model.get_submodule(".".join(parts[:depth]))
        example = example_of(root)
        if example is not None:
            return "".join(f"{part}." for part in parts[:depth]), root, example
    return "", model, None


def example_of(model: nn.Module) -> dict[str, Any] | None:
    """A tiny input for a Transformers language model; None where nothing is known of the model."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config  # of a model with pictures too
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int) or not hasattr(model, "get_input_embeddings"):
        return None
    device = next(model.parameters()).device
    return {"input_ids": torch.arange(1, 6, device=device)[None] % size, "use_cache": False}


def gate_at(step: int, hold: Hold, switch_step: int | None, ramp_steps: int) -> float:
    """How far attention is let in at a step, from 0 to 1; `switch_step` is None as long as there was no switch."""
    if switch_step is None:
        return 1.0 if hold in ("freeze", "none") else 0.0
    return min(1.0, (step - switch_step + 1) / ramp_steps) if hold == "ramp" else 1.0


def check_trigger(until: Trigger, steps: int) -> None:
    """Raise if the trigger would fire only after training has ended."""
    latest = until.latest_step(steps)
    if latest >= steps:
        raise ConfigError(
            f"until: the switch at step {latest} is not before the last step {steps}; "
            f"choose a step from 1 to {steps - 1}"
        )
