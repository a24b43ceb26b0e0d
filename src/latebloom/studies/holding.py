"""How should attention be held back, and what else matters at the switch?"""

from dataclasses import replace

from latebloom.config import RunConfig
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    MANY_ARMS,
    at_rate,
    base_config,
    composite,
    delayed,
    disturbed,
    middle_rates,
    staged,
    with_attention,
)


@study("holding")
def holding(scale: Scale) -> Plan:
    """Bypass, freeze, ramp; output; what is asked; rates and restart; noise; supervision; order: what matters?"""
    size = MANY_ARMS[scale]
    _, rate = middle_rates(size)
    base = at_rate(base_config(size, composite()), rate)
    dat = delayed(base)
    at_its_best = disturbed(with_attention(base, sharpen=True), size)
    ramp, full = max(1, size.steps // 10), base.training.full
    arms = [
        Arm("dat", dat),
        # Frozen attention whose output is zero would be a bypass, so it is compared with "random output".
        Arm("freeze", delayed(_random_output(base), hold="freeze")),
        Arm("ramp", delayed(base, hold="ramp", ramp_steps=ramp)),
        Arm("random output", _random_output(dat)),
        Arm("no look-back", with_attention(dat, look_back=False)),
        Arm("sharpened", with_attention(dat, sharpen=True)),
        Arm("recall withheld", delayed(base, withhold=("recall",))),
        Arm("recurrence at 0.3", replace(dat, training=replace(dat.training, recurrence_factor=0.3))),
        Arm("half the rate after", at_rate(dat, rate, rate / 2)),
        Arm("state noise", disturbed(dat, size)),
        # The delay brings a second warm-up and decay of the rate: what of its effect is that?
        Arm("no restart", replace(dat, training=replace(dat.training, restart=False))),
        Arm("joint", base),
        Arm("joint (restarted)", replace(base, training=replace(base.training, full=replace(full, cycles=2)))),
        Arm("joint (state noise)", disturbed(base, size)),
        # What of it is the delay of attention, what that of the question?
        Arm("recall withheld (none held)", delayed(base, hold="none", withhold=("recall",))),
        # The first study's form: four changes at once.
        Arm("staged", staged(at_its_best)),
        Arm("staged (none held)", staged(at_its_best, hold="none")),
    ]
    for name, settings in {
        "outcome": {"supervision": "outcome"},
        "pairs-first": {"order": "pairs-first"},
        "interleaved": {"order": "interleaved"},
    }.items():
        task = composite(**settings)
        arms.append(Arm(f"dat ({name})", replace(dat, task=task)))
        arms.append(Arm(f"joint ({name})", replace(base, task=task)))
    return Plan(arms, range(size.seeds))


def _random_output(run: RunConfig) -> RunConfig:
    return with_attention(run, zero_output=False)
