"""Sentences about an evaluation, a comparison or a study, computed from the numbers."""

from collections.abc import Sequence

from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import CLAIM, HOLDS_AT, Evaluation, held_length
from latebloom.report.compared import Compared
from latebloom.report.losses import loss_headline
from latebloom.report.panel import Panel
from latebloom.report.statistics import SETTLED_AT, seeds_to_settle
from latebloom.report.study_tables import times
from latebloom.report.tables import join_words

MOST_TOLD = 4
"""A sentence names at most this many arms."""


def describe(evaluation: Evaluation) -> str:
    """Describe one run: its reach, and its cliff if it has one."""
    held, cliff = held_length(evaluation.counts), evaluation.cliff
    longest = ", the longest tested" * (held == evaluation.lengths[-1])
    if cliff is not None:
        falls = f"{evaluation.accuracy(cliff):.0%} at {cliff}"
    else:
        falls = "none" if evaluation.cliff_tested else "not tested; it needs the training length and one up to twice it"
    reach = f"{evaluation.reach:.3g}x (length {held}{longest})"
    if not held:
        reach = f"none (below {HOLDS_AT:.0%} at length {evaluation.lengths[0]}, the shortest tested)"
    return f"reach: {reach}   cliff: {falls}"


def describe_switch(step: int, reason: str, *, hold: str, untrained: bool, withheld: Sequence[str]) -> str:
    """Say when and why the delay ended, and why the loss jumps there, if it does."""
    causes = ["attention is untrained"] * untrained
    causes += [f"the {join_words(withheld)} loss starts at the switch"] if withheld else []
    jump = f" The loss jumps there, because {' and '.join(causes)}." if causes else ""
    since = "from the start; the switch was " if hold == "none" else ""
    return f"Attention was enabled {since}at step {step}: {reason}.{jump}"


def compare(joint: Evaluation, dat: Evaluation, switch_step: int | None) -> str:
    """Compare joint training and delayed attention at three times the training length."""
    start, far = joint.training_length, CLAIM * joint.training_length
    ordinary, delayed = joint.accuracy(far), dat.accuracy(far)
    seen = (
        f"Trained on sequences of up to {start} items and tested on {far} ({CLAIM}x), joint training gets all answers "
        f"right on {ordinary:.1%} of them ({joint.accuracy(start):.1%} at {start}), and the same hybrid with attention "
        f"delayed until step {switch_step} on {delayed:.1%} ({dat.accuracy(start):.1%} at {start})."
    )
    if delayed < HOLDS_AT:
        helped = "helped, but" if delayed > ordinary + 0.05 else "did not help, and"
        verdict = f"Delayed attention {helped} is below {HOLDS_AT:.0%}: this is not the expected result."
    elif ordinary >= HOLDS_AT:
        verdict = "Joint training did as well as delayed attention here."
    elif joint.accuracy(start) < HOLDS_AT:
        verdict = "Joint training did not learn the training length, so this says little about a cliff."
    elif ordinary >= 0.5:
        verdict = "Delayed attention holds, and joint training falls short of it by less than expected."
    else:
        verdict = (
            "On this seed the delay made the difference, together with its learning rates and the later start of the "
            "recall loss. Joint training can be tuned further than here: see the results in the documentation."
        )
    return f"{seen} {verdict}"


def headline(panel: Panel) -> str:
    """Summarize a panel: the accuracy of the arms at the compared length, and which of them hold."""
    told, left_out = panel.standings(), ""
    if not told or panel.compared_length is None:
        return f"No run on {panel.task} has finished."
    if (arms := len(told)) > MOST_TOLD:
        middle = next((pair for pair in told[1:-1] if pair[0] == panel.reference), told[1])
        which = "the main baseline" if middle[0] == panel.reference else "second"
        told, left_out = [told[0], middle, told[-1]], f" (best, {which} and last of {arms} arms)"
    if panel.has_losses:
        return loss_headline(panel)
    levels = ", ".join(f"{arm} {one.mean:.1%}" for arm, one in told)
    at = times(panel, panel.compared_length)
    return f"All answers right at {at}: {levels}{left_out}. At {HOLDS_AT:.0%} or more: {_who_holds(panel)}."


