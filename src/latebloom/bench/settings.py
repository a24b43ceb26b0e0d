"""What is timed: a hybrid of four blocks on sequences of 25 tokens by default."""

from latebloom.config import RunConfig
from latebloom.engine.settings import Phase, Training
from latebloom.layers.precision import Precision
from latebloom.models.settings import hybrid
from latebloom.tasks import Composite

LENGTH = 15
"""A composite sequence of 15 items has 25 tokens."""


def bench_config(*, width: int = 64, batch: int = 64, length: int = LENGTH, precision: Precision = "tf32") -> RunConfig:
    """Return a joint run of the hybrid, in which attention is enabled from the first step."""
    phase = Phase(batch_size=batch)
    training = Training(steps=10**9, length=max(25, length), full=phase, delayed=phase, precision=precision)
    return RunConfig(task=Composite(), model=hybrid(width=width), training=training)
