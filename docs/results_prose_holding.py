"""What docs/results.md and the README say of the third study: sentences with their figures from results/*.parquet."""

from collections.abc import Iterator
from statistics import mean

from results_files import (
    EXACT,
    FAR,
    NEAR,
    ahead,
    at,
    composite,
    exact,
    held,
    level,
    noise_of,
    noisy,
    seeds,
    word,
)

from latebloom.report.compared import SETTLED_AT, comparisons
from latebloom.report.panel import Panel, panels
from latebloom.report.statistics import compare_arms
from latebloom.report.words import row

NONE_HELD = "recall withheld (none held)"


def holding() -> Iterator[str]:
    """For docs/results.md."""
    panel, earlier = composite("holding"), composite("holding-earlier")
    yield from levels(panel, earlier)
    yield from told_from_chance(panel)
    yield from answers(panel)
    yield from run_again(panel, earlier)


def holding_for_readme() -> Iterator[str]:
    panel = composite("holding")
    (digits, pairs, mixed), before = orders_in_short()
    middle, interval = digits.split(" ", 1)
    yield f"is ahead by {middle} points {interval} at three times the length over 20 seeds"
    yield f"with pairs first by {pairs} and with digits and pairs interleaved by {mixed} (by {before} when"
    yield f"the plain form is exact in {exact(panel, 'dat')} of {seeds(panel, 'dat')} seeds in half the steps"
    middle, interval = _difference(panel, NONE_HELD, "joint (restarted)").split(" ", 1)
    yield f"gains {middle} points {interval} there; where everything is tuned it gains none"


def levels(panel: Panel, earlier: Panel) -> Iterator[str]:
    """How good some arms are."""
    again = composite("replicate")
    here, *others = (level(one, "dat", FAR) for one in (panel, earlier, again))
    link = "[third study](#what-matters-at-the-switch)"
    yield (
        f"is at {here} at sixteen times in the {link}, in half the steps (at {' and '.join(others)} in earlier runs on "
        f"{word(seeds(again, 'dat'))} of its seeds)"
    )
    yield (
        f"the plain form is at {here} at sixteen times and the four changes together at {level(panel, 'staged', FAR)}"
    )
    yield f"(exact in {exact(panel, 'staged')} and {exact(panel, 'dat')} of {seeds(panel, 'dat')} seeds)"
    yield (
        f"Exact, at sixteen times too, are {exact(panel, NONE_HELD)} of its {seeds(panel, NONE_HELD)} seeds, "
        f"{exact(panel, 'recall withheld')} of `recall withheld` and {exact(panel, 'dat')} of `dat`"
    )
    yield f"`joint`, with neither, is {ahead(panel, 'joint', NEAR):.0f} points behind `dat`"
    yield f"`joint (restarted)`, which has these, is {ahead(panel, 'joint (restarted)', NEAR):.0f} points behind `dat`"
    lose = [arm for arm in ("no restart", "recall withheld", "staged") if held(panel, arm) == seeds(panel, arm) - 1]
    yield f"{row([f'`{arm}`' for arm in lose])} each lose one seed of {seeds(panel, 'dat')}"
    for study, told in (("timing", "but with noise of {}: this study"), ("holding", "with noise of {} as all arms")):
        (deviation,) = {noise_of(run) for run in composite(study).runs} - {0}
        yield told.format(f"{deviation:g}")


def answers(panel: Panel) -> Iterator[str]:
    """Which answer is lost where."""

    def shares(arm: str, answer: str, length: int = at(panel, NEAR)) -> list[float]:
        return [*panel.by_seed(arm, length, answer).values()]

    assert max(shares("joint (interleaved)", "sum")) < 0.5
    assert min(shares("dat (interleaved)", "sum") + shares("dat (interleaved)", "recall")) > EXACT
    yield "joint training loses the sum in every seed, and delayed attention keeps both answers in every seed"
    assert sum(share < 0.5 for share in shares("no restart", "sum")) == 1
    yield "is no worse but for one seed that loses the sum"
    blind = shares("no look-back", "recall", panel.training_length)
    yield (
        f"without it recall at the training length is above a half in {sum(share > 0.5 for share in blind)} of "
        f"{len(blind)} seeds and {max(blind):.0%} at most"
    )
    unlearned = shares("staged (none held)", "recall", panel.training_length)
    yield (
        f"at this rate {sum(share < 0.5 for share in unlearned)} of its {len(unlearned)} seeds do not learn recall at "
        "the training length"
    )


