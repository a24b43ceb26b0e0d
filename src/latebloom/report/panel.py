"""The runs that share a chart, and what their seeds say together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.statistics import Comparison, Estimate, compare_arms, holm, mean_interval
from latebloom.results.record import RunRecord


@dataclass(frozen=True)
class Panel:
    """One study's runs on one task at one training length."""

    study: str
    task: str
    training_length: int
    of_study: tuple[str, ...]
    """Every arm of the study, also those that are not here: an arm has one colour in all of a study's panels."""
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
        """Evaluations by arm and seed; an arm without a finished run has none."""
        found: dict[str, dict[int, Evaluation]] = {arm: {} for arm in self.arms}
        for run in self.runs:
            if run.evaluation is not None:
                found[run.arm][run.seed] = run.evaluation
        return found

    @property
    def shown(self) -> list[str]:
        """The arms with a finished run."""
        return [arm for arm in self.arms if self.finished[arm]]

    @property
    def failures(self) -> list[RunRecord]:
        return [run for run in self.runs if run.evaluation is None]

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        return [evaluation for arm in self.finished.values() for evaluation in arm.values()]

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for evaluation in self.evaluations for length in evaluation.lengths})

    @property
    def answers(self) -> list[str]:
        """The named answers that the task asks for."""
        return list(dict.fromkeys(name for evaluation in self.evaluations for name in evaluation.chance))

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def is_single(self) -> bool:
        """Whether no arm has more than one seed, so that nothing can be said about the spread over seeds."""
        return all(len(seeds) <= 1 for seeds in self.finished.values())

    def by_seed(self, arm: str, length: int, answer: str | None = None) -> dict[int, float]:
        """One accuracy a seed, of the seeds that were tested at this length."""
        return {
            seed: evaluation.accuracy(length, answer)
            for seed, evaluation in self.finished[arm].items()
            if length in evaluation.lengths and (answer is None or answer in evaluation.chance)
        }

    def estimate(self, arm: str, length: int, answer: str | None = None) -> Estimate | None:
        """The mean over seeds; None where no seed was tested."""
        values = self.by_seed(arm, length, answer)
        return mean_interval(list(values.values())) if values else None

    @cached_property
    def compared_length(self) -> int | None:
        """Where arms are compared: three times the training length, or else the longest that most arms share."""
        tested = {length: sum(bool(self.by_seed(arm, length)) for arm in self.arms) for length in self.lengths}
        claim = CLAIM * self.training_length
        if tested.get(claim, 0) >= min(2, len(self.shown)) > 0:
            return claim
        return max(tested, key=lambda length: (tested[length], length), default=None)

    @cached_property
    def standings(self) -> list[tuple[str, Estimate]]:
        """The arms at the compared length, the best first."""
        length = self.compared_length
        found = [(arm, self.estimate(arm, length)) for arm in self.shown] if length is not None else []
        return sorted(((arm, one) for arm, one in found if one is not None), key=lambda pair: -pair[1].mean)


def panels(records: Sequence[RunRecord]) -> list[Panel]:
    """Records sorted into panels, in the order in which they stand."""
    groups: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.study, record.task, record.training_length), []).append(record)
    arms: dict[str, dict[str, None]] = {}
    by_arms = sorted(groups.items(), key=lambda group: -len({run.arm for run in group[1]}))
    for (study, _, _), runs in by_arms:  # the order of the panel that has the most
        arms.setdefault(study, {}).update(dict.fromkeys(run.arm for run in runs))
    return [
        Panel(study, task, length, tuple(arms[study]), tuple(runs)) for (study, task, length), runs in groups.items()
    ]


def comparisons(several: Sequence[Panel]) -> list[list[Comparison]]:
    """All pairs of arms in each panel at its compared length; Holm's correction is over the panels of a study."""
    found = [
        [
            compared
            for first, second in combinations([arm for arm, _ in panel.standings], 2)
            if (compared := compare_arms(first, second, *(_at(panel, arm) for arm in (first, second))))
        ]
        for panel in several
    ]
    for study in {panel.study for panel in several}:
        places = [(i, j) for i, panel in enumerate(several) if panel.study == study for j in range(len(found[i]))]
        for (i, j), corrected in zip(places, holm([found[i][j] for i, j in places]), strict=True):
            found[i][j] = corrected
    return found


def _at(panel: Panel, arm: str) -> dict[int, float]:
    assert panel.compared_length is not None, "arms stand in an order only at a compared length"
    return panel.by_seed(arm, panel.compared_length)
