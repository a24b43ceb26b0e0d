"""What an evaluation or a comparison showed, in a sentence computed from the numbers."""

from latebloom.evaluation.result import CLAIM, HOLDS_AT, Evaluation, held_length


def describe(name: str, evaluation: Evaluation) -> str:
    """One run: where it holds, and whether it has a cliff."""
    start, held, lengths = evaluation.training_length, held_length(evaluation.counts), evaluation.lengths
    falls = ""
    if evaluation.cliff is not None:
        falls = f" It falls off a cliff: {evaluation.accuracy(evaluation.cliff):.0%} at {evaluation.cliff}."
    if held == 0:
        first = f"{evaluation.accuracy(lengths[0]):.0%} at {lengths[0]}"
        return f"{name} does not hold {HOLDS_AT:.0%} at the shortest tested length ({first}).{falls}"
    text = f"{name} holds {HOLDS_AT:.0%} up to {held} ({held / start:.3g}x its training length of {start})"
    longer = next((length for length in lengths if length > held), None)
    if longer is None:
        return f"{text}, the longest tested."
    if falls:
        return f"{text}.{falls}"
    return f"{text} and is at {evaluation.accuracy(longer):.0%} at {longer}."


def compare(joint: Evaluation, dat: Evaluation, switch_step: int | None, multiple: int = CLAIM) -> str:
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
    if delayed < HOLDS_AT:
        helped = "helped, but did not hold" if delayed > ordinary + 0.05 else "did not help here, nor did it hold"
        return f"{seen} Delayed attention {helped} {HOLDS_AT:.0%}: this is not the result hoped for."
    if ordinary >= HOLDS_AT:
        return f"{seen} Both hold here: joint training did as well as delayed attention in this setting."
    if joint.accuracy(start) < HOLDS_AT:
        return f"{seen} Joint training did not even learn the training length, so this says little about a cliff."
    if ordinary < 0.5:
        return f"{seen} Delayed attention made the difference."
    return f"{seen} Delayed attention holds, and joint training falls short of it by less than expected."
