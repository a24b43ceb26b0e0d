"""The figures in the sentences of docs/results.md and the README, from results/*.parquet.

python docs/results_prose.py    fail, and say which, if a sentence says something else than the files (a test does this)
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from results_tables import EXACT, FAR, NEAR, PAGE, README, at, read

from latebloom.evaluation.result import HOLDS_AT, Evaluation
from latebloom.report.panel import Panel
from latebloom.results.record import CHOICE, RunRecord
from latebloom.studies.plan import known_studies, plan_of

LATE = "joint (asked late)"
WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sentences() -> Iterator[tuple[Path, str]]:
    """What must stand in which page, line breaks and stress apart."""
    now, plain, sharpened = (composite(study) for study in ("paper", "paper-all-asked", "paper-sharpened"))
    for part in (in_short(now, plain, sharpened), each_half(), claims(now, plain, sharpened), tuned(now)):
        yield from ((PAGE, sentence) for sentence in part)
    exact, again = exact_of(now, "dat"), exact_of(sharpened, "dat")
    yield PAGE, f"is exact in {exact} of {seeds(now, 'dat')} seeds, and in {again} when run among others"
    yield README, f"in {exact} of {seeds(now, 'dat')} (in {again} when the same runs were trained among other ones)"
    yield README, f"is exact in {word(exact_of(now, 'joint'))}, whether recall is asked from the start or late"
    yield README, f"where it is tuned ({word(cliffs(now, 'joint'))} of {seeds(now, 'joint')} seeds)"


def in_short(now: Panel, plain: Panel, sharpened: Panel) -> Iterator[str]:
    least = min(evaluation.accuracy(at(now, NEAR)) for evaluation in now.finished["dat"].values())
    assert least == 1.0, "the first sentence says that everything is answered at three times the length"
    exact, of, again = exact_of(now, "dat"), seeds(now, "dat"), exact_of(sharpened, "dat")
    others = sorted((far for far in now.by_seed("dat", at(now, FAR)).values() if far < EXACT), reverse=True)
    yield f"and is exact in {exact} of {of}; the other {word(len(others))} are at {row(others)} at sixteen times"
    yield f"were exact in {again}: {exact + again} of {of + seeds(sharpened, 'dat')} in all"
    yield (
        f"is exact in {word(exact_of(now, 'joint'))}: {level(now, 'joint', NEAR)} at three times the length and "
        f"{level(now, 'joint', FAR)} at sixteen, {behind(now, 'joint', NEAR):.1f} and {behind(now, 'joint', FAR):.0f} "
        "points behind"
    )
    yield (
        f"{held(plain, 'dat')} of {seeds(plain, 'dat')} seeds are at 90% or more at three times the length against "
        f"{held(plain, 'joint')} of joint training's, and {exact_of(plain, 'dat')} are exact against "
        f"{word(exact_of(plain, 'joint'))}"
    )
    yield (
        f"is at {level(now, LATE, NEAR)} and {level(now, LATE, FAR)}, {behind(now, LATE, NEAR):.0f} and "
        f"{behind(now, LATE, FAR):.0f} points behind delayed attention"
    )
    settings = choices("dat")
    far = [all(run.accuracy(at(now, FAR)) >= 0.95 for run in runs) for runs in settings.values()]
    assert len(settings) == 32
    yield f"of thirty-two, {word(sum(far))} are at 95% or more there on every held-out seed"
    near = {arm: first_round_holds(now, arm) for arm in ("dat", "joint", LATE)}
    yield (
        f"At three times the length {near['dat']} are at 90% or more on both seeds of the first round; of joint "
        f"training's {near['joint']} is, and {near[LATE]} with recall asked late"
    )
    reaches = sorted(evaluation.reach for evaluation in now.finished["joint"].values())
    fading = [reach for reach in reaches if reach < FAR]
    yield (
        f"{word(cliffs(now, 'joint'))} of {seeds(now, 'joint')} seeds does, and {cliffs(now, LATE)} of "
        f"{seeds(now, LATE)} with recall asked late. {len(reaches) - len(fading)} hold 90% to sixteen times the "
        f"length, and the rest fade, from between {fading[0]:g} and {fading[-1]:g} times on"
    )
    tried = [run for runs in choices("joint", first_round=True).values() for run in runs]
    third = composite("holding")
    yield (
        f"{sum(run.cliff is not None for run in tried)} of the {len(tried)} runs of the tuning's first round, "
        f"{cliffs(third, 'joint')} of {seeds(third, 'joint')} seeds in the third study"
    )


def each_half() -> Iterator[str]:
    adding = next(panel for panel in read("paper") if panel.task == "modular_sum")
    recalling = next(panel for panel in read("paper") if panel.task == "recall")
    dat, lstm = ([*adding.by_seed(arm, at(adding, FAR)).values()] for arm in ("dat", "lstm"))
    assert exact_of(adding, "dat") == exact_of(adding, "lstm")
    yield (
        f"exact in {exact_of(adding, 'dat')} of {len(dat)} seeds each, but the worst seed of delayed attention falls "
        f"further ({min(dat):.0%} at sixteen times, {mean(dat):.1%} in the mean; the LSTM {min(lstm):.0%} and "
        f"{mean(lstm):.1%})"
    )
    joint = sum(evaluation.reach < FAR for evaluation in adding.finished["joint"].values())
    yield (
        "joint training is below 90% somewhere up to sixteen times the length in "
        f"{word(joint)} of {word(seeds(adding, 'joint'))} seeds"
    )
    with_attention = (arm for arm in recalling.shown if arm != "lstm")
    least = min(min(recalling.by_seed(arm, at(recalling, FAR)).values()) for arm in with_attention)
    yield f"delayed or not: at {least:.1%} or more at sixteen times the length in every seed"
    yield f"and every one with attention is at {least:.1%} or more"


def claims(now: Panel, plain: Panel, sharpened: Panel) -> Iterator[str]:
    (fallen,) = (run for run in now.finished[LATE].values() if run.cliff is not None)
    two, three = (fallen.accuracy(at(now, multiple)) for multiple in (2, NEAR))
    yield (
        f"{word(cliffs(now, 'joint')).replace('none', 'no seed')} of {seeds(now, 'joint')} has a cliff, and "
        f"{cliffs(now, LATE)} of {seeds(now, LATE)} with recall asked late (to {two:.0%} at twice the length and "
        f"{three:.0%} at three times)"
    )
    third = composite("holding")
    joint = [arm for arm in third.shown if arm.startswith("joint")]
    interleaved = [*third.finished["joint (interleaved)"].values()]
    other = [run for arm in joint if "interleaved" not in arm for run in third.finished[arm].values()]
    second = composite("timing")
    other += [run for arm in second.shown if arm.startswith("joint") for run in second.finished[arm].values()]
    other += [run for arm in ("joint", LATE) for runs in choices(arm, first_round=True).values() for run in runs]
    low, high = after_cliffs(other)
    low_there, high_there = after_cliffs(interleaved)
    yield (
        f"At other settings cliffs go to between {low:.0f} and {high:.0f}% at twice the length and lower at three "
        f"times, with digits and pairs interleaved to between {low_there:.0f} and {high_there:.0f}%"
    )
    yield (
        f"yes, in {held(now, 'dat')} of {seeds(now, 'dat')} seeds of the tuned arm, and in {held(plain, 'dat')} of "
        f"{seeds(plain, 'dat')} in our plain form"
    )
    yield (
        f"recall at sixteen times is at {recall(now, 'transformer'):.0%} (Transformer), {recall(now, 'joint'):.0%} "
        f"(joint), {recall(now, LATE):.0%} (joint, asked late) and {recall(plain, 'dat'):.1%} (delayed, plain form) "
        f"with scores as they are, and with sharpened ones at {recall(sharpened, 'transformer'):.1%}, 99.9% or more "
        f"(joint) and {recall(now, 'dat'):.1%} (delayed)"
    )
    assert recall(sharpened, "joint") >= 0.999


def tuned(now: Panel) -> Iterator[str]:
    """What was seen of the chosen settings on held-out seeds, and is seen on the reported ones."""
    six = {arm: choices(arm)[chosen(now, arm)] for arm in ("joint", LATE, "dat")}
    assert all(len(runs) == 6 for runs in six.values())
    near = {arm: mean(run.accuracy(at(now, NEAR)) for run in runs) for arm, runs in six.items()}
    yield (
        f"at {near['joint']:.1%} at three times the length on its six, and is at {level(now, 'joint', NEAR, 1)} on the "
        f"twenty reported ones; with recall asked late at {near[LATE]:.1%}, and at {level(now, LATE, NEAR, 1)}"
    )
    assert all(run.accuracy(at(now, multiple)) == 1.0 for run in six["dat"] for multiple in (NEAR, FAR))
    yield f"and is at {level(now, 'dat', NEAR, 1)} and {level(now, 'dat', FAR, 1)} on the twenty"
    highest = max(plan_rates())
    at_highest: dict[bool, list[float]] = {True: [], False: []}
    for runs in tuning_runs("dat").values():
        config = json.loads(runs[0].config)["training"]
        if config["full"]["learning_rate"] == highest:
            at_highest[config["state_noise"] > 0] += [
                far for run in runs if (far := run.accuracy(at(now, FAR))) is not None
            ]
    noisy, quiet = at_highest[True], at_highest[False]
    (below,) = (far for far in noisy if far < 0.95)
    yield (
        f"with it {len(noisy) - 1} of {len(noisy)} runs on held-out seeds are at 95% or more at sixteen times (the "
        f"other at {below:.0%}), without it {len(quiet)} of {len(quiet)} are between {100 * min(quiet):.0f} and "
        f"{max(quiet):.0%}"
    )
    runs = [run for panel in read("paper-tuning") for run in panel.runs]
    reported = {run.commit for panel in read("paper") for run in panel.runs}
    earlier = [run for run in runs if run.commit not in reported]
    yield (
        f"{len(earlier)} of the {len(runs)} runs of the tuning are of {word(len({run.commit for run in earlier}))} "
        "earlier commits"
    )


def composite(study: str) -> Panel:
    return next(panel for panel in read(study) if panel.task == "composite")


def seeds(panel: Panel, arm: str) -> int:
    return len(panel.finished[arm])


def exact_of(panel: Panel, arm: str) -> int:
    """How many seeds are exact: near and far."""
    lengths = [at(panel, multiple) for multiple in (NEAR, FAR)]
    return sum(all(run.accuracy(n) >= EXACT for n in lengths) for run in panel.finished[arm].values())


def held(panel: Panel, arm: str) -> int:
    return sum(accuracy >= HOLDS_AT for accuracy in panel.by_seed(arm, at(panel, NEAR)).values())


def cliffs(panel: Panel, arm: str) -> int:
    return sum(run.cliff is not None for run in panel.finished[arm].values())


def after_cliffs(runs: list[Evaluation]) -> tuple[float, float]:
    """The least and the most at twice the training length of runs that fall, in percent."""
    fallen = [100 * run.accuracy(2 * run.training_length) for run in runs if run.cliff is not None]
    return min(fallen), max(fallen)


def level(panel: Panel, arm: str, multiple: float, digits: int = 0) -> str:
    return f"{mean(panel.by_seed(arm, at(panel, multiple)).values()):.{digits}%}"


def recall(panel: Panel, arm: str) -> float:
    return mean(panel.by_seed(arm, at(panel, FAR), "recall").values())


def behind(panel: Panel, arm: str, multiple: float) -> float:
    """How many points an arm is behind delayed attention."""
    dat, other = (mean(panel.by_seed(name, at(panel, multiple)).values()) for name in ("dat", arm))
    return 100 * (dat - other)


def tuning_runs(arm: str) -> dict[str, list[RunRecord]]:
    """An arm's finished runs on held-out seeds, by setting."""
    found: dict[str, list[RunRecord]] = {}
    for run in composite("paper-tuning").runs:
        if run.arm.rpartition(CHOICE)[0] == arm and run.evaluation is not None:
            found.setdefault(run.arm, []).append(run)
    return found


