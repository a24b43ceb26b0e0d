"""Many runs in progress as one program: what `Trainer` is for one.

Shapes: S stacked runs, P parameters of a model in one row.
"""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from latebloom.config import RunConfig
from latebloom.delay.controller import gate_at
from latebloom.delay.triggers import AtFraction, AtStep, Moment
from latebloom.engine.adamw import AdamW, adamw_
from latebloom.engine.capture import Captured
from latebloom.engine.noise import StateNoise
from latebloom.engine.schedule import rate_of_step
from latebloom.engine.settings import Phase
from latebloom.engine.stack import Stack
from latebloom.engine.step import answer_losses, chosen_loss, total_loss
from latebloom.engine.trainer import CHECK_SEQUENCES
from latebloom.errors import ConfigError
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.stacked import count_correct_stacked
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.stream import Stream


def stack_key(config: RunConfig) -> RunConfig:
    """What runs must share to be trained as one: all but the seed, the learning rates, the weighing of the loss, the
    noise and the delay.

    Where the phases have batches of different sizes, all runs must also switch at the same step; with a trigger that
    looks at the model they cannot promise that, and each stands alone.
    """
    if not config.model.can_be_stacked:
        return config
    training, delay = config.training, config.delay
    phases = {name: Phase(batch_size=getattr(training, name).batch_size) for name in ("delayed", "full")}
    same_size = delay is None or training.delayed.batch_size == training.full.batch_size
    if same_size:
        phases["delayed"] = phases["full"]
    training = replace(
        training, weigh="answers", state_noise=0.0, restart=True, recurrence_factor=1.0, attention_factor=1.0, **phases
    )
    shared = replace(config, training=training)
    if delay is None or same_size:
        return replace(shared, seed=0, delay=None)
    return replace(shared, seed=0) if isinstance(delay.until, AtStep | AtFraction) else shared


@dataclass
class Member:
    """One run of the stack, as the host knows it."""

    config: RunConfig
    switch_step: int | None = None
    switch_reason: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    """What the trigger remembers."""
    summed: int = 0
    """Steps since its sums were read."""
    failed_step: int | None = None
    """The first step whose loss, gradient or weights were no numbers."""
    phase_done: str = ""
    """The phase of the last step, which at the switch is not that of the next."""
    rate_done: float = 0.0

    @property
    def holding(self) -> bool:
        return self.config.delay is not None and self.switch_step is None

    @property
    def attention_begun(self) -> int | None:
        """The step at which attention's training began; None until then."""
        delay = self.config.delay
        return 0 if delay is None or delay.hold == "none" else self.switch_step

    @property
    def phase_name(self) -> str:
        return "delayed" if self.holding else "full"

    @property
    def withheld(self) -> tuple[str, ...]:
        return self.config.delay.withhold if self.holding and self.config.delay is not None else ()

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return rate_of_step(self.config.training, self.config.delay, self.switch_step, step)

    def gate(self, step: int) -> float:
        """How far attention is let in at a step, from 0 to 1."""
        delay = self.config.delay
        return 1.0 if delay is None else gate_at(step, delay.hold, self.switch_step, delay.ramp_steps)


