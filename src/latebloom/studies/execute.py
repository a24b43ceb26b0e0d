"""A study from plan to results file: choices first, then every arm with every seed.

The folder of a study holds `study.json` (what it is), a folder for each run, `choices.json` (what was chosen, and how
the others did), `tuning.parquet` and `results.parquet`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import RunFolder
from latebloom.errors import LatebloomError
from latebloom.evaluation.result import Evaluation
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, write_results
from latebloom.results.record import CHOICE, TUNING
from latebloom.results.settings import changes, flat
from latebloom.studies.claim import claimed, places
from latebloom.studies.plan import Arm, Plan, Stage

Runner = Callable[[dict[str, RunConfig], Path], dict[str, str]]
"""Trains every configuration in `folder/name` that is not finished, and returns the reason for each that failed."""


@dataclass(frozen=True)
class StudyOutcome:
    """The results file of a study, and its failed runs."""

    results: Path
    failures: dict[str, str]
    """The reason for each failed run, by its folder in the study's."""


def execute(
    name: str, plan: Plan, out: Path, runner: Runner, announce: Callable[[Stage], None] = lambda stage: None
) -> StudyOutcome:
    """Train what is not trained yet and collect all results; it can be stopped and started again at any moment.

    `announce` is called with the purpose of the runs that come next.
    """
    with claimed(out, name, plan):
        failures: dict[str, str] = {}
        tuning: list[StudyRun] = []
        rounds = "first of two rounds", "second round"
        for which, find_runs in zip(rounds, (_tuning_runs, _second_round), strict=True):
            if more := find_runs(name, plan, out):
                purpose = f"choosing settings, {which}" if plan.second_round else "choosing settings"
                later = [*([] if tuning else plan.second_round_steps), *plan.reported_steps]
                announce(Stage(purpose, later, _names_of_choices(plan, out)))
                failures |= _train(more, out, runner, out / TUNING_FILE, failures, before=tuning)
                tuning += more
        runs = _final_runs(name, plan, out, tuning, failures)
        announce(Stage("the runs to report"))
        failures |= _train(runs, out, runner, out / RESULTS_FILE, failures)
        return StudyOutcome(out / RESULTS_FILE, failures)


def _train(
    runs: list[StudyRun],
    out: Path,
    runner: Runner,
    file: Path,
    failed_before: dict[str, str],
    before: Sequence[StudyRun] = (),
) -> dict[str, str]:
    """Train runs and write those that are finished, after the runs of an earlier round, also if it is interrupted."""
    failures: dict[str, str] = {}
    try:
        failures = runner({_within(run.folder, out): run.config for run in runs}, out)
    finally:
        reasons = failed_before | failures
        write_results(file, [collect(run, reasons.get(_within(run.folder, out))) for run in [*before, *runs]])
    return failures


