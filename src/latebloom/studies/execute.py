"""The execution of a study: first the choices of settings, then every arm with every seed.

The folder of a study holds `study.json` (its description), a folder for each run, `choices.json` (the chosen settings
and the scores of all), `tuning.parquet` and `results.parquet`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.files import write_json
from latebloom.engine.folder import IN_USE, RunFolder
from latebloom.errors import LatebloomError
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import RESULTS_FILE, TUNING_FILE, write_results
from latebloom.results.record import CHOICE, TUNING
from latebloom.results.settings import changes, flat
from latebloom.studies.claim import claimed, places
from latebloom.studies.plan import Arm, Plan, Stage

Runner = Callable[[dict[str, RunConfig], Path], dict[str, str]]
"""Trains every configuration that is not finished in `folder/name`; returns the reason for each run that failed."""


@dataclass(frozen=True)
class StudyOutcome:
    """The results file of a study, and its failed runs."""

    results: Path
    failures: dict[str, str]
    """The reason for each failed run, by its folder relative to that of the study."""


def execute(
    name: str, plan: Plan, out: Path, runner: Runner, announce: Callable[[Stage], None] = lambda stage: None
) -> StudyOutcome:
    """Train the runs that are not finished, and collect the results; it can be stopped and started again at any time.

    `announce` is called with the purpose of the next runs.
    """
    with claimed(out, name, plan):
        failures: dict[str, str] = {}
        tuning: list[StudyRun] = []
        rounds = {"first of two rounds": _tuning_runs, "second round": _second_round}
        for which, find_runs in rounds.items():
            if more := find_runs(name, plan, out):
                purpose = f"choosing settings, {which}" if plan.second_round else "choosing settings"
                later = [*([] if tuning else plan.second_round_steps), *plan.reported_steps]
                announce(Stage(purpose, later, _choice_labels(plan, out)))
                _train(more, out, runner, out / TUNING_FILE, failures, before=tuning)
                tuning += more
        runs = _final_runs(name, plan, out, tuning, failures)
        announce(Stage("the runs to report"))
        _train(runs, out, runner, out / RESULTS_FILE, failures)
        return StudyOutcome(out / RESULTS_FILE, failures)


def _train(
    runs: list[StudyRun],
    out: Path,
    runner: Runner,
    file: Path,
    failures: dict[str, str],
    before: Sequence[StudyRun] = (),
) -> None:
    """Train runs, add to `failures`, and write the results after those of `before`, also if training is interrupted."""

    def collect_all() -> None:
        write_results(file, [collect(run, failures.get(_within(run.folder, out))) for run in [*before, *runs]])

    try:
        found = runner({_within(run.folder, out): run.config for run in runs}, out)
        if busy := [reason for reason in found.values() if reason.endswith(IN_USE)]:
            # These runs have not failed. To go on without them could change the choice of settings for good.
            raise LatebloomError(f"{busy[0]}; give the same command again when that process has ended")
    except BaseException:
        with suppress(LatebloomError):  # the interruption is what the user is told of
            collect_all()
        raise
    failures |= found
    collect_all()


def _within(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _tuning_runs(name: str, plan: Plan, out: Path) -> list[StudyRun]:
    """Return the first round: every choice of every arm on held-out seeds; its name is `arm, choice K`."""
    return [
        _tuning_run(name, arm, place, k, seed)
        for arm, place in places(plan, out / "tuning")
        for k in range(len(arm.choices))
        for seed in plan.tuning_seeds
    ]


def _second_round(name: str, plan: Plan, out: Path) -> list[StudyRun]:
    """Return the second round: the best choices of every arm on more held-out seeds."""
    first = _tuning_runs(name, plan, out)
    runs = []
    for (arm, place), (_, final) in zip(places(plan, out / "tuning"), places(plan, out), strict=True):
        best = _best([_score(tried) for tried in _by_choice(arm, first)], plan.finalists)
        begun = _begun_choice(arm, final, plan)  # stays, even if another one is better now
        finalists = best if begun is None or begun in best else [*best, begun]
        runs += [_tuning_run(name, arm, place, k, seed) for k in finalists for seed in plan.second_round]
    return runs


def _tuning_run(name: str, arm: Arm, place: Path, k: int, seed: int) -> StudyRun:
    folder = place / f"choice-{k}" / f"seed-{seed}"
    config = replace(arm.choices[k], seed=seed)
    return StudyRun(f"{name}{TUNING}", arm.task, f"{arm.name}{CHOICE}{k}", config, folder)


def _choice_labels(plan: Plan, out: Path) -> dict[str, str]:
    """Return a label for the folder of each choice: the arm, and the fields in which its choices differ."""
    names = {}
    for arm, place in places(plan, out / "tuning"):
        fields = {name for choice in arm.choices for name in changes(arm.choices[0], choice)}
        for k, choice in enumerate(arm.choices):
            settings = {name: value for name, value in flat(choice.to_json()) if name in fields}
            group = _within(place / f"choice-{k}", out)
            names[group] = f"{_within(place, out / 'tuning')} {_short_settings(settings)}"
    return names


def _short_settings(settings: dict[str, Any]) -> str:
    """Return settings as text, by the last part of their names if that is unambiguous."""
    last = {name: name.removesuffix(".name").rpartition(".")[2] for name in settings}  # scores.name=x is scores=x
    texts: dict[str, None] = {}
    for name, value in settings.items():
        values = {str(settings[other]) for other in settings if last[other] == last[name]}
        texts[f"{last[name] if len(values) == 1 else name}={value}"] = None
    return " ".join(texts)


def _best(scores: list[float | None], count: int) -> list[int]:
    """Return the indices of the highest scores, the best first; entries without a score are left out."""
    scored = {k: score for k, score in enumerate(scores) if score is not None}
    return sorted(scored, key=lambda k: -scored[k])[:count]


def _final_runs(name: str, plan: Plan, out: Path, tuning: list[StudyRun], failures: dict[str, str]) -> list[StudyRun]:
    """Return every arm with its chosen settings and every seed of the study, and write choices.json."""
    runs, records = [], []
    for arm, place in places(plan, out):
        config = arm.config
        if arm.choices:
            tried = _by_choice(arm, tuning)
            scores = [_score(run_set) for run_set in tried]
            # With a second round, only choices that were in it can be chosen.
            most = max(len(run_set) for run_set in tried)
            among = [score if len(run_set) == most else None for score, run_set in zip(scores, tried, strict=True)]
            if not _best(among, 1):
                folder = out / "tuning" / _within(place, out)
                reasons = [why for run, why in failures.items() if (out / run).is_relative_to(folder)]
                what = "choice" if most == len(plan.tuning_seeds) else "choice in the second round"
                raise LatebloomError(f"every {what} of arm {arm.name} on {arm.task} failed: {'; '.join(reasons)}")
            best = _begun_choice(arm, place, plan)
            if best is None:
                (best,) = _best(among, 1)
            config = arm.choices[best]
            records.append(
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


def _begun_choice(arm: Arm, place: Path, plan: Plan) -> int | None:
    """Return the choice of the runs that have begun, which stays even if another one is better now; or None."""
    for seed in plan.seeds_of(arm):
        folder = RunFolder(place / f"seed-{seed}")
        if folder.config_file.exists():
            found = folder.read_config().hash
            return next((k for k, choice in enumerate(arm.choices) if replace(choice, seed=seed).hash == found), None)
    return None


def _by_choice(arm: Arm, tuning: list[StudyRun]) -> list[list[StudyRun]]:
    of_task = [run for run in tuning if run.task == arm.task]
    return [[run for run in of_task if run.arm == f"{arm.name}{CHOICE}{k}"] for k in range(len(arm.choices))]


def _score(runs: list[StudyRun]) -> float | None:
    """Return the mean accuracy beyond the training length over the runs of a choice; None if a run failed."""
    found = []
    for run in runs:
        folder = RunFolder(run.folder)
        if not folder.is_finished:
            return None
        folder.read_result("evaluation.json")
        found.append(folder.read_evaluation().mean_beyond)
    return mean(found)
