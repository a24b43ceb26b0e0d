"""What a delay needs from optimizers: their steps, and the state that they keep for attention's parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError, warn_user

Optimizer = torch.optim.Optimizer
Optimizers = Optimizer | Sequence[Optimizer]
COUNTS = ("k", "step", "weight_sum", "lr_max")
"""Entries of a parameter group in which some optimizers, such as schedule-free ones, count their steps."""
PATIENCE = 1_000
"""Steps of some optimizers without a step of the others, after which a warning says that the delay does not advance."""


def _as_list(given: Optimizers | None) -> list[Optimizer]:
    """Return optimizers as a list; one that a library has wrapped may skip steps, so its own is taken."""
    listed = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    if given is not None and not listed:
        raise ConfigError("optimizer: the list is empty; give the optimizers that train the model")
    optimizers: list[Optimizer] = []
    for one in (getattr(one, "optimizer", one) for one in listed):
        if not isinstance(one, Optimizer):
            raise ConfigError(f"optimizer: {type(one).__name__} is not a torch.optim.Optimizer")
        # A wrapper that does not call Optimizer.__init__ has no hooks, so the optimizers that it wraps are taken.
        seen = [one] if hasattr(one, "_optimizer_step_pre_hooks") else _wrapped(one)
        if any(one is other for one in seen for other in optimizers):
            raise ConfigError(f"optimizer: the list has the same {type(one).__name__} twice; give each optimizer once")
        optimizers += seen
    return optimizers


def _wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that an optimizer wraps, such as Muon and AdamW."""
    inner: list[Optimizer] = []
    for value in vars(optimizer).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        inner += [one for one in values if isinstance(one, Optimizer) and one not in inner]
    return inner


def _with_wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Return an optimizer and all optimizers inside it."""
    return [optimizer, *(each for one in _wrapped(optimizer) for each in _with_wrapped(one))]


def _parameters_of(*optimizers: Optimizer) -> set[int]:
    """Return the ids of the parameters that optimizers hold."""
    return {id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]}


def _needs_all_buffers(group: dict[str, Any]) -> bool:
    """Return whether torch raises an error if only some of a group's parameters have a momentum buffer."""
    return bool(group.get("fused") and group.get("momentum"))


class AttentionGroups:
    """Parameter groups for attention alone, which exist only while an optimizer steps.

    After the switch attention's parameters need a learning rate of their own during `warmup_steps`, counts of steps of
    their own if an optimizer keeps those in its groups, and a first step of their own in fused SGD with momentum. A
    group may hold other parameters too. So attention's
    parameters move to groups of their own before each step and back after it: the optimizer does what it does for a
    group with that learning rate, bit for bit, while schedulers, checkpoints and the user see the groups as they made
    them. To scale the change of the parameters after the step instead would be wrong for every optimizer that keeps a
    copy of them in its state, such as schedule-free ones.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Callable[[], Iterable[Tensor]], rate: Callable[[], float]
    ) -> None:
        self.optimizer, self._inner = optimizer, _with_wrapped(optimizer)[1:]
        self._parameters, self._rate = parameters, rate
        self.counts: list[dict[str, Any]] = []
        """By group, the counts of attention's parameters; empty until the switch."""
        self.was_scaled = False
        self._split_groups: list[tuple[int, dict[str, Any], dict[str, Any], dict[str, Any]]] = []
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._split()),
            optimizer.register_step_post_hook(lambda *_: self._join()),
            # A step that raised an error has left the groups split.
            optimizer.register_state_dict_pre_hook(lambda *_: self._join()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self._join()),
        ]

    def remove(self) -> None:
        self._join()
        for hook in self._hooks:
            hook.remove()

    def check_rate(self) -> None:
        """Raise if the learning rate of attention's parameters cannot be scaled."""
        attention = self._attention()
        groups = [one for one in self.optimizer.param_groups if not attention.isdisjoint(map(id, one["params"]))]
        has_rate = all(isinstance(group.get("lr"), int | float | Tensor) for group in groups)
        if groups and (isinstance(self.optimizer, torch.optim.LBFGS) or not has_rate):
            raise ConfigError(
                f"warmup_steps: {type(self.optimizer).__name__} finds the length of its steps itself, so there is no "
                "learning rate to scale; leave warmup_steps out"
            )

    def forget(self) -> None:
        """Drop what the optimizer keeps of attention's parameters."""
        if not isinstance(self.optimizer, torch.optim.LBFGS):  # it keeps what it knows of all parameters at the first
            for parameter in self._parameters():
                self.optimizer.state.pop(parameter, None)

    def start(self) -> None:
        """Give attention's parameters a fresh state, at the switch."""
        optimizer = self.optimizer
        self.forget()
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.state.clear()  # it describes a loss without attention
        fresh = optimizer.defaults
        self.counts = [{name: fresh.get(name, 0) for name in COUNTS if name in one} for one in optimizer.param_groups]

    def _attention(self) -> set[int]:
        """Return the ids of attention's parameters that this optimizer steps itself, and no optimizer inside it."""
        return {id(parameter) for parameter in self._parameters()} - _parameters_of(*self._inner)

    def _split(self) -> None:
        self._join()
        rate, groups = self._rate(), self.optimizer.param_groups
        if rate == 1.0 and not any(self.counts) and not any(map(_needs_all_buffers, groups)):
            return
        attention = self._attention()
        for number, group in enumerate(list(groups)):
            inside = [parameter for parameter in group["params"] if id(parameter) in attention]
            outside = [parameter for parameter in group["params"] if id(parameter) not in attention]
            if not inside:
                continue
            before, own = {"params": group["params"]}, group
            if outside:
                own = {**group, "params": inside}
                group["params"] = outside
                groups.append(own)
            if rate < 1.0:
                before["lr"] = group["lr"]
                own["lr"] = group["lr"] * rate
                self.was_scaled = True
            own.update(self.counts[number] if self.counts else {})
            self._split_groups.append((number, group, own, before))

    def _join(self) -> None:
        groups = self.optimizer.param_groups
        for number, group, own, before in self._split_groups:
            groups[:] = [one for one in groups if one is group or one is not own]
            group.update(before)
            if self.counts:
                self.counts[number] = {name: own[name] for name in self.counts[number]}
        self._split_groups = []