def _who_holds(panel: Panel) -> str:
    holding = [arm for arm, one in panel.standings() if one.mean >= HOLDS_AT]
    if not holding:
        return "none, and none is clearly above guessing" if _are_guessing(panel) else "none"
    if len(holding) == len(panel.standings()):
        return "all"
    return join_words(holding) if len(holding) <= MOST_TOLD else f"{len(holding)} of {len(panel.standings())} arms"


def _are_guessing(panel: Panel) -> bool:
    """Return whether no arm is above guessing, with the sequences of all its seeds taken together."""
    for arm, _ in panel.standings():
        runs = [run for run in panel.finished[arm].values() if panel.compared_length in run.lengths]
        counts = [count for run in runs for count in run.counts if count.length == panel.compared_length]
        low, _ = binomial_interval(sum(count.correct for count in counts), sum(count.sequences for count in counts))
        if low > max(run.chance_all for run in runs):
            return False
    return True


def caveats(panel: Panel, compared: Compared) -> str:
    """Say how far the headline can be trusted: the number of seeds, missing arms, and significance."""
    if not panel.standings():
        return ""
    if panel.is_single:
        text = "One seed each: there are no error bars over seeds, and another seed may give another result."
        seeds = {arm: seed for arm in panel.shown for seed in panel.finished[arm]}
        if len(set(seeds.values())) > 1:
            told = join_words([f"{arm} has {seed}" for arm, seed in seeds.items()])
            text += f" The seeds differ too ({told}), not only the arms."
    else:
        numbers = sorted({one.seeds for _, one in panel.standings()})
        text = f"Means over {' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} seeds."
    if missing := [arm for arm in panel.arms if arm not in panel.shown]:
        text += f" No run of {join_words(missing)} has finished."
    failed = {arm: count for arm in panel.shown if (count := panel.failed_to_learn(arm))}
    if failed and not panel.has_losses:
        counts = [f"{arm} {count} of {len(panel.finished[arm])}" for arm, count in failed.items()]
        told = join_words(counts) if len(counts) <= MOST_TOLD else f"in {len(counts)} of {len(panel.shown)} arms"
        text += f" Seeds below {HOLDS_AT:.0%} at the training length, which count in the means: {told}."
    if panel.controls:
        text += f" Negative controls, in which no effect is expected: {join_words(panel.controls)}."
    return text + (_significant_effects(compared) if panel.against else _best_two(panel, compared))


def _significant_effects(compared: Compared) -> str:
    """Count the significant differences from baselines; the tables name them."""
    found = {length: several for length, several in compared.items() if several}
    if not found:
        return ""
    families = sorted({several[0].together for several in found.values()}, reverse=True)
    test = (
        f"p < {SETTLED_AT:g}, corrected for {join_words(list(map(str, families)))} comparison{'s' * (families != [1])}"
    )
    if all(one.smallest_corrected >= SETTLED_AT for several in found.values() for one in several):
        return (
            f" With so few seeds no difference from a baseline can be significant; {seeds_to_settle(families[-1])} "
            f"shared seeds could suffice ({test})."
        )
    below = {length: sum(one.p_corrected < SETTLED_AT for one in several) for length, several in found.items()}
    counts = [f"{many} of {len(found[length])} at length {length}" for length, many in below.items()]
    return f" Significant differences from baselines ({test}): {join_words(counts)}."


def _best_two(panel: Panel, compared: Compared) -> str:
    """Compare the best arm with the second, if they share seeds."""
    pair = [arm for arm, _ in panel.standings()[:2]]
    several = compared.get(panel.compared_length or 0, ())
    one = next((one for one in several if [one.first, one.second] == pair), None)
    if one is None:
        return ""
    p = f"p = {one.p_corrected:.2g}{', corrected' * (one.together > 1)}"
    if one.p_corrected >= SETTLED_AT:
        p += ", not significant"
    if one.smallest_corrected >= SETTLED_AT:
        p += f"; with so few seeds p cannot be below {one.smallest_corrected:.3g}, "
        p += f"and {seeds_to_settle(one.together)} seeds could suffice"
    points = f"{100 * one.difference.mean:+.1f} points over {one.difference.seeds} shared seeds"
    return f" Paired difference {one.first} - {one.second}: {points} ({p})."
