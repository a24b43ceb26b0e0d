"""A study of a second: joint training against delayed attention, whose learning rate is tuned in two rounds."""

from dataclasses import replace

from latebloom import Composite, Delay, Evaluating, Phase, RunConfig, Training, at_fraction, hybrid
from latebloom.studies.plan import Arm, Plan, study


def at_rate(rate: float) -> RunConfig:
    phase = Phase(learning_rate=rate, warmup=4, batch_size=8)
    return RunConfig(
        task=Composite(modulus=3, keys=8, values=4),
        model=hybrid(width=8, blocks=1, heads=2, look_back=True, zero_output=True),
        training=Training(
            length=5, steps=24, delayed=phase, full=phase, log_every=6, check_every=12, checkpoint_every=12
        ),
        evaluation=Evaluating(multiples=(1, 2, 3), sequences=32),
    )


@study("small")
def small(scale: str) -> Plan:
    """Does the delay help?"""
    delay = Delay(until=at_fraction(0.5), withhold=("recall",))
    rates = tuple(replace(at_rate(rate), delay=delay) for rate in (1e-3, 1e-2))
    arms = (Arm("joint", at_rate(5e-3)), Arm("dat", rates[0], rates, against="joint"))
    return Plan(arms, seeds=(0, 1), tuning_seeds=(9,), second_round=(10,), finalists=1)
