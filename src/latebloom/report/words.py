"""What an evaluation, a comparison or a study showed, in a sentence computed from the numbers."""

from collections.abc import Sequence

from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import CLAIM, HOLDS_AT, Evaluation, held_length
from latebloom.report.compared import Compared
from latebloom.report.panel import Panel
from latebloom.report.statistics import SETTLED_AT, Comparison, Estimate, seeds_to_settle

MOST_TOLD = 4
"""Arms that a sentence names; of more, it names the best two and the last."""
LEVEL_WITHIN = 0.0005
"""A difference in accuracy that a tenth of a percentage point does not show."""
MOST_DIFFERENCES = 6
"""Differences that a sentence names; of more, the largest, and how many others there are."""


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


def describe_switch(step: int, reason: str, *, hold: str, untrained: bool, withheld: Sequence[str]) -> str:
    """When and why the delay ended, and why the loss jumps there, if it does."""
    causes = ["attention comes in untrained"] if untrained else []
    if withheld:
        causes.append(f"{' and '.join(withheld)} {'are' if len(withheld) > 1 else 'is'} asked from then on")
    jump = f" The loss jumps there, because {' and '.join(causes)}." if causes else ""
    if hold == "none":
        return f"Attention was in from the start; the switch was at step {step}: {reason}.{jump}"
    return f"Attention was let in at step {step}: {reason}.{jump}"


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
        return (
            f"{seen} On this seed the delay made the difference, with what belongs to it: its learning rates, and what "
            "is asked when. Joint training can be tuned further than it is here; the README says how far that goes."
        )
    return f"{seen} Delayed attention holds, and joint training falls short of it by less than expected."


def headline(panel: Panel) -> str:
    """A panel in a sentence or two: who stands where at the compared length, and who holds."""
    length = panel.compared_length
    if length is None:
        return f"No run on {panel.task} has finished."
    told, left_out = _told(panel)
    levels = [f"{arm} {'gets every answer right ' * (i == 0)}on {one.mean:.1%}" for i, (arm, one) in enumerate(told)]
    return (
        f"On sequences of {length} items, {length / panel.training_length:.3g}x the longest in training, "
        f"{row(levels)}{left_out}. {_who_holds(panel)}"
    )


def _told(panel: Panel) -> tuple[list[tuple[str, Estimate]], str]:
    """The arms that a sentence names, and how they were picked: where most others are held against one, that too."""
    best, last = panel.standings[:1], panel.standings[-1:]
    if len(panel.standings) <= MOST_TOLD:
        return panel.standings, ""
    reference = [(arm, one) for arm, one in panel.standings[1:-1] if arm == panel.reference]
    if reference:
        return [*best, *reference, *last], (
            f" (the best, the one that most are held against, and the last of {len(panel.standings)})"
        )
    return [*panel.standings[:2], *last], f" (the best two and the last of {len(panel.standings)})"


def doubt(panel: Panel, compared: Compared) -> str:
    """How far the headline can be trusted: how many seeds, what is missing, and whether they settle who is ahead."""
    if not panel.standings:
        return ""
    if panel.is_single:
        text = "One seed each: there are no error bars, and another seed may say something else."
        seeds = {arm: seed for arm in panel.shown for seed in panel.finished[arm]}
        if len(set(seeds.values())) > 1:
            told = row([f"{arm} has {seed}" for arm, seed in seeds.items()])
            text += f" Their seeds differ ({told}), so it is not the arms alone that differ."
    else:
        numbers = sorted({one.seeds for _, one in panel.standings})
        many = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        text = f"Means over {many} seeds."
    missing = [arm for arm in panel.arms if arm not in panel.shown]
    if missing:
        text += f" No run of {row(missing)} has finished."
    return text + (_settled_against(panel, compared) if panel.against else _settled(panel, compared))


def _who_holds(panel: Panel) -> str:
    holding = [arm for arm, one in panel.standings if one.mean >= HOLDS_AT]
    one_arm = len(panel.standings) == 1
    if not holding:
        guessing = ", nor is it clearly above guessing" if one_arm else ", and none is clearly above guessing"
        holds = "It does not hold" if one_arm else "None holds"
        return f"{holds} {HOLDS_AT:.0%} there{guessing * _are_guessing(panel)}."
    if len(holding) == len(panel.standings):
        return f"{'All hold' if len(holding) > 1 else 'It holds'} {HOLDS_AT:.0%} there."
    if len(holding) > MOST_TOLD:
        return f"{len(holding)} of {len(panel.standings)} hold {HOLDS_AT:.0%} there."
    return f"Only {row(holding)} hold{'s' * (len(holding) == 1)} {HOLDS_AT:.0%} there."


