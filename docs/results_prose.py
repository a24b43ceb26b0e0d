"""The figures in the sentences of docs/results.md and of the README's part on it, from results/*.parquet.

python docs/results_prose.py    fail, and say which, if a sentence says something else than the files (a test does this)
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median

from results_files import (
    EXACT,
    FAR,
    NEAR,
    PAGE,
    README,
    ahead,
    at,
    cliffs,
    composite,
    config_of,
    exact,
    held,
    level,
    noise_of,
    read,
    seeds,
    without_seed,
    word,
)
from results_prose_holding import holding, holding_for_readme

from latebloom.evaluation.result import HOLDS_AT, Evaluation
from latebloom.report.compared import SETTLED_AT, comparisons
from latebloom.report.panel import Panel
from latebloom.report.statistics import compare_arms
from latebloom.report.study_tables import p_value
from latebloom.report.switches import switch_table
from latebloom.report.words import row
from latebloom.results.record import CHOICE, RunRecord
from latebloom.studies.find import known_studies, plan_of
from latebloom.studies.scales import MANY_ARMS

LATE = "joint (asked late)"


def sentences() -> Iterator[tuple[Path, str]]:
    """What must stand in which page, line breaks and stress apart."""
    now, plain, sharpened = (composite(study) for study in ("paper", "paper-all-asked", "paper-sharpened"))
    for part in (
        verdict(now, plain),
        in_short(now, plain),
        each_half(),
        claims(now, plain, sharpened),
        tuned(now),
        reused(),
        timing(),
        holding(),
    ):
        yield from ((PAGE, sentence) for sentence in part)
    yield from ((README, sentence) for sentence in holding_for_readme())
    less = composite("paper-less-noise")
    right, of = exact(now, "dat"), seeds(now, "dat")
    yield PAGE, f"is exact in {right} of {of} seeds.)"
    more, fewer = noise(now), noise(less)
    with_less = (
        f"With noise of {fewer:g} instead of {more:g} {word(of - exact(less, 'dat'))} of these {of} seeds were not "
        f"exact, and {word(of - exact(sharpened, 'dat'))} when the same runs shared the GPU with others, which changes "
        f"its rounding; {more:g} was tried for that reason"
    )
    yield from ((page, with_less) for page in (PAGE, README))
    yield (
        README,
        f"in {right} of {of}; on the six held-out seeds on which the setting was chosen, in {word(on_six(now))}",
    )
    jointly = {exact(now, arm) for arm in ("joint", LATE)}
    untuned = [run for one in tried("joint", first_round=True) for run in evaluations(one)]
    fallen = sum(run.cliff is not None for run in untuned)
    yield README, f"Untuned it has one in {fallen} of the {len(untuned)} runs of the tuning's first round"
    yield README, f"is exact in {' or '.join(map(word, jointly))}, whether recall is asked from the start or late"
    yield README, f"where it is tuned ({word(cliffs(now, 'joint'))} of {seeds(now, 'joint')} seeds)"
    yield (
        README,
        f"asked late it was at {mean(on_held_out(now, LATE, NEAR)):.0%} at three times the length on them, and is at "
        f"{level(now, LATE, NEAR)} in the table",
    )


def verdict(now: Panel, plain: Panel) -> Iterator[str]:
    between = compare_arms("dat", "joint", *(plain.by_seed(arm, at(plain, NEAR)) for arm in ("dat", "joint")))
    assert between is not None
    yield (
        f"by {ahead(now, 'joint', NEAR):.0f} points at three times the training length and by "
        f"{ahead(now, 'joint', FAR):.0f} at sixteen; in our plain form of the delay by "
        f"{ahead(plain, 'joint', NEAR):.0f} and by {ahead(plain, 'joint', FAR):.0f} "
        f"(the {ahead(plain, 'joint', NEAR):.0f} with p {between.p:.2f})"
    )


def in_short(now: Panel, plain: Panel) -> Iterator[str]:
    near, far = ([*now.by_seed("dat", at(now, multiple)).values()] for multiple in (NEAR, FAR))
    whole = "everything" if min(near) == 1.0 else f"{min(near):.1%} or more"
    yield f"the hybrid answers {whole} at three times the length in every seed"
    yield f"and is exact in {exact(now, 'dat')} of {len(far)}, with {min(far):.1%} or more at sixteen times"
    others = sorted(one for one in on_held_out(now, "dat", FAR) if one < EXACT)
    yield (
        f"On the six held-out seeds on which its setting was chosen it is exact in {word(on_six(now))} (the others are "
        f"at {percents(others)} at sixteen times)"
    )
    yield (
        f"is exact in {word(exact(now, 'joint'))}: {level(now, 'joint', NEAR)} at three times the length and "
        f"{level(now, 'joint', FAR)} at sixteen"
    )
    yield (
        f"{held(plain, 'dat')} of {seeds(plain, 'dat')} seeds are at 90% or more at three times the length against "
        f"{held(plain, 'joint')} of joint training's, and {exact(plain, 'dat')} are exact against "
        f"{word(exact(plain, 'joint'))}"
    )
    less_late = [
        compare_arms("joint", LATE, *(now.by_seed(arm, at(now, multiple)) for arm in ("joint", LATE)))
        for multiple in (NEAR, FAR)
    ]
    told = [f"{100 * one.difference.mean:+.1f} points, p {p_value(one.p)}" for one in less_late if one is not None]
    medians = [median(now.by_seed(arm, at(now, NEAR)).values()) for arm in (LATE, "joint")]
    yield (
        f"is at {level(now, LATE, NEAR)} and {level(now, LATE, FAR)}, {ahead(now, LATE, NEAR):.0f} and "
        f"{ahead(now, LATE, FAR):.0f} points behind delayed attention. Joint training that is asked everything is no "
        f"different in the mean ({told[0]} at three times; {told[1]} at sixteen); "
        f"the medians at three times are {medians[0]:.1%} asked late and {medians[1]:.1%}, and "
        f"{to_the_end(now, LATE)} and {to_the_end(now, 'joint')} seeds hold 90% to sixteen times"
    )
    first, highest = tried("dat", first_round=True), max(rate(one) for one in tried("dat"))
    exacting = [one for one in first if all(run.accuracy(at(now, FAR)) >= EXACT for run in evaluations(one))]
    all_so = all(rate(one) == highest and config_of(one[0])["training"]["state_noise"] > 0 for one in exacting)
    finalists = [one for one in tried("dat") if len(one) > len(first[0])]
    least = min(run.accuracy(at(now, FAR)) for one in finalists for run in evaluations(one))
    yield (
        f"of {'thirty-two' if len(first) == 32 else len(first)}, {word(len(exacting))} are at {EXACT:.0%} or more "
        f"there on both held-out seeds of the first round, {'all' if all_so else 'not all'} with noise and at the "
        f"highest rate of the grid, so that a higher one might do better still; {word(len(finalists))} were tried on "
        f"four more, and are at {least:.0%} or more on each"
    )
    yield (
        f"At three times the length {first_round_holds(now, 'dat')} are at 90% or more on both seeds of the first "
        f"round; of joint training's {first_round_holds(now, 'joint')} is, and {first_round_holds(now, LATE)} with "
        "recall asked late"
    )
    fading = sorted((run for run in now.finished["joint"].values() if run.reach < FAR), key=lambda run: run.reach)
    by_sum = sum(run.accuracy(falls(run), "sum") < run.accuracy(falls(run), "recall") for run in fading)
    yield (
        f"{word(cliffs(now, 'joint'))} of {seeds(now, 'joint')} seeds does, and {word(cliffs(now, LATE))} of "
        f"{seeds(now, LATE)} with recall asked late. Of joint training's {seeds(now, 'joint')}, "
        f"{seeds(now, 'joint') - len(fading)} hold 90% to sixteen times the length, and the rest fade, from between "
        f"{fading[0].reach:g} and {fading[-1].reach:g} times on; what is lost first is the sum in "
        f"{by_sum} of these {len(fading)}"
    )
    first = [run for one in tried("joint", first_round=True) for run in evaluations(one)]
    third = composite("holding")
    yield (
        f"{sum(run.cliff is not None for run in first)} of the {len(first)} runs of the tuning's first round, "
        f"{cliffs(third, 'joint')} of {seeds(third, 'joint')} seeds in the third study"
    )


def each_half() -> Iterator[str]:
    adding, recalling = (next(p for p in read("paper") if p.task == task) for task in ("modular_sum", "recall"))
    lstm = adding.by_seed("lstm", at(adding, FAR)).values()
    yield (
        f"On the sum alone delayed attention is exact in {exact(adding, 'dat')} of {seeds(adding, 'dat')} seeds, the "
        f"LSTM in {exact(adding, 'lstm')} (the other is at {min(lstm):.0%} at sixteen times) and joint training in "
        f"{exact(adding, 'joint')}"
    )
    joint, dat = (mean(recalling.by_seed(arm, at(recalling, FAR)).values()) for arm in ("joint", "dat"))
    yield f"On recall alone joint training is a little ahead: at {joint:.2%} at sixteen times, delayed at {dat:.2%}"
    joint = sum(run.reach < FAR for run in adding.finished["joint"].values())
    yield (
        f"below 90% somewhere up to sixteen times the length in {word(joint)} of {word(seeds(adding, 'joint'))} seeds"
    )
    with_attention = (arm for arm in recalling.shown if arm != "lstm")
    least = min(min(recalling.by_seed(arm, at(recalling, FAR)).values()) for arm in with_attention)
    yield f"delayed or not: at {least:.1%} or more at sixteen times the length in every seed"
    chose = any(config_of(run)["model"]["attention"].get("sharpen") for run in recalling.runs)
    yield (
        f"On recall alone {'an' if chose else 'no'} arm chose to sharpen, and every one with attention is at "
        f"{least:.1%} or more"
    )


def claims(now: Panel, plain: Panel, sharpened: Panel) -> Iterator[str]:
    yield (
        f"{'no seed' if not cliffs(now, 'joint') else cliffs(now, 'joint')} of {seeds(now, 'joint')} has a cliff, and "
        f"{word(cliffs(now, LATE))} of {seeds(now, LATE)} with recall asked late"
    )
    second, third = composite("timing"), composite("holding")
    other = [run for arm in ("joint", LATE) for one in tried(arm, first_round=True) for run in evaluations(one)]
    other += [run for arm in second.shown if arm.startswith("joint") for run in second.finished[arm].values()]
    from_the_start = [arm for arm in third.shown if arm.startswith("joint") or "none held" in arm]
    other += [run for arm in from_the_start if "interleaved" not in arm for run in third.finished[arm].values()]
    low, high = after_cliffs(other)
    low_there, high_there = after_cliffs([*third.finished["joint (interleaved)"].values()])
    yield (
        f"At other settings cliffs go to between {low:.0f} and {high:.0f}% at twice the length, with digits and pairs "
        f"interleaved to between {low_there:.0f} and {high_there:.0f}%"
    )
    yield (
        f"yes, in {held(now, 'dat')} of {seeds(now, 'dat')} seeds of the tuned arm, and in {held(plain, 'dat')} of "
        f"{seeds(plain, 'dat')} in our plain form"
    )
    yield (
        f"recall at sixteen times is at {recall(now, 'transformer'):.0%} (Transformer), {recall(now, 'joint'):.0%} "
        f"(joint), {recall(now, LATE):.0%} (joint, asked late) and {recall(plain, 'dat'):.1%} (delayed, plain form) "
        f"with scores as they are. With sharpened ones it is at {recall(sharpened, 'transformer'):.1%} (Transformer) "
        f"and {recall(sharpened, 'joint'):.2%} (joint) in an earlier form, and at {recall(now, 'dat'):.1%} (delayed)"
    )


def tuned(now: Panel) -> Iterator[str]:
    """What was seen of the chosen settings on held-out seeds, and is seen on the reported ones."""
    yield f"and noise of deviation {noise(now):g} on what the recurrence remembers"
    joint, late = (mean(on_held_out(now, arm, NEAR)) for arm in ("joint", LATE))
    yield (
        f"at {joint:.1%} at three times the length on its six, and is at {level(now, 'joint', NEAR, 1)} on the twenty "
        f"reported ones; with recall asked late at {late:.1%}, and at {level(now, LATE, NEAR, 1)}"
    )
    before = [mean(on_held_out(now, "dat", multiple)) for multiple in (NEAR, FAR)]
    yield (
        f"That of `dat` was at {' and '.join(f'{one:.0%}' for one in before)} on its six, at three and at "
        f"sixteen times, and is at {level(now, 'dat', NEAR, 1)} and {level(now, 'dat', FAR, 1)} on the twenty"
    )
    far: dict[tuple[float, bool], list[float]] = {}
    for one in tried("dat"):
        noisy = config_of(one[0])["training"]["state_noise"] > 0
        far.setdefault((rate(one), noisy), []).extend(run.accuracy(at(now, FAR)) for run in evaluations(one))
    *lower, highest = sorted({of for of, _ in far})
    below = [one for one in far[highest, True] if one < 0.95]
    quiet, many = far[highest, False], len(far[highest, True])
    yield (
        f"with it {many - len(below)} of {many} runs on held-out seeds are at 95% or more at sixteen times (the others "
        f"at {percents(sorted(below))}), without it {len(quiet)} of {len(quiet)} are "
        f"between {100 * min(quiet):.0f} and {max(quiet):.0%}"
    )
    means = [f"{100 * mean(far[of, False]):.0f} and {mean(far[of, True]):.0%}" for of in lower]
    yield (
        f"sixteen times is at {means[0]} in the mean at {lower[0]:g}, "
        f"{', '.join(f'{seen} at {of:g}' for seen, of in zip(means[1:], lower[1:], strict=True))}."
    )


def reused() -> Iterator[str]:
    runs = [run for panel in read("paper-tuning") for run in panel.runs]
    reported = {run.commit for panel in read("paper") for run in panel.runs}
    earlier = [run for run in runs if run.commit not in reported]
    yield (
        f"{len(earlier)} of the {len(runs)} runs of the tuning are of {word(len({run.commit for run in earlier}))} "
        "earlier commits"
    )
    forms = [composite(study) for study in ("paper", "paper-less-noise", "paper-all-asked")]
    joint = [{run.seed: run.config_hash for run in form.runs if run.arm == "joint"} for form in forms]
    assert joint[0] == joint[1] == joint[2], "joint training has other settings in one of these forms"
    apart = [
        max(
            abs(one.by_seed("joint", at(one, multiple))[seed] - share) for one in forms for seed, share in first.items()
        )
        for multiple in (NEAR, FAR)
        for first in [forms[0].by_seed("joint", at(forms[0], multiple))]
    ]
    means = [level(form, "joint", NEAR, 1) for form in forms]
    yield (
        f"differs in the last at three times too: by up to {100 * apart[0]:.0f} points in a seed, and by "
        f"{100 * apart[1]:.0f} at sixteen times, with means of {row(list(dict.fromkeys(means)))} at three times"
    )


def timing() -> Iterator[str]:
    """How far the default bar is behind the best fixed switch, on every task and at every rate, near and far."""
    behind, later, ends = [], [], []
    for table in filter(None, map(switch_table, read("timing"))):
        for name, _, *cells in table.rows:
            if name.text.startswith("when beyond 3x"):
                behind += [float(cell.text) for cell in (cells[1], cells[4])]
                ends += [float(re.findall(r"([+-][\d.]+)\]", cell.plain)[0]) for cell in (cells[1], cells[4])]
                later += [float(re.findall(r"([+-]\d+)%", cell.text)[0]) for cell in (cells[2], cells[5])]
    worst = "less than a point" if max(behind) < 1 else f"up to {max(behind):.1f} points"
    latest = "a tenth" if max(later) == 10 else f"{max(later):.0f}%"
    yield f"is {worst} behind the best fixed switch, near and far, and on average at most {latest} of the steps later"
    yield f"the intervals go up to {max(ends):.0f} points"
    panel = composite("timing")
    table = switch_table(panel)
    assert table is not None
    far = len(table.head) - 2  # how far each is behind the best fixed switch at the longest length
    lost = {cells[0].text: float(cells[far].text) for cells in table.rows if cells[far].text[0] in "+-"}
    low, high = (f" ({of:g})" for of in sorted(MANY_ARMS["paper"].rates))
    yield (
        f"costs {lost[f'at 70%{low}']:.0f} points from 70% of the steps on at the lower rate; "
        f"{lost[f'at 50%{low}']:.0f} points from half of them on, and {lost[f'at 70%{high}']:.0f} at the higher rate "
        "from 70%, may be luck"
    )
    beyond = {one.first: one for one in comparisons(read("timing"))[0][at(panel, FAR)]}
    late, half, late_high = (beyond[arm] for arm in (f"at 70%{low}", f"at 50%{low}", f"at 70%{high}"))
    assert late.p_corrected < SETTLED_AT < min(half.p_corrected, late_high.p_corrected)
    yield (
        f"is {-100 * late.difference.mean:.0f} points behind `when beyond 3x` at the lower rate (p "
        f"{late.p_corrected:.3f}, corrected); one at half of them ({-100 * half.difference.mean:.0f} points, p "
        f"{half.p:.2f}, not corrected) and one at 70% at the higher rate ({-100 * late_high.difference.mean:.0f} "
        f"points, p {late_high.p:.2f}) are not told from chance, corrected"
    )
    slow = [
        sum((run.switch_step or 0) >= 5_000 for run in panel.runs if run.arm == f"when beyond 8x ({of:g})")
        for of in sorted(MANY_ARMS["paper"].rates)
    ]
    low, high = map(word, slow)
    yield f"{low} of the ten seeds meet it after 5,000 steps or more at the lower rate, and {high} at the higher rate"


def falls(run: Evaluation) -> int:
    """The first tested length at which a run does not hold."""
    return next(length for length in run.lengths if run.accuracy(length) < HOLDS_AT)


def after_cliffs(runs: Sequence[Evaluation]) -> tuple[float, float]:
    """The least and the most at twice the training length of runs that fall, in percent."""
    fallen = [100 * run.accuracy(2 * run.training_length) for run in runs if run.cliff is not None]
    return min(fallen), max(fallen)


def recall(panel: Panel, arm: str) -> float:
    return mean(panel.by_seed(arm, at(panel, FAR), "recall").values())


def tried(arm: str, *, first_round: bool = False) -> list[list[RunRecord]]:
    """An arm's runs on held-out seeds, a row for each setting."""
    of_first = plan_of(known_studies()["paper"], "paper").tuning_seeds
    found: dict[str, list[RunRecord]] = {}
    for run in composite("paper-tuning").runs:
        if run.arm.rpartition(CHOICE)[0] == arm and (run.seed in of_first or not first_round):
            found.setdefault(run.arm, []).append(run)
    return list(found.values())


