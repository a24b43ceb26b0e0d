"""The trainer: everything that a step changes, and everything that a resumed run needs.

The same trainer trains one run or a stack of hundreds, on a CPU or a GPU; the difference is in the backend.

Shapes: S runs, R roles of parameters, N logged metrics.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from latebloom.config import RunConfig
from latebloom.delay.policy import Stage
from latebloom.delay.triggers import Moment
from latebloom.engine.backend import Alone
from latebloom.engine.capture import Captured
from latebloom.engine.checkpoint import Tensors
from latebloom.engine.draws import attention_draws, drop_path
from latebloom.engine.interference import Interference
from latebloom.engine.loss import answer_losses, total_loss
from latebloom.engine.noise import state_noise
from latebloom.engine.passing import StatePassing
from latebloom.engine.record import record_
from latebloom.engine.run_state import RunState
from latebloom.engine.schedule import rate_of_step
from latebloom.engine.stacked import Stacked
from latebloom.engine.stacks import is_faster_stacked, stack_key
from latebloom.errors import ConfigError
from latebloom.evaluation.accuracy import Count, count_correct, evaluating
from latebloom.models.block import residual_parts
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.stream import Stream
from latebloom.tasks.task import Batch

CHECK_SEQUENCES = 256
"""The number of held-out sequences of a check during training."""

T = TypeVar("T")


@dataclass(frozen=True)
class StepForm:
    """The properties of a step that the host knows; a step is captured once for each form.

    None means that the runs differ; the step reads the value from the device.
    """

    length: int
    batch_size: int
    gate: float | None
    withheld: tuple[str, ...] | None
    trains_attention: bool | None


class Trainer:
    """Models, optimizers, delays and data positions of runs with the same `stack_key`."""

    def __init__(
        self, configs: Sequence[RunConfig], device: torch.device, *, stacked: bool | None = None, capture: bool = True
    ) -> None:
        """Build the models from their seeds; `is_faster_stacked` decides about one run unless `stacked` is given."""
        if len(configs) > 1 and len({stack_key(config).hash for config in configs}) > 1:
            raise ConfigError(
                "these runs cannot be stacked: they differ in more than seed, learning rates, averaging of the loss, "
                "state noise and delay"
            )
        self.device, self.step = device, 0
        self.runs = [RunState(config) for config in configs]
        self.shared = configs[0]
        """The configuration of the first run, for the settings that all of them share."""
        task, training = self.shared.task, self.shared.training
        models = [_first_model(config) for config in configs]
        is_stack = (len(models) > 1 or is_faster_stacked(self.shared, device)) if stacked is None else stacked
        self._is_saved_alone = is_stack and stacked is None and len(models) == 1
        self.backend = Stacked(models, training, device) if is_stack else Alone(models[0], training, device)
        self._attention = residual_parts(self.backend.template, "attention")
        self._recurrences = residual_parts(self.backend.template, "recurrence")
        for part in self._attention:
            part.detached = training.detach_attention
        self._passing = None
        if training.state_passing:
            sizes = training.state_passing, len(configs), training.full.batch_size
            self._passing = StatePassing(self.backend.template, self._recurrences, task, *sizes)
        self.stream = Stream(task, 0, training.length)
        self.captured = Captured(device, capture)
        self.seeds = torch.tensor([config.seed for config in configs], device=device)
        self._seed = _common([config.seed for config in configs])
        self._state_noise = _common([config.training.state_noise for config in configs])
        self._per_token = _common([config.training.weigh == "positions" for config in configs])
        self._index = torch.zeros((), dtype=torch.int64, device=device)
        # The inputs of a step for each run: learning rates and step counts of the roles, gate, state noise, whether the
        # loss is averaged per token, the probability of skipping attention, the factor of the bypass loss, and which
        # answers are in the loss.
        roles = len(self.backend.roles)
        self._control_sizes = [roles, roles, 1, 1, 1, 1, 1, len(task.answers)]
        self._controls = torch.zeros(len(configs), sum(self._control_sizes), device=device)
        # Sums stay on the device until they are logged, because reading them at every step would make the host wait.
        self._logged = ["loss", "gradient_norm", *(f"loss_{name}" for name in task.answers)]
        self._sums = torch.zeros(len(configs), len(self._logged), device=device)
        self._first_bad = torch.full((len(configs),), -1, dtype=torch.int64, device=device)
        self._checked: dict[int, list[Count]] = {}
        self._interference: Interference | None = None

    def advance(self) -> list[int]:
        """Do one step of every run; return the indices of the runs that enabled attention after it."""
        form = self._form()
        controls = torch.tensor([self._controls_of(run) for run in self.runs])
        if self.device.type == "cuda":
            controls = controls.pin_memory()  # so that the copy does not wait for the device
        self._controls.copy_(controls, non_blocking=True)
        self.captured.run(form, lambda: self._device_step(form))
        self.step += 1
        self._checked.clear()
        switched = [index for index, run in enumerate(self.runs) if self._after_step(index, run)]
        if switched:  # the trigger has measured the model before the switch
            self._checked.clear()
        return switched

    def rehearse(self) -> None:
        """Do a step of the longest length without changing a parameter, to measure its memory."""
        self._controls.zero_()  # no role has a step count, so none is trained
        training = self.shared.training
        self._device_step(StepForm(training.length, training.full.batch_size, 1.0, (), True))

    def _form(self) -> StepForm:
        stages = [run.stage(self.step) for run in self.runs]
        training, longest = self.shared.training, None
        if training.curriculum is not None:
            longest = training.curriculum.at(self.step, training.steps, training.length)
        length = self.stream.length(self.step, longest)
        phase = _common([stage.phase for stage in stages])
        batch_size = (training.delayed if phase == "delayed" else training.full).batch_size
        gate, withheld = _common([stage.gate for stage in stages]), _common([stage.withheld for stage in stages])
        # Mixed stacks share one form per length and batch size, so that few forms have to be captured.
        uniform = withheld is not None and (gate == 0.0 or (gate == 1.0 and phase == "full"))
        if len(stages) > 1 and not uniform:
            return StepForm(length, batch_size, None, None, None)
        is_trained = stages[0].attention_since is not None
        return StepForm(length, batch_size, gate if gate in (0.0, 1.0) else None, withheld, is_trained)

    def _controls_of(self, run: RunState) -> list[float]:
        stage, training = run.stage(self.step), run.config.training
        rate = rate_of_step(training, run.config.delay, run.switch.step, self.step)
        run.phase_done, run.rate_done = stage.phase, rate
        factors: dict[str, float] = {}  # they apply after a switch
        if run.switch.step is not None:
            factors = {"recurrence": training.recurrence_factor, "attention": training.attention_factor}
        if training.slow_attention is not None and stage.attention_since is not None:
            slow = training.slow_attention.at(self.step - stage.attention_since)
            factors["attention"] = factors.get("attention", 1.0) * slow
        drop = training.drop_path
        return [
            *(rate * factors.get(role, 1.0) for role in self.backend.roles),
            *(0.0 if start is None else float(self.step - start + 1) for start in self._starts(stage)),
            stage.gate,
            training.state_noise,
            float(training.weigh == "positions"),
            0.0 if drop is None else drop.at(self.step, training.steps),
            training.bypass_loss,
            *(float(name not in stage.withheld) for name in self.shared.task.answers),
        ]

    def _starts(self, stage: Stage) -> list[int | None]:
        """Return the step at which the training of each role began; None for one that is not trained."""
        return [stage.attention_since if role == "attention" else 0 for role in self.backend.roles]

    def _device_step(self, form: StepForm) -> None:
        """Do one step of all runs; reads and writes tensors that stay in place, and never waits for the device."""
        backend, passing = self.backend, self._passing
        rates, counts, *by_run, included = self._controls.split(self._control_sizes, dim=1)
        by_run = [column[:, 0] for column in by_run]
        backend.start_step()
        losses, guides, each, *carried = backend.each(
            partial(self._run_step, form), self.seeds, *by_run, included, *(passing.carried if passing else ())
        )
        self._set_gate(1.0)
        norms = backend.update(losses, rates, counts, form.trains_attention, guides if self._projects(form) else None)
        losses = losses.detach() + guides.detach() if self._projects(form) else losses.detach()
        if passing is not None:
            passing.keep(carried)
        record_(self._sums, self._first_bad, self._index, losses, norms, each, included)

    def _projects(self, form: StepForm) -> bool:
        """Return whether answers beside the state answer are in the loss, whose gradient is projected."""
        others = [name for name in self.shared.task.answers if name != self.shared.task.state_answer]
        return self.shared.training.project_gradients and any(name not in (form.withheld or ()) for name in others)

    def _run_step(
        self, form: StepForm, model: Any, seed: Tensor | int, gate: Tensor, noise: Tensor, per_token: Tensor,
        drop: Tensor, bypass: Tensor, included: Tensor, *carried: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the loss of one run, the loss that guides its gradient, the loss of each answer, and what is carried
        to the next batch."""
        task, training, passing = self.shared.task, self.shared.training, self._passing
        seed = seed if self._seed is None else self._seed
        batch = task.batch(seed, "train", self._index, length=form.length, size=form.batch_size, device=self.device)
        ended: list[Tensor] = []
        first_states: list[Tensor] = []
        if passing is not None:
            batch, answer, first_states = passing.start(carried, batch, seed, self._index)
            ended = [answer]
        batch = batch.without(form.withheld or ())
        deviation = noise if self._state_noise is None else self._state_noise

        def losses_of(asked: Batch, gate: float | Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
            """Return the loss of each answer, and the last states if they are passed on."""
            self._set_gate(gate)
            drawing = [] if isinstance(gate, float) and gate == 0.0 else self._attention
            skipping = drop if training.drop_path is not None else None
            attention, (sequences, tokens) = self.shared.model.attention, batch.shape
            with (
                ExitStack() as opened,
                state_noise(self._recurrences, deviation, seed, self._index, batch.shape),
                attention_draws(drawing, attention, seed, self._index, tokens, training.steps),
                drop_path(drawing, skipping, seed, self._index, sequences),
            ):
                last = opened.enter_context(passing.continuing(first_states)) if passing else []
                losses = answer_losses(model, asked)
            return losses, last

        now = gate if form.gate is None else form.gate
        mean = per_token if self._per_token is None else self._per_token
        in_loss = dict(zip(task.answers, included, strict=True)) if form.withheld is None else None
        state = task.state_answer or ""
        first = batch.without([state]) if self._projects(form) else batch
        losses, last = losses_of(first, now)
        loss = total_loss(losses, batch, mean, in_loss)
        guide = loss  # where nothing is projected, nobody asks for it
        others = [name for name in batch.columns if name != state]
        if self._projects(form):
            # A graph of its own, because the fused kernels support one backward pass.
            guiding, _ = losses_of(batch.without(others), now)
            guide, losses = total_loss(guiding, batch, mean, in_loss), losses | guiding
        is_left_out = isinstance(now, float) and now == 0.0
        if training.bypass_loss and not is_left_out:
            alone, _ = losses_of(batch.without(others), 0.0)
            added = alone[state] * (bypass if isinstance(now, float) else bypass * (now > 0))
            loss, guide = (loss, guide + added) if self._projects(form) else (loss + added, guide)
        each = [losses[name] if name in losses else torch.zeros_like(loss) for name in task.answers]
        return loss, guide, torch.stack([part.detach() for part in each]), *ended, *last

    def _set_gate(self, gate: float | Tensor) -> None:
        """Scale attention's output: a number for all models, or inside `each` of the backend a tensor for one."""
        for part in self._attention:
            part.gate = gate

    def _after_step(self, index: int, run: RunState) -> bool:
        run.summed += 1
        delay = run.config.delay
        # A failed run switches too, so that the others do not depend on when its failure was noticed.
        if delay is None or run.switch.step is not None:
            return False

        def state_tracking(multiple: float) -> float:
            answer = self.shared.task.state_answer
            assert answer is not None, "RunConfig refuses when_beyond for a task without a state answer"
            return self.check(round(multiple * self.shared.training.length))[index].accuracy_of(answer)

        return run.switch.update(delay.until, Moment(self.step, run.config.training.steps, state_tracking))

    def read_means(self, indices: Sequence[int] | None = None) -> dict[int, dict[str, float]]:
        """Return the mean losses of some runs, or of all, since their last reading; waits for the device."""
        chosen = list(range(len(self.runs))) if indices is None else list(indices)
        rows = self._sums[chosen].tolist()
        self._sums[chosen] = 0.0
        means: dict[int, dict[str, float]] = {}
        for index, row in zip(chosen, rows, strict=True):
            run = self.runs[index]
            delay = run.config.delay if run.phase_done == "delayed" else None
            left_out = [f"loss_{name}" for name in delay.withhold] if delay else []
            named = zip(self._logged, row, strict=True)
            means[index] = {name: value / run.summed for name, value in named if name not in left_out}
            run.summed = 0
        return means

    def find_failures(self) -> None:
        """Mark the runs whose loss, gradient or weights are no longer finite; waits for the device."""
        for run, bad, finite in zip(self.runs, self._first_bad.tolist(), self.backend.finite(), strict=True):
            if run.failed_step is None and (bad >= 0 or not finite):
                run.failed_step = bad + 1 if bad >= 0 else self.step

    @property
    def alive(self) -> list[int]:
        """The indices of the runs that have not failed."""
        return [index for index, run in enumerate(self.runs) if run.failed_step is None]

    def check(self, length: int) -> list[Count]:
        """Return the current held-out accuracy of every run."""
        if length not in self._checked:  # triggers measure one run after the other
            held_out = partial(count_correct, split="validation", sequences=CHECK_SEQUENCES, device=self.device)
            with self.current_gates() as each:
                self._checked[length] = held_out(each, self.shared.task, length, seeds=self.seeds)
        return self._checked[length]

    def interference(self) -> list[dict[str, Any]]:
        """Return the current interference of every run; nothing of the runs changes."""
        if self._interference is None:
            configs = [run.config for run in self.runs]
            self._interference = Interference(configs, self.backend, self.seeds, self._index, self.captured)
        return self._interference.measure([run.stage(self.step).gate for run in self.runs])

    @contextmanager
    def current_gates(self) -> Iterator[Callable[..., Any]]:
        """Yield `each` of the backend for evaluation, with attention gated as in the next step."""
        gates = [run.stage(self.step).gate for run in self.runs]
        common = _common(gates)
        by_run = torch.tensor(gates, device=self.device)

        def each(function: Callable[..., Any], *per_model: Tensor) -> Any:
            def gated(model: Any, gate: Tensor, *arguments: Any) -> Any:
                self._set_gate(common if common in (0.0, 1.0) else gate)
                return function(model, *arguments)

            return self.backend.each(gated, by_run, *per_model)

        try:
            with evaluating(self.backend.template):
                yield each
        finally:
            self._set_gate(1.0)

    def tensors(self) -> Tensors:
        """Return weights, optimizer state and sums, by file and by name."""
        if self._is_saved_alone:
            return self.part(0)[0]
        passed = {} if self._passing is None else {"passed": self._passing.tensors()}
        return {**self.backend.tensors(), "sums": {"sums": self._sums, "first_bad": self._first_bad}, **passed}

    def state(self) -> dict[str, Any]:
        """Return the rest of the state, as plain data."""
        return {"step": self.step, "runs": [run.state_dict() for run in self.runs]}

    def load(self, tensors: Tensors, state: dict[str, Any]) -> None:
        """Continue from the results of `tensors` and `state`."""
        if self._is_saved_alone:
            self.load_parts([(tensors, state)])
            return
        self.backend.load(tensors)
        self._load_rest(tensors["sums"], state["step"], state["runs"])
        if self._passing is not None:
            self._passing.load(tensors["passed"])

    def _load_rest(self, sums: dict[str, Tensor], step: int, runs: Sequence[dict[str, Any]]) -> None:
        self._sums.copy_(sums["sums"])
        self._first_bad.copy_(sums["first_bad"])
        self.step = step
        self._index.fill_(step)
        for run, kept in zip(self.runs, runs, strict=True):
            run.load_state_dict(kept)

    def model(self, index: int) -> SequenceModel:
        """Return the model of a run: on the CPU if it is in a stack, and where it was trained if it is alone."""
        model = self.backend.model(index)
        return model.to(self.device) if self._is_saved_alone else model

    def part(self, index: int) -> tuple[Tensors, dict[str, Any]]:
        """Return tensors and state of one run, as if it was trained alone."""
        run = self.runs[index]
        starts = self._starts(run.stage(self.step))
        counts = [0 if start is None else self.step - start for start in starts]
        sums = {"sums": self._sums[index : index + 1], "first_bad": self._first_bad[index : index + 1]}
        tensors = {**self.backend.tensors_of(index, counts), "sums": sums}
        if self._passing is not None:
            tensors["passed"] = {name: each[index : index + 1] for name, each in self._passing.tensors().items()}
        return tensors, {"step": self.step, "runs": [run.state_dict()]}

    def load_parts(self, parts: Sequence[tuple[Tensors, dict[str, Any]]]) -> None:
        """Continue from the `part` of each run; all are at the same step."""
        (step,) = {state["step"] for _, state in parts}
        sums = {name: torch.cat([tensors["sums"][name] for tensors, _ in parts]) for name in ("sums", "first_bad")}
        self.backend.load_each([tensors for tensors, _ in parts])
        if self._passing is not None:
            passed = [tensors["passed"] for tensors, _ in parts]
            self._passing.load({name: torch.cat([each[name] for each in passed]) for name in passed[0]})
        self._load_rest(sums, step, [state["runs"][0] for _, state in parts])


def _common(values: Sequence[T]) -> T | None:
    """Return the value that all share, or None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _first_model(config: RunConfig) -> SequenceModel:
    torch.manual_seed(config.seed)
    return SequenceModel(config.model, config.task.vocabulary_size)