def _are_guessing(panel: Panel) -> bool:
    """Whether no arm gets more right than guessing would, all of its sequences taken together."""
    for arm, _ in panel.standings:
        runs = [run for run in panel.finished[arm].values() if panel.compared_length in run.lengths]
        counts = [count for run in runs for count in run.counts if count.length == panel.compared_length]
        low, _ = binomial_interval(sum(count.correct for count in counts), sum(count.sequences for count in counts))
        if low > max(run.chance_all for run in runs):
            return False
    return True


def _settled_against(panel: Panel, compared: Compared) -> str:
    """Which arms are ahead of those that they are held against, or behind, by more than chance."""
    near_and_far = {length: several for length, several in compared.items() if several}
    together = list(dict.fromkeys(several[0].together for several in near_and_far.values()))
    if not together:
        return ""
    many = f"{row([str(number) for number in together])} comparison{'s' * (together != [1])}"
    test = f"(p below {SETTLED_AT:g}, corrected for the study's {many} at each length)"
    if all(one.smallest_corrected >= SETTLED_AT for several in near_and_far.values() for one in several):
        enough = seeds_to_settle(min(together))
        return (
            f" So few seeds cannot settle whether any arm differs from what it is held against; {enough} could {test}."
        )
    found: dict[frozenset[tuple[str, str, bool]], tuple[str, list[str]]] = {}
    for length, several in near_and_far.items():
        settled = [one for one in several if one.p_corrected < SETTLED_AT]
        sides = {
            "ahead": [one for one in settled if one.difference.mean > 0],
            "behind": [one for one in settled if one.difference.mean < 0],
        }
        text = " and ".join(f"{_who(panel, pairs)} {side}" for side, pairs in sides.items() if pairs) or "none"
        which = frozenset((one.first, one.second, one.difference.mean > 0) for one in settled)
        found.setdefault(which, (text, []))[1].append(str(length))
    told = (f"at length{'s' * (len(lengths) > 1)} {row(lengths)}, {text}" for text, lengths in found.values())
    return f" Different from what they are held against by more than chance {test}: {'; '.join(told)}."


def _who(panel: Panel, pairs: Sequence[Comparison]) -> str:
    """The arms of some comparisons, each with the other one where it has several; of many, those that differ most."""
    left = len(pairs) - MOST_DIFFERENCES + 1
    if left > 1:
        pairs = sorted(pairs, key=lambda one: -abs(one.difference.mean))[:-left]
    names = [
        one.first if len(panel.against[one.first]) == 1 else f"{one.first} [against {one.second}]" for one in pairs
    ]
    names += [f"{left} more"] * (left > 1)
    return f"{row(names)} {'is' if len(names) == 1 else 'are'}"


def _settled(panel: Panel, compared: Compared) -> str:
    """The best arm against the next, if they share seeds."""
    if len(panel.standings) < 2 or panel.compared_length is None:
        return ""
    best, second = (arm for arm, _ in panel.standings[:2])
    pairs = compared[panel.compared_length]
    one = next((one for one in pairs if (one.first, one.second) == (best, second)), None)
    if one is None:
        return ""
    gap = f"{100 * abs(one.difference.mean):.1f} percentage points over {one.difference.seeds} shared seeds"
    if one.difference.mean == 0:
        return f" {best} and {second} are level."
    if abs(one.difference.mean) < LEVEL_WITHIN:
        return f" {best} and {second} are level to within {100 * LEVEL_WITHIN:g} percentage points."
    if one.difference.mean < 0:  # the better mean over all seeds need not be the better one over shared seeds
        best, second = second, best
    ahead = f" {best} is ahead of {second} by {gap}"
    corrected = ", corrected" * (one.together > 1)
    if one.p_corrected < SETTLED_AT:
        return f"{ahead} (p = {one.p_corrected:.2g}{corrected})."
    if one.smallest_corrected >= SETTLED_AT:
        at_best = f"{one.smallest_corrected:.3g} at best; {seeds_to_settle(one.together)} seeds could"
        how_sure = f"p = {one.p_corrected:.3g}{corrected}, and {at_best}"
        return f"{ahead}; so few seeds cannot settle whether that is chance ({how_sure})."
    return f"{ahead}, which could be chance (p = {one.p_corrected:.2g}{corrected})."


def row(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