class StackedTrainer:
    """Models, optimizer and data position of S runs that differ in no more than `stack_key` allows."""

    def __init__(self, configs: list[RunConfig], device: torch.device, *, capture: bool = True) -> None:
        keys = {stack_key(config).hash for config in configs}
        if len(keys) != 1:
            raise ConfigError(
                "these runs differ in more than seed, learning rates, weighing, noise and delay, "
                "so they cannot be stacked"
            )
        if device.type == "cuda":
            # cuDNN trains the widths that our LSTM's kernels do not take. It copies a model's weights together at every
            # call, because they are slices of the stack's, and says so; nobody who reads it could change that. The
            # filter stays: one around each call would make Python show other warnings again and again.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        self.device, self.step = device, 0
        self.members = [Member(config) for config in configs]
        self.shared = configs[0]
        task, training = self.shared.task, self.shared.training
        self.stack = Stack([_first_model(config) for config in configs], device)
        self.first, self.second = torch.zeros_like(self.stack.flat), torch.zeros_like(self.stack.flat)
        self._gradients = torch.zeros_like(self.stack.flat)
        self._optimizer = AdamW(training.betas, training.weight_decay)
        self.stream = Stream(task, 0, training.length)
        self._noise = StateNoise(self.stack.template)
        self._disturbed = any(config.training.state_noise > 0 for config in configs)
        self._weighings = {config.training.weigh for config in configs}
        self._captured = Captured(device, capture)
        self.seeds = torch.tensor([config.seed for config in configs], device=device)
        self._index = torch.zeros((), dtype=torch.int64, device=device)
        # What a step reads of each run: rates of the roles, steps of the roles, gate, deviation of the noise, whether
        # positions are weighed, and which answers are asked.
        roles = len(self.stack.roles)
        self._control_sizes = [roles, roles, 1, 1, 1, len(task.answers)]
        self._controls = torch.zeros(len(configs), sum(self._control_sizes), device=device)
        self._named = ["loss", "gradient_norm", *(f"loss_{name}" for name in task.answers)]
        self._sums = torch.zeros(len(configs), len(self._named), device=device)
        self._first_bad = torch.full((len(configs),), -1, dtype=torch.int64, device=device)
        self._checked: dict[int, list[Count]] = {}
        self._checked_at = -1

    def advance(self) -> list[int]:
        """Do one step of every run; which of them let attention in after it."""
        length, variant = self.stream.length(self.step), self._variant()
        all_held = all(member.holding for member in self.members)
        size = (self.shared.training.delayed if all_held else self.shared.training.full).batch_size
        self._send_controls()
        self._captured.run((length, variant, size), lambda: self._device_step(length, variant, size))
        self.step += 1
        switched = [index for index, member in enumerate(self.members) if self._after_step(index, member)]
        if switched:  # what a trigger measured was the model before the switch
            self._checked_at = -1
        return switched

    def rehearse(self, length: int) -> None:
        """A step with everything in it that changes nothing: what memory it takes can be seen."""
        self._controls.zero_()
        self._controls[:, : len(self.stack.roles)] = -1.0  # no rate moves anything
        training = self.shared.training
        self._device_step(length, "in", max(training.full.batch_size, training.delayed.batch_size))

    def _variant(self) -> str:
        """`out` if no run needs its attention now, `in` if all have it in full, `mixed` otherwise."""
        if "attention" not in self.stack.roles:
            return "in"
        gates = {member.gate(self.step) for member in self.members}
        holding = {member.holding for member in self.members}
        if gates == {0.0} and len({member.withheld for member in self.members}) == 1:
            return "out"
        return "in" if gates == {1.0} and holding == {False} else "mixed"

    def _send_controls(self) -> None:
        rows = [self._controls_of(member) for member in self.members]
        host = torch.tensor(rows)
        if self.device.type == "cuda":
            host = host.pin_memory()  # so that the copy does not wait for the device
        self._controls.copy_(host, non_blocking=True)

    def _controls_of(self, member: Member) -> list[float]:
        step, training = self.step, member.config.training
        rate = member.rate(step)
        member.phase_done, member.rate_done = member.phase_name, rate
        factors: dict[str, float] = {}
        if member.switch_step is not None:
            factors = {"recurrence": training.recurrence_factor, "attention": training.attention_factor}
        begun = member.attention_begun
        rates = [
            -1.0 if begun is None and role == "attention" else rate * factors.get(role, 1.0)
            for role in self.stack.roles
        ]
        since = 0 if begun is None else step - begun
        counts = [float((since if role == "attention" else step) + 1) for role in self.stack.roles]
        asked = [float(name not in member.withheld) for name in self.shared.task.answers]
        by_position = float(training.weigh == "positions")
        return [*rates, *counts, member.gate(step), training.state_noise, by_position, *asked]

    def _device_step(self, length: int, variant: str, size: int) -> None:
        """One step of all runs; reads and writes tensors that stay in place, and never waits for the device."""
        task, training, stack = self.shared.task, self.shared.training, self.stack
        rates, counts, gates, deviations, by_positions, asked = self._controls.split(self._control_sizes, dim=1)
        withheld = self.members[0].withheld if variant == "out" else ()

        def one(
            model: Any, seed: Tensor, gate: Tensor, deviation: Tensor, by_position: Tensor, asked: Tensor
        ) -> tuple[Tensor, Tensor]:
            batch = task.batch(seed, "train", self._index, length=length, size=size, device=self.device)
            stack.set_gate({"out": 0.0, "in": 1.0}.get(variant, gate))
            batch = batch.without(withheld)
            with self._noise.given(deviation if self._disturbed else 0.0, seed, self._index, batch.shape):
                losses = answer_losses(model, batch)
            if variant == "mixed" or len(self._weighings) > 1:
                loss = chosen_loss(losses, batch, by_position, dict(zip(task.answers, asked, strict=True)))
            else:
                loss = total_loss(losses, batch, training.weigh)
            each = [losses.get(name, torch.zeros_like(loss)) for name in task.answers]
            return loss, torch.stack([part.detach() for part in each])

        losses, each = stack.each(one, self.seeds, gates[:, 0], deviations[:, 0], by_positions[:, 0], asked)
        stack.set_gate(1.0)
        end = stack.ends[-2] if variant == "out" else stack.ends[-1]
        ends = tuple(e for e in stack.ends if e <= end)
        gradients = self._gradients[:, :end]
        torch.cat([g.flatten(1) for g in stack.gradients(losses.sum(), end)], dim=1, out=gradients)
        norms = self._norms(gradients, rates, variant)
        scale = (training.clip / (norms + 1e-6)).clamp(max=1.0)
        adamw_(
            self._optimizer, stack.flat, self._gradients, self.first, self.second,
            ends=ends, scale=scale, rates=rates[:, : len(ends)], counts=counts[:, : len(ends)],
        )  # fmt: skip
        losses = losses.detach()
        self._sums += torch.cat([losses[:, None], norms[:, None], each * asked], dim=1)
        is_first = ~(losses.isfinite() & norms.isfinite()) & (self._first_bad < 0)
        self._first_bad.copy_(torch.where(is_first, self._index, self._first_bad))
        self._index += 1

    def _norms(self, gradients: Tensor, rates: Tensor, variant: str) -> Tensor:
        """The norm (S,) of each run's gradient, without what is held back."""
        if variant != "mixed":
            return torch.linalg.vector_norm(gradients, dim=1)
        start = self.stack.ends[-2]
        main, attention = (torch.linalg.vector_norm(part, dim=1) for part in gradients.tensor_split([start], dim=1))
        return torch.hypot(main, torch.where(rates[:, -1] < 0, 0.0, attention))

    def _after_step(self, index: int, member: Member) -> bool:
        member.summed += 1
        delay = member.config.delay
        # A run that has failed switches like the others: they must not depend on when its failure was noticed.
        if delay is None or member.switch_step is not None:
            return False
        moment = Moment(
            self.step, member.config.training.steps, lambda multiple: self.state_tracking(multiple, index), 0, ()
        )
        member.switch_reason = delay.until.decide(moment, member.memory)
        if member.switch_reason is None:
            return False
        member.switch_step = self.step
        return True

    def read_means(self, indices: list[int]) -> dict[int, dict[str, float]]:
        """Mean losses of some runs since their last reading; waits for the device."""
        rows = self._sums[indices].tolist()
        self._sums[indices] = 0.0
        means: dict[int, dict[str, float]] = {}
        for index, row in zip(indices, rows, strict=True):
            member = self.members[index]
            delay = member.config.delay
            unasked = {f"loss_{name}" for name in delay.withhold} if delay and member.phase_done == "delayed" else set()
            named = zip(self._named, row, strict=True)
            means[index] = {name: value / member.summed for name, value in named if name not in unasked}
            member.summed = 0
        return means

    def find_failures(self) -> list[int]:
        """Runs that have gone non-finite since the last look; waits for the device."""
        finite = self.stack.flat.isfinite().all(dim=1).tolist()
        found = []
        for index, (member, bad, good) in enumerate(zip(self.members, self._first_bad.tolist(), finite, strict=True)):
            if member.failed_step is None and (bad >= 0 or not good):
                member.failed_step = bad + 1 if bad >= 0 else self.step
                found.append(index)
        return found

    def check(self, length: int) -> list[Count]:
        """Held-out accuracy of every run now."""
        if self._checked_at != self.step:  # a trigger that looks asks for one run after the other
            self._checked, self._checked_at = {}, self.step
        if length not in self._checked:
            gates = torch.tensor([member.gate(self.step) for member in self.members], device=self.device)
            self._checked[length] = count_correct_stacked(
                lambda function, *inputs: self._gated(function, gates, *inputs),
                self.shared.task,
                length,
                sequences=CHECK_SEQUENCES,
                seeds=self.seeds,
                split="validation",
                device=self.device,
            )
        return self._checked[length]

    @property
    def watched_lengths(self) -> list[int]:
        return sorted({length for member in self.members for length in member.config.watched_lengths})

    def _gated(self, function: Any, gates: Tensor, *inputs: Any) -> Any:
        def one(model: Any, gate: Tensor, *arguments: Any) -> Any:
            self.stack.set_gate(gate)
            return function(model, *arguments)

        try:
            return self.stack.each(one, gates, *inputs)
        finally:
            self.stack.set_gate(1.0)

    def state_tracking(self, multiple: float, index: int) -> float:
        """Held-out accuracy of a run's state answer at a multiple of the training length."""
        answer = self.shared.task.state_answer
        assert answer is not None, "RunConfig refuses when_beyond for a task without a state answer"
        return self.check(round(multiple * self.shared.training.length))[index].accuracy_of(answer)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and optimizer state of all runs, by file and by name."""
        return {
            "stack": {"parameters": self.stack.flat, "first": self.first, "second": self.second},
            "sums": {"sums": self._sums, "first_bad": self._first_bad},
        }

    def state(self) -> dict[str, Any]:
        """Everything else, as plain data."""
        kept = ("switch_step", "switch_reason", "memory", "summed", "failed_step", "phase_done", "rate_done")
        members = [{name: getattr(member, name) for name in kept} for member in self.members]
        return {"step": self.step, "members": members}

    def load(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        """Take up where `tensors` and `state` were written."""
        stack, sums = tensors["stack"], tensors["sums"]
        with torch.no_grad():
            self.stack.flat.copy_(stack["parameters"])
        self.first.copy_(stack["first"])
        self.second.copy_(stack["second"])
        self._sums.copy_(sums["sums"])
        self._first_bad.copy_(sums["first_bad"])
        self.step = state["step"]
        self._index.fill_(self.step)
        self.members = [Member(m.config, **kept) for m, kept in zip(self.members, state["members"], strict=True)]


def _first_model(config: RunConfig) -> SequenceModel:
    torch.manual_seed(config.seed)
    return SequenceModel(config.model, config.task.vocabulary_size)