class DelayedOptimizers:
    """The optimizers of a delay.

    A step of the delay is complete when each optimizer that holds parameters of attention has done it. So if they step
    at different frequencies, the delay counts the steps of the slowest, and an optimizer without attention does not
    count.
    """

    def __init__(
        self, given: Optimizers | None, parameters: Callable[[], Mapping[str, nn.Parameter]], rate: Callable[[], float]
    ) -> None:
        self.listed = _as_list(given)
        self.groups = [
            AttentionGroups(each, lambda: parameters().values(), rate)
            for one in self.listed
            for each in _with_wrapped(one)
        ]
        self._steps = [0] * len(self.listed)
        self._counting: list[int] = []
        self._since_complete = 0
        self._in_step = [False] * len(self.listed)

    def check(self, attention: Mapping[str, nn.Parameter], warmup_steps: int) -> None:
        """Raise if one of attention's parameters is in no optimizer, or its learning rate cannot be scaled."""
        if not self.listed:
            return
        held = {id(parameter) for parameter in attention.values()}
        by_optimizer = [_parameters_of(one) for one in self.listed]
        self._counting = [number for number, trained in enumerate(by_optimizer) if not held.isdisjoint(trained)]
        missing = [name for name, parameter in attention.items() if id(parameter) not in set().union(*by_optimizer)]
        if missing:
            raise ConfigError(
                f"delay: the optimizer does not hold {len(missing)} of attention's parameters, so they would never be "
                f"trained: {', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}"
            )
        if warmup_steps:
            for groups in self.groups:
                groups.check_rate()

    def around_each(self, before: Callable[[], Any], complete: Callable[[], Any]) -> list[Any]:
        """Call `before` before each optimizer's step and `complete` when a step is complete; return the hooks."""
        hooks: list[Any] = []
        for number, optimizer in enumerate(self.listed):

            def pre(*_: Any, number: int = number) -> None:
                self._in_step[number] = True
                before()

            def post(*_: Any, number: int = number) -> None:
                # torch calls the hooks twice if the step of a subclass calls that of its base.
                if self._in_step[number]:
                    self._in_step[number] = False
                    self._after_step(number, complete)

            hooks += [optimizer.register_step_pre_hook(pre), optimizer.register_step_post_hook(post)]
        return hooks

    def _after_step(self, number: int, complete: Callable[[], Any]) -> None:
        # After an overflow GradScaler still calls a fused optimizer, with `found_inf` set: the step does nothing.
        overflow: Tensor | None = getattr(self.listed[number], "found_inf", None)
        if overflow is not None and overflow.item():
            return
        slowest = min(self._counting, key=lambda one: self._steps[one])
        before = self._steps[slowest]
        self._steps[number] += 1
        self._since_complete += 1
        if min(self._steps[one] for one in self._counting) > before:
            self._since_complete = 0
            complete()
        elif self._since_complete == PATIENCE:
            warn_user(
                f"delay: {type(self.listed[slowest]).__name__} holds parameters of attention and has not stepped in "
                f"{PATIENCE} steps of other optimizers, so the delay does not advance"
            )

    def forget_attention(self) -> None:
        """Drop what the optimizers keep of attention's parameters, during the delay."""
        for groups in self.groups:
            groups.forget()

    def was_rate_scaled(self) -> bool:
        """Return whether an optimizer has stepped with a scaled learning rate since the last call."""
        was_scaled = any(groups.was_scaled for groups in self.groups)
        for groups in self.groups:
            groups.was_scaled = False
        return was_scaled

    def start_attention(self) -> None:
        """Give attention's parameters a fresh state, at the switch."""
        for groups in self.groups:
            groups.start()

    def remove(self) -> None:
        for groups in self.groups:
            groups.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self._steps), "counts": [[dict(one) for one in groups.counts] for groups in self.groups]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["steps"]) != len(self.listed):
            raise ConfigError(
                f"delay: this is the state of a delay with {len(state['steps'])} optimizers, and this one has "
                f"{len(self.listed)}"
            )
        self._steps = list(state["steps"])
        for groups, counts in zip(self.groups, state["counts"], strict=True):
            groups.counts = [dict(one) for one in counts]
