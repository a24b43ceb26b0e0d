"""What an evaluation or a comparison showed, in a sentence computed from the numbers."""

from latebloom.evaluation.result import HOLDS_AT, Evaluation


def describe(name: str, evaluation: Evaluation) -> str:
    """One run: where it holds, and whether it has a cliff."""
    start = evaluation.training_length
    if evaluation.reach == 0:
        return f"{name} does not hold {HOLDS_AT:.0%} at any tested length."
    text = f"{name} holds {HOLDS_AT:.0%} up to {evaluation.reach:g}x its training length of {start}"
    if evaluation.cliff is not None:
        return f"{text}, then falls off a cliff: {evaluation.accuracy(evaluation.cliff):.0%} at {evaluation.cliff}."
    longer = next((n for n in evaluation.lengths if n > evaluation.reach * start), None)
    if longer is None:
        return f"{text}, the longest tested."
    return f"{text} and is at {evaluation.accuracy(longer):.0%} at {longer}."


def compare(joint: Evaluation, dat: Evaluation, switch_step: int | None, multiple: int = 3) -> str:
    """Joint training against delayed attention: what was seen at a multiple of the training length."""
    start = joint.training_length
    far = multiple * start
    ordinary, delayed = joint.accuracy(far), dat.accuracy(far)
    seen = (
        f"Trained on sequences of up to {start} items and tested on {far} ({multiple}x), the hybrid trained the "
        f"ordinary way gets every answer right on {ordinary:.1%} of them ({joint.accuracy(start):.1%} at {start}), "
        f"and the same hybrid with its attention delayed until step {switch_step} on {delayed:.1%} "
        f"({dat.accuracy(start):.1%} at {start})."
    )
    if delayed >= HOLDS_AT and ordinary < 0.5:
        return f"{seen} Delayed attention made the difference."
    if delayed >= HOLDS_AT and ordinary >= HOLDS_AT:
        return f"{seen} Both hold here: joint training did as well as delayed attention in this setting."
    if delayed < HOLDS_AT and delayed > ordinary + 0.05:
        return f"{seen} Delayed attention helped, but did not hold {HOLDS_AT:.0%}: this is not the result hoped for."
    if delayed < HOLDS_AT:
        return f"{seen} Delayed attention did not help here: this is not the result hoped for."
    return f"{seen} Delayed attention holds, and joint training falls short of it by less than expected."
