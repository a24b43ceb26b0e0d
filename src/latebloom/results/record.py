"""One run of a study: its names, its numbers, and the command that repeats it."""

from dataclasses import dataclass
from typing import NamedTuple

from latebloom.evaluation.result import Evaluation

TUNING, CHOICE = ", tuning", ", choice "
"""Appended to the names of the study and of the arm in runs on tuning seeds."""


class CurvePoint(NamedTuple):
    """One measurement during training; a report may have millions."""

    measure: str
    """loss, accuracy (all answers) or accuracy_NAME (one of them)."""
    length: int | None
    """The tested length; None for a loss."""
    step: int
    value: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run that finished, or one that did not and the reason."""

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
    """How many runs were trained at once; `seconds` is the time of all of them."""
    config: str
    """The configuration as JSON."""
    config_hash: str
    versions: str | None = None
    machine: str | None = None
    commit: str | None = None
    command: str
    """A shell command that repeats the run."""
    curve: tuple[CurvePoint, ...] = ()
    against: tuple[str, ...] = ()
    """The baselines of its arm; if no arm of a study has any, all arms are compared with each other."""
    is_selected: bool = False
    """Whether it is a run of another arm that a selection has chosen."""
    stated: str = ""
    """What its study states beforehand, as text of `results.stated`; empty if nothing."""
    manifest: str | None = None
    """The digest of the manifest of the run's folder."""

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        """The names that no two runs share."""
        return self.study, self.task, self.training_length, self.arm, self.seed

    @property
    def name(self) -> str:
        """The names of the run for an error message."""
        return f"{self.study}, {self.task} up to {self.training_length}, {self.arm}, seed {self.seed}"
