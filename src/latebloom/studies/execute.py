"""The execution of a study: first the choices of settings, then every arm with every seed.

The folder of a study holds `study.json` (its description), a folder for each run, `choices.json` (the chosen settings
and the scores of all), `tuning.parquet` and `results.parquet`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from latebloom.engine.files import write_json
from latebloom.engine.folder import IN_USE, RunFolder
from latebloom.engine.lock import Lock
from latebloom.errors import LatebloomError
from latebloom.results.collect import StudyRun, collect, collected_before
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, write_results
from latebloom.results.settings import changes, flat
from latebloom.studies.claim import claimed, places
from latebloom.studies.plan import Plan, Stage
from latebloom.studies.ranges import describe_ends, extend_ranges
from latebloom.studies.rounds import Tuning, describe_chance, purpose_of, tunings
from latebloom.studies.stacks import NO_STOPS, Stops

Runner = Callable[..., dict[str, str]]
"""Trains every configuration in `folder/name` that is not finished, called with (configurations, folder) and, if runs
pause in a round of tuning, with their `Stops` too; returns the reason for each run that failed."""

EXTENDING = "choosing settings, beyond the range of an arm whose best one is at its end"


@dataclass(frozen=True)
class StudyOutcome:
    """The results file of a study, and its failed runs."""

    results: Path
    failures: dict[str, str]
    """The reason for each failed run, by its folder relative to that of the study."""
    collecting: float = 0.0
    """Seconds in which results were collected."""


def execute(
    name: str, plan: Plan, out: Path, runner: Runner, announce: Callable[[Stage], None] = lambda stage: None
) -> StudyOutcome:
    """Train the runs that are not finished, and collect the results; it can be stopped and started again at any time.

    `announce` is called with the purpose of the next runs.
    """
    with claimed(out, name, plan) as lock:
        failures, seconds = dict[str, str](), 0.0
        tuned, tried = tunings(name, plan, out), dict[Path, StudyRun]()
        final_places = {(arm.task, arm.name): place for arm, place in places(plan, out)}
        note = ""

        def train_tuning(runs: list[StudyRun], stops: Stops) -> float:
            tried.update({run.folder: run for run in runs})
            return _train(runs, out, runner, out / TUNING_FILE, failures, list(tried.values()), lock, stops)

        for number, one in enumerate(plan.tuning if tuned else ()):
            runs = [run for tuning in tuned for run in tuning.begin(one)]
            left = {(tuning.arm.task, tuning.arm.name): len(tuning.left) for tuning in tuned}
            begins, going_on = plan.tuning_steps(number + 1, left)
            later = [*begins, *plan.reported_steps]
            announce(Stage(purpose_of(plan.tuning, number), later, _choice_labels(tuned, out), going_on, note))
            stops = {_within(run.folder, out): stop for run, stop in runs if stop is not None}
            seconds += train_tuning([run for run, _ in runs], stops)
            for tuning in tuned:
                place = final_places[tuning.arm.task, tuning.arm.name]
                tuning.end(one, _begun_choice(tuning, place, plan))
            note = describe_chance(tuned)
        while runs := extend_ranges(tuned):
            announce(Stage(EXTENDING, plan.reported_steps, _choice_labels(tuned, out)))
            seconds += train_tuning(runs, NO_STOPS)
            for tuning in tuned:
                tuning.rank_added()
        runs = _final_runs(name, plan, out, tuned, failures)
        announce(Stage("the runs to report", note=describe_ends(tuned)))
        seconds += _train(runs, out, runner, out / RESULTS_FILE, failures, runs, lock)
        return StudyOutcome(out / RESULTS_FILE, failures, seconds)


def _train(
    runs: list[StudyRun],
    out: Path,
    runner: Runner,
    file: Path,
    failures: dict[str, str],
    collected: Sequence[StudyRun],
    lock: Lock,
    stops: Stops = NO_STOPS,
) -> float:
    """Train runs, add to `failures`, and write the results of all `collected` runs, also if it is interrupted.

    Return the seconds of collecting.
    """

    def collect_all() -> float:
        lock.check("the study was running there")
        began, before = perf_counter(), collected_before(file) if file.exists() else {}
        write_results(file, [collect(run, failures.get(_within(run.folder, out)), before) for run in collected])
        return perf_counter() - began

    try:
        configs = {_within(run.folder, out): run.config for run in runs}
        found = runner(configs, out, stops) if stops else runner(configs, out)
        if busy := [reason for reason in found.values() if reason.endswith(IN_USE)]:
            # These runs have not failed. To go on without them could change the choice of settings for good.
            raise LatebloomError(f"{busy[0]}; give the same command again when that process has ended")
    except BaseException:
        with suppress(LatebloomError):  # the interruption is what the user is told of
            collect_all()
        raise
    failures |= found
    return collect_all()


def _within(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _choice_labels(tuned: Sequence[Tuning], out: Path) -> dict[str, str]:
    """Return a label for the folder of each choice: the arm, and the fields in which its choices differ."""
    names = {}
    for one in tuned:
        fields = {name for choice in one.choices for name in changes(one.choices[0], choice)}
        for k, choice in enumerate(one.choices):
            settings = {name: value for name, value in flat(choice.to_json()) if name in fields}
            group = _within(one.place / f"choice-{k}", out)
            names[group] = f"{_within(one.place, out / 'tuning')} {_short_settings(settings)}"
    return names


def _short_settings(settings: dict[str, Any]) -> str:
    """Return settings as text, by the last part of their names if that is unambiguous."""
    last = {name: name.removesuffix(".name").rpartition(".")[2] for name in settings}  # scores.name=x is scores=x
    texts: dict[str, None] = {}
    for name, value in settings.items():
        values = {str(settings[other]) for other in settings if last[other] == last[name]}
        texts[f"{last[name] if len(values) == 1 else name}={value}"] = None
    return " ".join(texts)


def _final_runs(name: str, plan: Plan, out: Path, tuned: Sequence[Tuning], failures: dict[str, str]) -> list[StudyRun]:
    """Return every arm with its chosen settings and every seed of the study, and write choices.json."""
    runs, records = [], []
    found = {(tuning.arm.task, tuning.arm.name): tuning for tuning in tuned}
    for arm, place in places(plan, out):
        config, tuning = arm.config, found.get((arm.task, arm.name))
        if tuning is not None:
            best = tuning.rankings[-1].best(1)
            if not best:
                reasons = [why for run, why in failures.items() if (out / run).is_relative_to(tuning.place)]
                which = {1: "", 2: " in the second round"}.get(len(plan.tuning), " in the last round")
                raise LatebloomError(
                    f"every choice{which} of arm {arm.name} on {arm.task} failed: {'; '.join(reasons)}"
                )
            begun = _begun_choice(tuning, place, plan)
            chosen = best[0] if begun is None else begun
            config = tuning.choices[chosen]
            records.append(tuning.describe(chosen, stops_early=any(one.share < 1 for one in plan.tuning)))
        runs += [
            StudyRun(
                name,
                arm.task,
                arm.name,
                replace(config, seed=seed),
                place / f"seed-{seed}",
                arm.others,
                plan.stated(arm),
            )
            for seed in plan.seeds_of(arm)
        ]
    if records:
        write_json(out / "choices.json", records)
    return runs


def _begun_choice(tuning: Tuning, place: Path, plan: Plan) -> int | None:
    """Return the choice of the runs that have begun, which stays even if another one is better now; or None."""
    for seed in plan.seeds_of(tuning.arm):
        folder = RunFolder(place / f"seed-{seed}")
        if folder.config_file.exists():
            found = folder.read_config().hash
            known = (k for k, choice in enumerate(tuning.choices) if replace(choice, seed=seed).hash == found)
            return next(known, None)
    return None