def _within(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _tuning_runs(name: str, plan: Plan, out: Path) -> list[StudyRun]:
    """Return the first round: every choice of every arm on tuning seeds, named `arm, choice K` in the results."""
    return [
        _tuning_run(name, arm, place, k, seed)
        for arm, place in places(plan, out / "tuning")
        for k in range(len(arm.choices))
        for seed in plan.tuning_seeds
    ]


def _second_round(name: str, plan: Plan, out: Path) -> list[StudyRun]:
    """Return the second round: the best choices of every arm on more tuning seeds."""
    first = _tuning_runs(name, plan, out)
    runs = []
    for (arm, place), (_, final) in zip(places(plan, out / "tuning"), places(plan, out), strict=True):
        best = _best([_score(tried) for tried in _by_choice(arm, first)], plan.finalists)
        begun = _begun(arm, final, plan)  # it is kept, even if a run that had failed would change the order now
        finalists = best if begun is None or begun in best else [*best, begun]
        runs += [_tuning_run(name, arm, place, k, seed) for k in finalists for seed in plan.second_round]
    return runs


def _tuning_run(name: str, arm: Arm, place: Path, k: int, seed: int) -> StudyRun:
    folder = place / f"choice-{k}" / f"seed-{seed}"
    config = replace(arm.choices[k], seed=seed)
    return StudyRun(f"{name}{TUNING}", arm.task, f"{arm.name}{CHOICE}{k}", config, folder)


def _names_of_choices(plan: Plan, out: Path) -> dict[str, str]:
    """Return, for the folder of each choice, its arm and the fields in which the choices differ."""
    names = {}
    for arm, place in places(plan, out / "tuning"):
        fields = {name for choice in arm.choices for name in changes(arm.choices[0], choice)}
        for k, choice in enumerate(arm.choices):
            settings = {name: value for name, value in flat(choice.to_json()) if name in fields}
            group = _within(place / f"choice-{k}", out)
            names[group] = f"{_within(place, out / 'tuning')} {_in_few_words(settings)}"
    return names


def _in_few_words(settings: dict[str, Any]) -> str:
    """Name settings by the last part of their names if it is unambiguous, as a rate that both phases share."""
    last = {name: name.removesuffix(".name").rpartition(".")[2] for name in settings}  # scores.name=x is scores=x
    said: dict[str, None] = {}
    for name, value in settings.items():
        values = {str(settings[other]) for other in settings if last[other] == last[name]}
        said[f"{last[name] if len(values) == 1 else name}={value}"] = None
    return " ".join(said)


def _best(scores: list[float | None], count: int) -> list[int]:
    """Return the indices of the highest scores, the best first, without those that are None."""
    scored = {k: score for k, score in enumerate(scores) if score is not None}
    return sorted(scored, key=lambda k: -scored[k])[:count]


def _final_runs(name: str, plan: Plan, out: Path, tuning: list[StudyRun], failures: dict[str, str]) -> list[StudyRun]:
    """Return every arm, with its chosen settings, for every seed of the study."""
    runs, told = [], []
    for arm, place in places(plan, out):
        config = arm.config
        if arm.choices:
            tried = _by_choice(arm, tuning)
            scores = [_score(run_set) for run_set in tried]
            # After a second round, only its choices have been tried on enough seeds.
            most = max(len(run_set) for run_set in tried)
            among = [score if len(run_set) == most else None for score, run_set in zip(scores, tried, strict=True)]
            if not _best(among, 1):
                folder = out / "tuning" / _within(place, out)
                reasons = [why for run, why in failures.items() if (out / run).is_relative_to(folder)]
                what = "choice" if most == len(plan.tuning_seeds) else "choice in the second round"
                raise LatebloomError(f"every {what} of arm {arm.name} on {arm.task} failed: {'; '.join(reasons)}")
            best = _begun(arm, place, plan)
            if best is None:
                (best,) = _best(among, 1)
            config = arm.choices[best]
            told.append(
                {
                    "task": arm.task,
                    "arm": arm.name,
                    "chosen": best,
                    "choices": [
                        {
                            "changes": changes(arm.config, choice),
                            "seeds": len(run_set),
                            "accuracy_beyond": score,
                        }
                        for choice, score, run_set in zip(arm.choices, scores, tried, strict=True)
                    ],
                }
            )
        runs += [
            StudyRun(name, arm.task, arm.name, replace(config, seed=seed), place / f"seed-{seed}", arm.others)
            for seed in plan.seeds_of(arm)
        ]
    if told:
        write_json(out / "choices.json", told)
    return runs


def _begun(arm: Arm, place: Path, plan: Plan) -> int | None:
    """Return the choice that a run of the study was started with: it is kept, even if another one would win now."""
    for seed in plan.seeds_of(arm):
        folder = RunFolder(place / f"seed-{seed}")
        if folder.config_file.exists():
            found = folder.read_config().hash
            return next((k for k, choice in enumerate(arm.choices) if replace(choice, seed=seed).hash == found), None)
    return None


def _by_choice(arm: Arm, tuning: list[StudyRun]) -> list[list[StudyRun]]:
    mine = [run for run in tuning if run.task == arm.task]
    return [[run for run in mine if run.arm == f"{arm.name}{CHOICE}{k}"] for k in range(len(arm.choices))]


def _score(runs: list[StudyRun]) -> float | None:
    """Return the mean accuracy over the tested lengths beyond the training length; None if a run failed."""
    found = []
    for run in runs:
        folder = RunFolder(run.folder)
        if not folder.is_finished:
            return None
        evaluation = Evaluation.from_json(folder.read_json(folder.evaluation_file))
        found.append(evaluation.mean_beyond)
    return mean(found)