def choices(arm: str, *, first_round: bool = False) -> dict[str, list[Evaluation]]:
    seeds_of_first = plan_of("paper", known_studies()["paper"], "paper").tuning_seeds
    return {
        name: [run.evaluation for run in runs if run.evaluation and (run.seed in seeds_of_first or not first_round)]
        for name, runs in tuning_runs(arm).items()
    }


def first_round_holds(panel: Panel, arm: str) -> int:
    """How many settings hold near on every seed of the first round."""
    settings = choices(arm, first_round=True).values()
    return sum(all(run.accuracy(at(panel, NEAR)) >= HOLDS_AT for run in runs) for runs in settings)


def chosen(panel: Panel, arm: str) -> str:
    """The setting that an arm's runs have."""
    wanted = without_seed(next(run for run in panel.runs if run.arm == arm))
    return next(name for name, runs in tuning_runs(arm).items() if without_seed(runs[0]) == wanted)


def without_seed(run: RunRecord) -> dict[str, Any]:
    return {**json.loads(run.config), "seed": None}


def plan_rates() -> set[float]:
    return {json.loads(runs[0].config)["training"]["full"]["learning_rate"] for runs in tuning_runs("dat").values()}


def word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)


def row(shares: list[float]) -> str:
    """Shares as a row of percentages: 98, 90 and 83%."""
    *rest, last = (f"{100 * share:.0f}" for share in shares)
    return f"{', '.join(rest)} and {last}%" if rest else f"{last}%"


def main() -> None:
    texts = {page: re.sub(r"\s+", " ", page.read_text().replace("**", "")) for page in (PAGE, README)}
    wrong = [f"{page.name} does not say: {text}" for page, text in sentences() if text not in texts[page]]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
