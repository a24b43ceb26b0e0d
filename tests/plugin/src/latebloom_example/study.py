"""A study that compares two recurrences."""

from dataclasses import replace

from latebloom import Delay, Evaluating, Phase, RunConfig, Training, at_fraction, hybrid
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom_example.parity import Parity

STEPS = {"tiny": 30, "paper": 400, "large": 4_000}


@study("elman_or_lstm")
def elman_or_lstm(scale: Scale) -> Plan:
    """Does an Elman network with sigmoid attention track parity as far as an LSTM?"""
    phase = Phase(learning_rate=5e-3, warmup=10, batch_size=16)
    base = RunConfig(
        task=Parity(),
        model=hybrid(width=16, blocks=1, heads=2),
        delay=Delay(until=at_fraction(0.5)),
        training=Training(length=6, steps=STEPS[scale], delayed=phase, full=phase, log_every=10, checkpoint_every=10),
        evaluation=Evaluating(multiples=(1, 2, 3), sequences=64),
    )
    elman = replace(base, model=hybrid(width=16, blocks=1, heads=2, recurrence="elman", scores="biased_sigmoid"))
    arms = [Arm("lstm", base), Arm("elman", elman, against="lstm")]
    return Plan(arms, seeds=range(2))
