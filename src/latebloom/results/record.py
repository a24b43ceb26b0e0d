"""One run of a study, as the results file has it: names, numbers, and what it takes to repeat it."""

from dataclasses import dataclass

from latebloom.evaluation.result import Evaluation

TUNING, CHOICE = ", tuning", ", choice "
"""What the name of a study and that of an arm get in runs that are made to choose settings."""


@dataclass(frozen=True)
class CurvePoint:
    """One measurement made while training went on."""

    measure: str
    """loss, accuracy (all answers) or accuracy_NAME (one of them)."""
    length: int | None
    """The length that was tested; None for a loss."""
    step: int
    value: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run that finished, or one that did not and says why."""

    study: str
    task: str
    arm: str
    """What is compared within a study and task, such as joint or dat."""
    seed: int
    training_length: int
    evaluation: Evaluation | None
    """None for a run that did not finish."""
    failure: str | None = None
    """Why there is no evaluation."""
    switch_step: int | None = None
    steps: int | None = None
    seconds: float | None = None
    stacked: int | None = None
    """How many runs were trained at once; the seconds are those of all of them."""
    config: str
    """The configuration, as JSON."""
    config_hash: str
    versions: str | None = None
    machine: str | None = None
    commit: str | None = None
    command: str
    """A line for the shell that repeats the run."""
    curve: tuple[CurvePoint, ...] = ()
    against: tuple[str, ...] = ()
    """The arms that its arm is held against; if no arm says so, all are compared with each other."""

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        """What only one run has."""
        return self.study, self.task, self.training_length, self.arm, self.seed

    @property
    def name(self) -> str:
        """The run in words, for an error."""
        return f"{self.study}, {self.task} up to {self.training_length}, {self.arm}, seed {self.seed}"

    def accuracy(self, length: int, answer: str | None = None) -> float | None:
        """Of all answers, or of a named one; None where it was not measured."""
        if self.evaluation is None or length not in self.evaluation.lengths:
            return None
        if answer is not None and answer not in self.evaluation.chance:
            return None
        return self.evaluation.accuracy(length, answer)