def evaluations(runs: Sequence[RunRecord]) -> list[Evaluation]:
    return [run.evaluation for run in runs if run.evaluation is not None]


def rate(runs: Sequence[RunRecord]) -> float:
    return config_of(runs[0])["training"]["full"]["learning_rate"]


def first_round_holds(panel: Panel, arm: str) -> int:
    """How many settings hold near on every seed of the first round."""
    settings = map(evaluations, tried(arm, first_round=True))
    return sum(all(run.accuracy(at(panel, NEAR)) >= HOLDS_AT for run in runs) for runs in settings)


def on_held_out(panel: Panel, arm: str, multiple: float) -> list[float]:
    """How the setting that was chosen for an arm did on the seeds on which it was chosen."""
    wanted = without_seed(next(run for run in panel.runs if run.arm == arm))
    (runs,) = (one for one in tried(arm) if without_seed(one[0]) == wanted)
    return [run.accuracy(at(panel, multiple)) for run in evaluations(runs)]


def on_six(panel: Panel) -> int:
    """On how many of the seeds on which its setting was chosen delayed attention is exact."""
    each = zip(*(on_held_out(panel, "dat", multiple) for multiple in (NEAR, FAR)), strict=True)
    return sum(min(pair) >= EXACT for pair in each)


def to_the_end(panel: Panel, arm: str) -> int:
    return sum(run.reach >= FAR for run in panel.finished[arm].values())


def noise(panel: Panel) -> float:
    """That of delayed attention."""
    return noise_of(next(run for run in panel.runs if run.arm == "dat"))


def percents(shares: Sequence[float]) -> str:
    """98, 90 and 83%."""
    return f"{row([f'{100 * share:.0f}' for share in shares])}%" if shares else "none"


def main() -> None:
    texts = {page: re.sub(r"\s+", " ", page.read_text().replace("**", "")) for page in (PAGE, README)}
    wrong = [f"{page.name} does not say: {text}" for page, text in sentences() if text not in texts[page]]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
