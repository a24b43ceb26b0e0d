"""Rounds of tuning: which runs a round trains, and which choices go on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.pause import Stop, read_pause
from latebloom.errors import CheckpointError
from latebloom.results.collect import StudyRun
from latebloom.results.record import CHOICE, TUNING
from latebloom.results.settings import changes
from latebloom.studies.claim import places
from latebloom.studies.plan import Arm, Plan, Round
from latebloom.studies.ranking import Ranking, Trial, rank_choices
from latebloom.studies.stacks import Configs

MOST_TOLD = 3
"""The number of arms that a note names."""


class Tuning:
    """The rounds of one arm: what was tried so far, and what goes on."""

    def __init__(self, name: str, arm: Arm, place: Path) -> None:
        self.name, self.arm, self.place = name, arm, place
        self.choices = list(arm.choices)
        """The choices of the arm, and those that were added after the last round."""
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
        choice = self.choices[k]
        step = one.stop_step(choice)
        return Stop(step) if step < choice.training.steps else None

    def run(self, k: int, seed: int) -> StudyRun:
        """Return the run of a choice on a held-out seed; its name is `arm, choice K`."""
        config, name = replace(self.choices[k], seed=seed), f"{self.arm.name}{CHOICE}{k}"
        return StudyRun(f"{self.name}{TUNING}", self.arm.task, name, config, self.folder(k, seed))

    def folder(self, k: int, seed: int) -> Path:
        """Return the folder of the run of a choice on a held-out seed."""
        return self.place / f"choice-{k}" / f"seed-{seed}"

    def end(self, one: Round, begun: int | None) -> None:
        """End a round: rank its choices, and keep the best, and the one with which reported runs have begun.

        If none is clearly above chance yet, all go on.
        """
        tested = {k: self._tested(k, self._stop(one, k)) for k in self.left}
        ranking = rank_choices(tested, one.share, len(self.seeds))
        self.rankings.append(ranking)
        best = ranking.best(len(self.left) if ranking.by == "nothing" else one.kept(len(self.left)))
        self.left = best if begun is None or begun in best else [*best, begun]

    def add(self, choice: RunConfig) -> list[StudyRun]:
        """Add a choice after the last round; return its runs, on all held-out seeds to the end."""
        self.choices.append(choice)
        return [self.run(len(self.choices) - 1, seed) for seed in self.seeds]

    def rank_added(self) -> None:
        """Rank the added choices among those of the last round."""
        last = self.rankings[-1]
        added = (k for k in range(len(self.arm.choices), len(self.choices)) if k not in last.scores)
        tested = {k: self._tested(k, None) for k in (*last.scores, *added)}
        self.rankings[-1] = rank_choices(tested, last.share, last.seeds)

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
                    **_named(last.scores[k]),
                }
                | ({"steps": self._step(last, k), "rounds": self._history(k)} if stops_early else {})
                | ({"extends_the_range": True} if k >= len(self.arm.choices) else {})
                for k, choice in enumerate(self.choices)
                for last in [self._last(k)]
            ],
        }

    def _last(self, k: int) -> Ranking:
        """Return the last round that a choice was in."""
        return next(ranking for ranking in reversed(self.rankings) if k in ranking.scores)

    def _step(self, ranking: Ranking, k: int) -> int:
        return Round(share=ranking.share).stop_step(self.choices[k])

    def _history(self, k: int) -> list[dict[str, Any]]:
        return [
            {
                "steps": self._step(one, k),
                "seeds": one.seeds,
                **_named(one.scores[k]),
                "answers": list(one.answers) or "all",
                "ranked_by": one.by,
            }
            for one in self.rankings
            if k in one.scores
        ]


def _named(score: float | None) -> dict[str, float | None]:
    """Return a score under the name of what it is: a loss is negative as a score."""
    return {"accuracy_beyond": score} if score is None or score >= 0 else {"loss": -score}


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


def describe_chance(tuned: Sequence[Tuning]) -> str:
    """Say of which arms the last round dropped nothing; empty if there are none."""
    arms = name_arms([one.arm for one in tuned if one.rankings[-1].by == "nothing"])
    return arms and f"no setting of {arms} is clearly above chance yet, so all of them go on"


def name_arms(arms: Sequence[Arm]) -> str:
    """Return the names of the first few arms, and how many more there are."""
    more = f" and {len(arms) - MOST_TOLD} more arms" * (len(arms) > MOST_TOLD)
    return ", ".join(f"{arm.name} on {arm.task}" for arm in arms[:MOST_TOLD]) + more


def purpose_of(rounds: Sequence[Round], number: int) -> str:
    """Return what a round is for, in words."""
    if len(rounds) == 1:
        return "choosing settings"
    names = ("first of two rounds", "second round")
    return f"choosing settings, {names[number] if len(rounds) == 2 else f'round {number + 1} of {len(rounds)}'}"