def run_again(panel: Panel, earlier: Panel) -> Iterator[str]:
    """How far the arms without noise came out otherwise when ten of their seeds were run before."""
    near = at(panel, NEAR)
    without = [arm for arm in panel.shown if arm not in noisy(panel)]
    apart = {
        arm: [share - panel.by_seed(arm, near)[seed] for seed, share in earlier.by_seed(arm, near).items()]
        for arm in without
    }
    most = f"by up to {100 * max(abs(one) for each in apart.values() for one in each):.0f} points at three times"
    yield f"Single seeds of the arms without noise differ between the two {most}"
    yield (
        f"single seeds differ {most} and means of ten seeds by up to "
        f"{100 * max(abs(mean(each)) for each in apart.values()):.0f}"
    )
    far_off = {arm: sum(abs(one) > 0.2 for one in each) for arm, each in apart.items()}
    jointly = sum(count for arm, count in far_off.items() if arm.startswith("joint") or arm == NONE_HELD)
    yield f"of the {sum(far_off.values())} that differ by more than 20, {jointly} have attention in from the start"
    two = [one.by_seed("dat (interleaved)", near, "recall") for one in (earlier, panel)]
    gone = [sum(share < 0.5 for share in by_seed.values()) for by_seed in two]
    yield (
        f"`dat (interleaved)` lost recall in {word(gone[0])} of these {word(len(two[0]))} seeds, and now does in "
        f"{word(gone[1])} of {len(two[1])}, freezing lost {word(far_off['freeze'])}, and `no look-back` differs so "
        f"much in {word(far_off['no look-back'])}"
    )
    repeated = [composite("replicate").by_seed("dat", near), panel.by_seed("dat", near), earlier.by_seed("dat", near)]
    same = [
        *((repeated[0][seed], again[seed]) for again in repeated[1:] for seed in repeated[0]),
        *_both(composite("timing").by_seed("at 50% (0.012)", near), earlier.by_seed("staged", near)),
        *_both(*(composite(f"paper-{form}").by_seed("dat", near) for form in ("less-noise", "sharpened"))),
    ]
    assert max(abs(one - other) for one, other in same) < 0.005
    yield "At three times the length all but the last agree"


def _both(one: dict[int, float], other: dict[int, float]) -> list[tuple[float, float]]:
    return [(one[seed], other[seed]) for seed in one.keys() & other.keys()]


