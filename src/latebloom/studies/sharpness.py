"""The study `sharpness`: score functions that keep attention sharp over many tokens, under joint training and DAT.

Lengths go to 256 times the training length, with keys of two tokens; nearer by, softmax without positions loses
nothing. Recall alone is the negative control for the delay: there is no state to track. Scores that differ from
softmax in evaluation only train the same weights as softmax from the same seed.
"""

from dataclasses import replace
from typing import Any

from latebloom.config import RunConfig
from latebloom.layers.attention import ASEntmax, Entmax, LogN, Scores, Softmax, SSMax, StickBreaking, TopK
from latebloom.results.stated import Difference, Hypothesis
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    MANY_ARMS,
    Size,
    at_rate,
    base_config,
    delayed,
    fresh_plan,
    rate_axis,
    staged,
    with_attention,
    with_state_noise,
)
from latebloom.tasks import Composite, Recall, Task

KEYS: dict[str, Any] = {"keys": 80, "key_tokens": 2}
TASKS: dict[str, Task] = {"composite": Composite(**KEYS), "recall": Recall(**KEYS)}
TOKENS = Composite(**KEYS).token_count(25)
"""Tokens of the longest training sequence, at which the scaling of log-n is 1."""
FORMS: dict[str, Scores] = {
    "softmax": Softmax(),
    "log-n": LogN(reference_length=TOKENS),
    "log-n in tests": LogN(reference_length=TOKENS, only_at_inference=True),
    "ssmax": SSMax(),
    "entmax": Entmax(),
    "asentmax": ASEntmax(),
    "stick-breaking": StickBreaking(),
    "top-16 in tests": TopK(),
}
BASE = "softmax"
SIZES: dict[Scale, Size] = {
    "tiny": replace(
        MANY_ARMS["tiny"], steps=10, tuning_seeds=1, second_round=0, rates=(6e-3,), multiples=(1, 3, 16), sequences=16
    ),
    "paper": replace(
        MANY_ARMS["paper"], seeds=24, tuning_seeds=2, second_round=2, rates=(1.5e-3, 3e-3, 6e-3, 1.2e-2),
        multiples=(1, 3, 16, 64, 256), sequences=128,
    ),
    "large": replace(
        MANY_ARMS["large"], seeds=24, tuning_seeds=2, second_round=2, rates=(1e-3, 2e-3, 4e-3, 8e-3),
        multiples=(1, 3, 16, 64, 256), sequences=128,
    ),
}  # fmt: skip
ROUNDS = {0.35: 3, 0.7: 2}
"""The second round of tuning ends well after the switch, at half of the steps."""
SPEED = 7_500.0
"""For about 31 tokens (docs/performance.md). Entmax and stick-breaking have no kernel and were not timed on a GPU."""


@study("sharpness")
def sharpness(scale: Scale) -> Plan:
    """Eight score functions under joint training and DAT: recall and composite with keys of two tokens, 1x to 256x."""
    size = SIZES[scale]
    arms = []
    for group, task in TASKS.items():
        joint = base_config(size, task)
        ways = {"joint": joint, "dat": delayed(joint)}
        if group == "composite":
            noisy = with_state_noise(joint, size)
            ways = {"joint": noisy, "dat": staged(noisy)}
        for way, run in ways.items():
            if group == "recall" and way == "dat":
                arms.append(_arm(size, run, way, BASE, group, against=f"joint ({BASE})", control=True))
            else:
                arms += [_arm(size, run, way, form, group, _baselines(way, form)) for form in FORMS]
    return fresh_plan(scale, size, arms, ROUNDS, _hypotheses(size), SPEED)


def _arm(
    size: Size, run: RunConfig, way: str, form: str, group: str, against: tuple[str, ...] | str, control: bool = False
) -> Arm:
    config = with_attention(run, scores=FORMS[form])
    choices = tuple(at_rate(config, rate) for rate in size.rates)
    axis = rate_axis(size.rates)
    return Arm(f"{way} ({form})", config, choices, group=group, against=against, control=control, axis=axis)


def _baselines(way: str, form: str) -> tuple[str, ...]:
    """Return softmax trained in the same way; and joint training with the same scores."""
    same_way = () if form == BASE else (f"{way} ({BASE})",)
    return (*same_way, f"joint ({form})") if way == "dat" else same_way


def _hypotheses(size: Size) -> list[Hypothesis]:
    far = max(size.multiples)
    return [
        Hypothesis(
            f"ASEntmax mends the loss of sharpness at {far:g}x and keeps the benefit of DAT.",
            "it is less than 5 points ahead of softmax under DAT, or DAT with it is less than 5 points ahead of joint.",
            [
                Difference(task="composite", arm="dat (asentmax)", baseline=f"dat ({BASE})", at=far),
                Difference(task="composite", arm="dat (asentmax)", baseline="joint (asentmax)", at=far),
            ],
        ),
        Hypothesis(
            f"Scaling by log n mends it too, trained or in tests only, at {far:g}x.",
            "either is less than 5 points ahead of softmax under DAT.",
            [
                Difference(task="composite", arm=f"dat ({form})", baseline=f"dat ({BASE})", at=far, answer="recall")
                for form in ("log-n", "log-n in tests")
            ],
        ),
        Hypothesis(
            "At 16x softmax has lost nothing yet: no score function is ahead in recall.",
            "one of them differs by 5 points or more.",
            [
                Difference(task="recall", arm=f"joint ({form})", baseline=f"joint ({BASE})", at=16, equal=True)
                for form in ("log-n", "ssmax", "asentmax")
            ],
        ),
        Hypothesis(
            "Negative control: on recall alone the delay changes nothing.",
            "DAT and joint training differ by 5 points or more.",
            [
                Difference(task="recall", arm=f"dat ({BASE})", baseline=f"joint ({BASE})", at=at, equal=True)
                for at in (3, 16)
            ],
        ),
    ]
