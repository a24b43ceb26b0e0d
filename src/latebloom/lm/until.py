"""The trigger that ends the delay of a language model, as a user writes it.

    10%            after a tenth of the steps
    500            after 500 steps
    plateau        when the training loss has stopped falling
    plateau@4x     when the held-out loss at 4 times the training context has stopped falling
    loss<3.2@4x    when the held-out loss at 4 times the training context is below 3.2 nats

Triggers that await something switch at the latest step even if it has not come.
"""

import re
from math import exp

from latebloom.delay.triggers import AtFraction, AtStep, Trigger, WhenBeyond, WhenPlateau
from latebloom.errors import ConfigError

PATTERN = re.compile(
    r"(?P<share>\d+(?:\.\d+)?)%|(?P<step>\d+)|plateau(?:@(?P<at>\d+(?:\.\d+)?)x)?|"
    r"loss<(?P<loss>\d+(?:\.\d+)?)@(?P<multiple>\d+(?:\.\d+)?)x"
)


def read_trigger(text: str, latest: int, every: int) -> Trigger:
    """Return the trigger; `latest` is its last step, and held-out text is evaluated at every `every` steps."""
    found = PATTERN.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ConfigError(f"until: {text!r} is not known; write 10%, a step such as 500, plateau@4x or loss<3.2@4x")
    if found["share"]:
        return AtFraction(fraction=float(found["share"]) / 100)
    if found["step"]:
        return AtStep(step=int(found["step"]))
    if found["loss"]:
        # The trigger compares an accuracy: here the geometric mean of the probabilities of the right tokens.
        threshold, multiple = exp(-float(found["loss"])), float(found["multiple"])
        return WhenBeyond(threshold=threshold, multiple=multiple, latest=latest, every=every)
    return WhenPlateau(metric=f"held_out_loss_{found['at']}x" if found["at"] else "loss", latest=latest)


def held_out_multiple(trigger: Trigger) -> float | None:
    """Return the multiple of the training context at which a trigger wants held-out losses in the log, if any."""
    if isinstance(trigger, WhenPlateau) and trigger.metric.startswith("held_out_loss_"):
        return float(trigger.metric.removeprefix("held_out_loss_").removesuffix("x"))
    return None
