"""Rounds of tuning: which runs a round trains, how its choices are ranked, and which of them go on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from latebloom.engine.folder import RunFolder
from latebloom.engine.pause import Stop, read_pause
from latebloom.errors import CheckpointError
from latebloom.evaluation.result import Evaluation
from latebloom.results.collect import StudyRun
from latebloom.results.record import CHOICE, TUNING
from latebloom.results.settings import changes
from latebloom.studies.claim import places
from latebloom.studies.plan import Arm, Plan, Round
from latebloom.studies.stacks import Configs


@dataclass(frozen=True)
class Trial:
    """The test of a run at the end of a round."""

    evaluation: Evaluation
    withheld: tuple[str, ...] = ()
    """The answers that are not in the loss yet."""


@dataclass(frozen=True)
class Ranking:
    """The choices of an arm after a round."""

    share: float
    """The share of its steps after which each was tested."""
    seeds: int
    """The number of held-out seeds so far."""
    scores: dict[int, float | None]
    """The score of each choice that was in the round; None if a run of it failed."""
    answers: tuple[str, ...]
    """The answers that were ranked; empty if all of them were, together."""

    def best(self, count: int) -> list[int]:
        """Return the choices with the highest scores, the best first; failed ones are left out."""
        scored = {k: score for k, score in self.scores.items() if score is not None}
        return sorted(scored, key=lambda k: -scored[k])[:count]


def score_choices(tested: dict[int, list[Trial] | None]) -> tuple[dict[int, float | None], tuple[str, ...]]:
    """Return the score of each choice, and the answers that it is about; None means that a run failed.

    The score is the mean accuracy over the tested lengths beyond the training length and over seeds. Before the switch
    some answers may not be trained yet. If that is so for any run of the arm, all of its choices are ranked by the
    answers that every one of them is trained on, at each length by the worst of these.
    """
    every = [one for group in tested.values() for one in group or ()]
    withheld = {name for one in every for name in one.withheld}
    answers = tuple(name for name in (every[0].evaluation.chance if every else ()) if name not in withheld)

    def score(one: Trial) -> float:
        if not withheld:
            return one.evaluation.mean_beyond
        # Choices that withhold different answers may have none in common; then each is ranked by its own.
        return one.evaluation.mean_beyond_of(
            answers or [name for name in one.evaluation.chance if name not in one.withheld]
        )

    scores = {k: None if group is None else mean(map(score, group)) for k, group in tested.items()}
    return scores, answers if withheld else ()


class Tuning:
    """The rounds of one arm: what was tried so far, and what goes on."""

    def __init__(self, name: str, arm: Arm, place: Path) -> None:
        self.name, self.arm, self.place = name, arm, place
        self.rankings: list[Ranking] = []
        self.seeds: list[int] = []
        self.left = list(range(len(arm.choices)))
        """The choices in the current round."""

    def begin(self, one: Round) -> list[tuple[StudyRun, Stop | None]]:
        """Begin a round: return the runs that it trains, and where each pauses."""
        goes_further = not self.rankings or one.share > self.rankings[-1].share
        added, self.seeds = list(one.seeds), [*self.seeds, *one.seeds]
        seeds = self.seeds if goes_further else added
        return [(self.run(k, seed), self._stop(one, k)) for k in self.left for seed in seeds]

    def _stop(self, one: Round, k: int) -> Stop | None:
        choice = self.arm.choices[k]
        step = one.stop_step(choice)
        return Stop(step) if step < choice.training.steps else None

    def run(self, k: int, seed: int) -> StudyRun:
        """Return the run of a choice on a held-out seed; its name is `arm, choice K`."""
        folder = self.place / f"choice-{k}" / f"seed-{seed}"
        config = replace(self.arm.choices[k], seed=seed)
        return StudyRun(f"{self.name}{TUNING}", self.arm.task, f"{self.arm.name}{CHOICE}{k}", config, folder)

    def end(self, one: Round, begun: int | None) -> None:
        """End a round: rank its choices, and keep the best, and the one with which reported runs have begun."""
        tested = {k: self._tested(k, self._stop(one, k)) for k in self.left}
        scores, answers = score_choices(tested)
        self.rankings.append(Ranking(one.share, len(self.seeds), scores, answers))
        best = self.rankings[-1].best(one.kept(len(self.left)))
        self.left = best if begun is None or begun in best else [*best, begun]

    def _tested(self, k: int, stop: Stop | None) -> list[Trial] | None:
        """Return the tests of a choice on all seeds so far; None if one of its runs failed."""
        found = []
        for seed in self.seeds:
            folder = RunFolder(self.run(k, seed).folder)
            pause = None if stop is None else read_pause(folder, stop.step)
            if pause is not None:
                found.append(Trial(pause.evaluation, pause.withheld))
            elif not folder.is_finished:
                return None
            elif stop is not None:
                raise CheckpointError(f"{folder.path} is finished, and was not tested at step {stop.step}; remove it")
            else:
                folder.read_result(self.run(k, seed).config, "evaluation.json")
                found.append(Trial(folder.read_evaluation()))
        return found

    def describe(self, chosen: int, stops_early: bool) -> dict[str, Any]:
        """Return the entry of the arm in choices.json."""
        return {
            "task": self.arm.task,
            "arm": self.arm.name,
            "chosen": chosen,
            "choices": [
                {
                    "changes": changes(self.arm.config, choice),
                    "seeds": last.seeds,
                    "accuracy_beyond": last.scores[k],
                }
                | ({"steps": self._step(last, k), "rounds": self._history(k)} if stops_early else {})
                for k, choice in enumerate(self.arm.choices)
                for last in [self._last(k)]
            ],
        }

    def _last(self, k: int) -> Ranking:
        """Return the last round that a choice was in."""
        return next(ranking for ranking in reversed(self.rankings) if k in ranking.scores)

    def _step(self, ranking: Ranking, k: int) -> int:
        return Round(share=ranking.share).stop_step(self.arm.choices[k])

    def _history(self, k: int) -> list[dict[str, Any]]:
        return [
            {
                "steps": self._step(one, k),
                "seeds": one.seeds,
                "accuracy_beyond": one.scores[k],
                "answers": list(one.answers) or "all",
            }
            for one in self.rankings
            if k in one.scores
        ]


def tunings(name: str, plan: Plan, out: Path) -> list[Tuning]:
    """Return the tuning of each arm that has choices."""
    return [Tuning(name, arm, place) for arm, place in places(plan, out / "tuning") if arm.choices]


def planned_stages(plan: Plan) -> list[tuple[Configs, dict[str, Stop]]]:
    """Return the runs of a study by folder and where they pause, for each round of tuning and for the report.

    A round trains the best choices of the one before; as long as these are not known, the first choices stand for them.
    """
    stages: list[tuple[Configs, dict[str, Stop]]] = [({}, {}) for _ in (*plan.tuning, "report")]
    for tuning in tunings("", plan, Path()):
        for (runs, stops), one in zip(stages, plan.tuning, strict=False):
            for run, stop in tuning.begin(one):
                runs[run.folder.as_posix()] = run.config
                stops |= {run.folder.as_posix(): stop} if stop else {}
            tuning.left = tuning.left[: one.kept(len(tuning.left))]
    for arm, place in places(plan, Path()):
        stages[-1][0].update({f"{place}/seed-{seed}": replace(arm.config, seed=seed) for seed in plan.seeds_of(arm)})
    return stages


def purpose_of(rounds: Sequence[Round], number: int) -> str:
    """Return what a round is for, in words."""
    if len(rounds) == 1:
        return "choosing settings"
    names = ("first of two rounds", "second round")
    return f"choosing settings, {names[number] if len(rounds) == 2 else f'round {number + 1} of {len(rounds)}'}"
