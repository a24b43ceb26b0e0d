"""The runs of one chart, and their statistics over seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from latebloom.evaluation.result import CLAIM, HOLDS_AT, Evaluation
from latebloom.report.statistics import Estimate, mean_interval
from latebloom.results.record import RunRecord
from latebloom.results.stated import Stated


@dataclass(frozen=True)
class Panel:
    """The runs of one study on one task at one training length."""

    study: str
    task: str
    training_length: int
    of_study: tuple[str, ...]
    """All arms of the study, including those without a run here: an arm has the same colour in all panels."""
    runs: tuple[RunRecord, ...]

    @property
    def title(self) -> str:
        return f"{self.task}, trained up to length {self.training_length}"

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """The arms with a run here, finished or not."""
        here = {run.arm for run in self.runs}
        return tuple(arm for arm in self.of_study if arm in here)

    @cached_property
    def finished(self) -> dict[str, dict[int, Evaluation]]:
        """Evaluations by arm and seed; empty for an arm without a finished run."""
        found: dict[str, dict[int, Evaluation]] = {arm: {} for arm in self.arms}
        for run in self.runs:
            if run.evaluation is not None:
                found[run.arm][run.seed] = run.evaluation
        return found

    @property
    def shown(self) -> list[str]:
        """The arms with a finished run."""
        return [arm for arm in self.arms if self.finished[arm]]

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        return [evaluation for arm in self.finished.values() for evaluation in arm.values()]

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for evaluation in self.evaluations for length in evaluation.lengths})

    @property
    def answers(self) -> list[str]:
        """The named answers of the task."""
        return list(dict.fromkeys(name for evaluation in self.evaluations for name in evaluation.chance))

    @property
    def is_single(self) -> bool:
        """Whether no arm has more than one finished seed, so that the spread over seeds is unknown."""
        return all(len(seeds) <= 1 for seeds in self.finished.values())

    def by_seed(self, arm: str, length: int, answer: str | None = None) -> dict[int, float]:
        """Return one accuracy for each seed that was tested at this length."""
        return self._accuracies.get((arm, length, answer), {})

    @cached_property
    def _accuracies(self) -> dict[tuple[str, int, str | None], dict[int, float]]:
        """The accuracies of all runs by arm, length, answer and seed."""
        found: dict[tuple[str, int, str | None], dict[int, float]] = {}
        for arm, runs in self.finished.items():
            for seed, run in runs.items():
                for count in run.counts:
                    found.setdefault((arm, count.length, None), {})[seed] = count.accuracy
                    for answer in run.chance:
                        found.setdefault((arm, count.length, answer), {})[seed] = count.accuracy_of(answer)
        return found

    def losses(self, arm: str, contexts: Sequence[int]) -> dict[int, float]:
        """Return the loss of each seed of a language model, averaged over contexts; empty if it was not measured."""
        runs = self.finished.get(arm, {})
        return {
            seed: sum(run.losses[one] for one in contexts) / len(contexts)
            for seed, run in runs.items()
            if contexts and all(one in run.losses for one in contexts)
        }

    @cached_property
    def has_losses(self) -> bool:
        """Whether the runs are language models."""
        return any(one.losses for one in self.evaluations)

    def estimate(self, arm: str, length: int, answer: str | None = None) -> Estimate | None:
        """Return the mean over seeds; None if no seed was tested.

        If no arm has several seeds, the interval of all answers is over the tested sequences.
        """
        values = self.by_seed(arm, length, answer)
        if values and self.is_single and answer is None:
            (evaluation,) = self.finished[arm].values()
            (count,) = (count for count in evaluation.counts if count.length == length)
            return Estimate(count.accuracy, *count.interval, 1)
        return mean_interval(values.values()) if values else None

    @cached_property
    def compared_length(self) -> int | None:
        """The length at which arms are compared: 3x the training length, or the longest that most arms share."""
        tested = {length: sum(bool(self.by_seed(arm, length)) for arm in self.arms) for length in self.lengths}
        claim = CLAIM * self.training_length
        if tested.get(claim, 0) >= min(2, len(self.shown)) > 0:
            return claim
        return max(tested, key=lambda length: (tested[length], length), default=None)

    @cached_property
    def near_and_far(self) -> list[int]:
        """The compared length and the longest tested one, which may be the same; empty if no run is finished."""
        return [] if self.compared_length is None else list(dict.fromkeys((self.compared_length, self.lengths[-1])))

    def standings(self, length: int | None = None) -> list[tuple[str, Estimate]]:
        """Return the arms that were tested at a length (the compared length unless given), best first."""
        found = ((arm, self.estimate(arm, length or self.compared_length or 0)) for arm in self.shown)
        return sorted(((arm, one) for arm, one in found if one is not None), key=lambda pair: -pair[1].mean)

    @cached_property
    def against(self) -> dict[str, tuple[str, ...]]:
        """The baselines of each arm, both with a finished run; empty if the study names none."""
        named: dict[str, dict[str, None]] = {arm: {} for arm in self.arms}
        for run in self.runs:  # runs from older results files do not name baselines
            named[run.arm].update(dict.fromkeys(run.against))
        if not any(named.values()):
            return {}
        return {arm: tuple(other for other in named[arm] if other in self.shown) for arm in self.shown}

    @cached_property
    def controls(self) -> list[str]:
        """The negative controls, in which no effect is expected."""
        marked = {run.arm for run in self.runs if Stated.from_text(run.stated).control}
        return [arm for arm in self.arms if arm in marked]

    def failed_to_learn(self, arm: str) -> int | None:
        """Return how many seeds do not hold at the training length; None if that was not tested."""
        values = self.by_seed(arm, self.training_length).values()
        return sum(value < HOLDS_AT for value in values) if values else None

    @cached_property
    def reference(self) -> str | None:
        """The arm that is the baseline of more than half of the comparisons, if there is one."""
        named = Counter(other for others in self.against.values() for other in others)
        return next((arm for arm, count in named.items() if count > named.total() / 2), None)


def panels(records: Sequence[RunRecord]) -> list[Panel]:
    """Group records into panels, in the order in which they appear."""
    groups: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.study, record.task, record.training_length), []).append(record)
    arms: dict[str, dict[str, None]] = {}
    by_arms = sorted(groups.items(), key=lambda group: -len({run.arm for run in group[1]}))
    for (study, _, _), runs in by_arms:  # arms have the order of the panel with the most arms
        arms.setdefault(study, {}).update(dict.fromkeys(run.arm for run in runs))
    return [
        Panel(study, task, length, tuple(arms[study]), tuple(runs)) for (study, task, length), runs in groups.items()
    ]
