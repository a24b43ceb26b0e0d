"""The study `holding`: ways to hold attention back, and other settings of the delay."""

from dataclasses import replace

from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    MANY_ARMS,
    SIZES,
    at_rate,
    base_config,
    composite,
    delayed,
    middle_rates,
    staged,
    with_attention,
    with_state_noise,
    with_training,
)

SEEDS: dict[Scale, int] = {"tiny": 2, "paper": 20, "large": 20}
"""Twenty seeds, because the study makes twenty-five comparisons, and with ten seeds some could be chance."""


@study("holding")
def holding(scale: Scale) -> Plan:
    """Bypass, freeze or ramp; output; recall loss; rates and restart; state noise; supervision; order."""
    size = replace(MANY_ARMS[scale], seeds=SEEDS[scale], noise=SIZES[scale].noise)
    _, rate = middle_rates(size)
    base = at_rate(base_config(size, composite()), rate)
    dat = delayed(base)
    at_its_best = with_state_noise(with_attention(base, scores="log_n"), size)
    ramp = max(1, size.steps // 10)
    arms = [
        Arm("dat", dat),
        # Frozen attention whose output is zero would be a bypass, so it is compared with "random output".
        Arm("freeze", delayed(with_attention(base, zero_output=False), hold="freeze"), against="random output"),
        Arm("ramp", delayed(base, hold="ramp", ramp_steps=ramp), against="dat"),
        Arm("random output", with_attention(dat, zero_output=False), against="dat"),
        Arm("no look-back", with_attention(dat, look_back=False), against="dat"),
        Arm("sharpened", with_attention(dat, scores="log_n"), against="dat"),
        Arm("recall withheld", delayed(base, withhold=("recall",)), against="dat"),
        Arm("recurrence at 0.3", with_training(dat, recurrence_factor=0.3), against="dat"),
        Arm("half the rate after", at_rate(dat, rate, rate / 2), against="dat"),
        Arm("state noise", with_state_noise(dat, size), against="dat"),
        # The effect of the second warm-up and decay of the learning rate that come with the delay.
        Arm("no restart", with_training(dat, restart=False), against="dat"),
        Arm("joint", base, against="dat"),
        Arm("joint (restarted)", with_training(base, full=replace(base.training.full, cycles=2)), against="joint"),
        Arm("joint (state noise)", with_state_noise(base, size), against="joint"),
        # The effect of the delay of attention, apart from the later recall loss.
        Arm(
            "recall withheld (none held)",
            delayed(base, hold="none", withhold=("recall",)),
            against=("recall withheld", "joint (restarted)"),
        ),
        # The form of the study `paper`: four changes at once, so it is compared with no arm above.
        Arm("staged", staged(at_its_best)),
        Arm("staged (none held)", staged(at_its_best, hold="none"), against="staged"),
    ]
    for name, settings in {
        "outcome": {"supervision": "outcome"},
        "pairs-first": {"order": "pairs-first"},
        "interleaved": {"order": "interleaved"},
    }.items():
        task = composite(**settings)
        arms.append(Arm(f"dat ({name})", replace(dat, task=task), against=("dat", f"joint ({name})")))
        arms.append(Arm(f"joint ({name})", replace(base, task=task), against="joint"))
    return Plan(arms, range(size.seeds))
