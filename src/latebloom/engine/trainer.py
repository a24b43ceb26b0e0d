"""One run in progress: everything that a step changes, and everything a resumed run needs."""

from typing import Any

import torch
from torch import Tensor

from latebloom.config import RunConfig
from latebloom.delay.controller import DelayedAttention
from latebloom.engine.capture import Captured
from latebloom.engine.noise import StateNoise
from latebloom.engine.schedule import rate_of_step
from latebloom.engine.settings import Phase
from latebloom.engine.step import answer_losses, build_optimizer, set_rates, total_loss
from latebloom.evaluation.accuracy import Count, count_correct
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks.stream import Stream

CHECK_SEQUENCES = 256
"""How many held-out sequences a check during training asks."""


class Trainer:
    """Model, optimizer, delay and data position of one run."""

    def __init__(self, config: RunConfig, device: torch.device, *, capture: bool = True) -> None:
        self.config, self.device = config, device
        self.step = 0
        self.phase_done = ""  # the phase of the last step, which at the switch is not that of the next
        self.rate_done = 0.0
        torch.manual_seed(config.seed)
        self.model = SequenceModel(config.model, config.task.vocabulary_size).to(device)
        self.optimizer = build_optimizer(self.model, config.training)
        self.stream = Stream(config.task, config.seed, config.training.length)
        self.delay = self._build_delay()
        self._noise = StateNoise(self.model)
        # Sums since the last reading, on the device: reading them every step would make the host wait.
        self._named = ["loss", "gradient_norm", *(f"loss_{name}" for name in config.task.answers)]
        self._sums = torch.zeros(len(self._named), device=device)
        self._summed = 0
        self._first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self._index = torch.zeros((), dtype=torch.int64, device=device)
        self.captured = Captured(device, capture)

    def _build_delay(self) -> DelayedAttention | None:
        settings = self.config.delay
        if settings is None:
            return None
        return DelayedAttention(
            self.model,
            self.optimizer,
            until=settings.until,
            hold=settings.hold,
            ramp_steps=settings.ramp_steps,
            steps=self.config.training.steps,
            measure=self.state_tracking,
            automatic=False,  # a captured step runs the optimizer without its hooks
        )

    @property
    def holding(self) -> bool:
        return self.delay is not None and self.delay.holding

    @property
    def phase_name(self) -> str:
        return "delayed" if self.holding else "full"

    @property
    def phase(self) -> Phase:
        return self.config.training.delayed if self.holding else self.config.training.full

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        switch_step = None if self.delay is None else self.delay.switch_step
        return rate_of_step(self.config.training, self.config.delay, switch_step, self.step)

    def advance(self) -> bool:
        """Do one step; True if attention was let in after it."""
        training = self.config.training
        self.phase_done = self.phase_name
        switched_before = self.delay is not None and not self.delay.holding
        factors = (
            {"recurrence": training.recurrence_factor, "attention": training.attention_factor}
            if switched_before
            else {}
        )
        self.rate_done = self.rate
        set_rates(self.optimizer, self.rate_done, factors)
        length = self.stream.length(self.step)
        gate = 1.0 if self.delay is None else self.delay.gate
        key = (length, self.phase_name, "partly" if 0.0 < gate < 1.0 else gate)
        self.captured.run(key, lambda: self._device_step(length))
        self.step += 1
        self._summed += 1
        if self.delay is None:
            return False
        self.delay.before_step()  # a replayed step drops the gradients, but cannot tell the delay that it did
        return self.delay.after_step()

    def _device_step(self, length: int) -> None:
        """One step on the device; reads and writes tensors that stay in place, so that it can be captured."""
        config, training = self.config, self.config.training
        self.optimizer.zero_grad(set_to_none=True)  # a capture that failed half-way may have left some
        batch = config.task.batch(
            config.seed, "train", self._index, length=length, size=self.phase.batch_size, device=self.device
        )
        batch = batch.without(self.withheld)
        with self._noise.given(training.state_noise, config.seed, self._index, batch.shape):
            losses = answer_losses(self.model, batch)
        loss = total_loss(losses, batch, training.weigh)
        loss.backward()
        if self.delay is not None:
            self.delay.before_step()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), training.clip, foreach=True)
        self.optimizer.step()
        named = {"loss": loss, "gradient_norm": norm} | {f"loss_{name}": one for name, one in losses.items()}
        nothing = torch.zeros_like(norm)
        self._sums += torch.stack([named.get(name, nothing).detach() for name in self._named])
        is_first = ~(torch.isfinite(loss) & torch.isfinite(norm)) & (self._first_bad_step < 0)
        self._first_bad_step.copy_(torch.where(is_first, self._index, self._first_bad_step))
        self._index += 1

    @property
    def withheld(self) -> tuple[str, ...]:
        """Answers that are not asked now."""
        return self.config.delay.withhold if self.holding and self.config.delay is not None else ()

    def read_means(self) -> dict[str, float]:
        """Mean losses since the last reading; waits for the device."""
        withheld = self.config.delay.withhold if self.config.delay and self.phase_done == "delayed" else ()
        unasked = {f"loss_{name}" for name in withheld}
        sums = zip(self._named, self._sums.tolist(), strict=True)
        means = {name: value / self._summed for name, value in sums if name not in unasked}
        self._sums.zero_()
        self._summed = 0
        return means

    def first_bad_step(self) -> int | None:
        """The first step (1, 2, ...) whose loss, gradient or new weights are no numbers; waits for the device."""
        step = int(self._first_bad_step)
        if step >= 0:
            return step + 1
        finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()])
        return None if bool(finite.all()) else self.step

    def check(self, length: int) -> Count:
        """Held-out accuracy now."""
        return count_correct(
            self.model,
            self.config.task,
            length,
            sequences=CHECK_SEQUENCES,
            seed=self.config.seed,
            split="validation",
            device=self.device,
        )

    def state_tracking(self, multiple: float) -> float:
        """Held-out accuracy of the state answer at a multiple of the training length."""
        answer = self.config.task.state_answer
        assert answer is not None, "RunConfig refuses when_beyond for a task without a state answer"
        return self.check(round(multiple * self.config.training.length)).accuracy_of(answer)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights, optimizer state and random states, by file and by name."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        optimizer = {
            f"{names[id(parameter)]}/{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        randoms = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            randoms["cuda"] = torch.cuda.get_rng_state(self.device)
        weights = dict(self.model.state_dict())
        return {"model": weights, "optimizer": optimizer, "random": randoms, "sums": {"sums": self._sums}}

    def state(self) -> dict[str, Any]:
        """Everything else, as plain data."""
        delay = None if self.delay is None else self.delay.state_dict()
        return {"step": self.step, "delay": delay, "summed": self._summed}

    def load(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        """Take up where `tensors` and `state` were written."""
        self.model.load_state_dict(tensors["model"])
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, value in tensors["optimizer"].items():
            parameter, _, key = name.rpartition("/")
            self.optimizer.state[parameters[parameter]][key] = value.to(self.device)
        self.step, self._summed = state["step"], state["summed"]
        if self.delay is not None:
            self.delay.load_state_dict(state["delay"])
        self._sums.copy_(tensors["sums"]["sums"])
        self._index.fill_(self.step)
        randoms = tensors["random"]
        torch.set_rng_state(randoms["cpu"])
        if self.device.type == "cuda" and "cuda" in randoms:
            torch.cuda.set_rng_state(randoms["cuda"], self.device)