def told_from_chance(panel: Panel) -> Iterator[str]:
    """Which arms of the third study differ from what they are held against, near and far."""
    (compared,) = comparisons([panel])
    near, far = (
        {(one.first, one.second): one for one in compared[at(panel, multiple)] if one.p_corrected < SETTLED_AT}
        for multiple in (NEAR, FAR)
    )
    together = compared[at(panel, NEAR)][0].together
    yield (
        f"Corrected for these {together} comparisons, {seeds(panel, 'dat')} seeds tell {word(len(near))} of them from "
        "chance at three times the length"
    )
    for side, sign in (("Ahead", 1), ("Behind", -1)):
        names = [_named(panel, *pair) for pair, one in near.items() if sign * one.difference.mean > 0]
        yield f"{side} are {row(names)}"
    gone, new = [pair for pair in near if pair not in far], [pair for pair in far if pair not in near]
    ((only, rival),) = new
    assert rival == "dat"
    lost = -100 * far[only, rival].difference.mean
    settled_far = far[only, rival].p_corrected
    yield (
        f"The same are told from chance at sixteen times, which is corrected apart, but for "
        f"{row([_named(panel, *pair) for pair in gone])}; there `{only}` is too, {lost:.0f} points behind"
    )
    settled = near.keys() | far.keys()
    others = [one for several in compared.values() for one in several if (one.first, one.second) not in settled]
    yield f"For all others p is {min(one.p_corrected for one in others):.3f} or more, corrected"
    fresh = [run for run in panel.runs if run.seed not in composite("holding-earlier").finished["dat"]]
    (again,) = comparisons(panels(fresh))
    anew = [one for one in again[at(panel, NEAR)] if (one.first, one.second) in near]
    assert all(one.difference.mean * near[one.first, one.second].difference.mean > 0 for one in anew)
    (far_out,) = (one for one in again[at(panel, FAR)] if (one.first, one.second) == (only, rival))
    still = [(one.first, one.second) for one in anew if one.p_corrected < SETTLED_AT]
    assert [pair for pair in still if len(panel.against[pair[0]]) > 1] == [
        ("dat (outcome)", "dat"),
        ("dat (interleaved)", "joint (interleaved)"),
    ]
    yield (
        f"On the new ones alone each of the {word(len(anew))} comparisons has the same sign and a p of "
        f"{max(one.p for one in anew):.3f} or less, not corrected; corrected for all {together}, {word(len(still))} of "
        f"them are told from chance: {row([f'`{first}`' for first, _ in still])} against joint training. That of "
        f"`{only}` at sixteen times has a p of {far_out.p:.3f} there"
    )
    yield f"(p {settled_far:.3f} corrected, and on the new seeds alone {far_out.p:.3f} by itself)"
    afresh = {(one.first, one.second): one.p_corrected for one in anew}
    (then,) = comparisons([composite("holding-earlier")])
    yield f"had told {word(sum(one.p_corrected < SETTLED_AT for one in then[at(panel, NEAR)]))} comparisons from chance"
    against_dat = {one.first: one for one in compared[at(panel, FAR)] if one.second == "dat"}
    below = [arm for arm, one in against_dat.items() if one.difference.high is not None and one.difference.high < 0]
    slow, late = (against_dat[arm] for arm in ("half the rate after", "recall withheld"))
    assert {"half the rate after", "recall withheld", "random output"} <= set(below)
    yield f"the interval leaves out zero as well ({-100 * slow.difference.mean:.0f} points)"
    yield (
        f"recall withheld is {-100 * late.difference.mean:.0f} points behind, with an interval that leaves out zero "
        f"and a p of {late.p_corrected:.3f}, corrected; the random output is "
        f"{-100 * against_dat['random output'].difference.mean:.0f} behind, with such an interval too"
    )
    left, gained = (near[NONE_HELD, other] for other in ("recall withheld", "joint (restarted)"))
    between = gained.difference.mean - left.difference.mean
    low, high = (100 * (end or 0.0) for end in (gained.difference.low, gained.difference.high))
    yield (
        f"It gains {100 * gained.difference.mean:.0f} of the {100 * between:.0f} points (interval {low:.0f} to "
        f"{high:.0f}) that lie between"
    )
    yield (
        f"Both those {100 * gained.difference.mean:.0f} and the {-100 * left.difference.mean:.0f} that are left are "
        f"told from chance, corrected (p {gained.p_corrected:.3f} and {left.p_corrected:.3f}; on the new seeds alone "
        f"{afresh[NONE_HELD, 'joint (restarted)']:.2f} and {afresh[NONE_HELD, 'recall withheld']:.2f})"
    )
    yield (
        f"asking late gains {100 * gained.difference.mean:.0f} of the {100 * between:.0f} points that delaying both "
        "gains"
    )
    orders = [("joint", "dat"), *((f"dat ({one})", f"joint ({one})") for one in ("pairs-first", "interleaved"))]
    assert all(pair in near and pair in far for pair in orders)
    margins, before = orders_in_short()
    yield f"by {row([margin.split(' ')[0] for margin in margins])} points at three times, each more than chance"
    yield f"by {row(margins)} points at three times the length over 20 seeds, and by {before} when"
    yield f"were run before it was {before}"
    second = orders[1]
    assert all(afresh[pair] < SETTLED_AT for pair in orders if pair != second)
    yield f"on the new seeds alone, corrected, all but the second, whose p is {afresh[second]:.3f}"


def orders_in_short() -> tuple[list[str], str]:
    """How far delayed attention is ahead in each order at three times the length, with intervals, and how far it was in
    the earlier run."""
    orders = ("", " (pairs-first)", " (interleaved)")
    now, before = (
        [_difference(composite(study), f"dat{order}", f"joint{order}") for order in orders]
        for study in ("holding", "holding-earlier")
    )
    return now, row([one.split(" ")[0] for one in before])


def _difference(panel: Panel, first: str, second: str) -> str:
    """One arm less another at three times the length: 36 [20, 53]."""
    one = compare_arms(first, second, *(panel.by_seed(arm, at(panel, NEAR)) for arm in (first, second)))
    assert one is not None
    middle, low, high = (100 * (end or 0.0) for end in (one.difference.mean, one.difference.low, one.difference.high))
    return f"{middle:.0f} [{low:.0f}, {high:.0f}]"


def _named(panel: Panel, first: str, second: str) -> str:
    return f"`{first}`{f' (against `{second}`)' if len(panel.against[first]) > 1 else ''}"
