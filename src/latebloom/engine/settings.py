"""Training settings."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from latebloom.engine.options import Curriculum, DropPath, Share, SlowAttention
from latebloom.errors import require
from latebloom.fields import LARGEST_COUNT, Count, Positive, at_least, at_most, check_fields
from latebloom.layers.precision import Precision

LossAverage = Literal["answers", "positions"]
NotNegative = Annotated[float, at_least(0)]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The learning rate and the batches of one phase of training."""

    learning_rate: Positive = 2e-3
    """The peak learning rate, after the warm-up."""
    warmup: Annotated[int, at_least(0), at_most(LARGEST_COUNT)] = 200
    """Steps in which the rate rises from 0 to its peak."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """After the warm-up: a cosine down to 0 at the end of the phase, or constant."""
    cycles: Count = 1
    """How often warm-up and schedule are repeated, each in an equal share of the steps."""
    batch_size: Count = 128
    """Sequences per step."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained."""

    length: Annotated[int, at_most(LARGEST_COUNT)] = 25
    """The training length: batches draw their length uniformly from 2 to this."""
    steps: Count = 15_000
    """Optimizer steps in all."""
    delayed: Phase = field(default_factory=Phase)
    """The phase before the switch."""
    full: Phase = field(default_factory=Phase)
    """The phase after the switch, or all of joint training."""
    betas: tuple[float, float] = (0.9, 0.999)
    """The betas of AdamW."""
    weight_decay: NotNegative = 0.01
    """The weight decay of AdamW."""
    clip: Positive = 1.0
    """The norm at which gradients are clipped."""
    weigh: LossAverage = "answers"
    """How the loss is averaged: per named answer (answers), or per supervised token (positions)."""
    precision: Precision = "tf32"
    """Matrix products on a GPU: tf32 rounds their factors to 10 bits; float32 keeps 23 and is slower; bf16 rounds to 7
    and keeps the LSTM's gates in 16 bits. A CPU always computes in float32."""
    restart: bool = True
    """Whether warm-up and schedule of the learning rate restart at the switch, or run once over all steps."""
    recurrence_factor: NotNegative = 1.0
    """A factor on the learning rate of the recurrence after the switch of a delay."""
    attention_factor: NotNegative = 1.0
    """A factor on the learning rate of attention after the switch of a delay."""
    state_noise: float = 0.0
    """The standard deviation of the noise that is added to the states of recurrences at every token of training, so
    that they learn to correct their states. Evaluation has no noise; the paper's form has none."""
    slow_attention: SlowAttention | None = None
    """A lower learning rate, or a longer warm-up, for attention; null for none."""
    drop_path: DropPath | None = None
    """Leave attention out for some sequences, drawn for each sequence and block; null for none."""
    detach_attention: bool = False
    """Whether attention reads a detached residual stream, so that no gradient flows back through its input."""
    project_gradients: bool = False
    """Whether to remove, from the gradient of the other answers, the part that opposes the gradient of the state
    answer; takes a second forward and backward pass."""
    bypass_loss: NotNegative = 0.0
    """The weight of an extra loss in every step in which attention is enabled: the loss of the state answer with
    attention bypassed; takes a second forward and backward pass."""
    curriculum: Curriculum | None = None
    """Lengths that grow to the training length; null for none."""
    state_passing: Share = 0.0
    """The probability that a sequence continues the one in the same row of the previous batch: recurrences start from
    its last state, and the state answer continues."""
    watch: tuple[float, ...] = ()
    """More lengths, in training lengths, at which held-out accuracy is measured during training."""
    log_every: Count = 50
    """Steps between lines in metrics.jsonl."""
    check_every: Count = 200
    """Steps between measurements of held-out accuracy."""
    checkpoint_every: Count = 500
    """Steps between checkpoints."""
    probe_every: Annotated[int, at_least(0)] = 0
    """Steps between measurements of interference (docs/probes.md), which do not change the run; 0 for none."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.length >= 2, "length", self.length, "2 or more: a training length of 1 has nothing to track")
        require(all(0 <= beta < 1 for beta in self.betas), "betas", self.betas, "from 0 to below 1")
        require(all(multiple > 0 for multiple in self.watch), "watch", self.watch, "numbers above 0")
        require(0 <= self.state_noise <= 1, "state_noise", self.state_noise, "from 0 to 1: states are about 1")
