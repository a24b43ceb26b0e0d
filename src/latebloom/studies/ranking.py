"""How the choices of an arm are ranked at the end of a round of tuning."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import Evaluation

GUESSING = 0.01
"""The probability that any choice of an arm counts as clearly above chance in a round although all of them guess."""


@dataclass(frozen=True)
class Trial:
    """The test of a run at the end of a round."""

    evaluation: Evaluation
    withheld: tuple[str, ...] = ()
    """The answers that are not in the loss yet."""


Tested = dict[int, list[Trial] | None]
"""The tests of each choice on all seeds so far; None means that a run failed."""


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
    order: tuple[int, ...]
    """The choices without those that failed, the best first."""
    by: Literal["beyond", "training length", "nothing"] = "beyond"
    """Where the best choice is clearly above chance; nowhere if the round drops nothing."""

    def best(self, count: int) -> list[int]:
        """Return the best choices; failed ones are left out."""
        return list(self.order[:count])


def rank_choices(tested: Tested, share: float, seeds: int) -> Ranking:
    """Return the ranking of choices that were tested after a share of their steps, on so many seeds.

    At the end of training, choices are ranked by their score. Before it, most of them may still be at chance, and the
    order of their scores is luck. So those that are clearly above chance beyond the training length come first, by
    their score; the others follow, by their accuracy at the training length. If none is clearly above chance at either,
    the ranking is by nothing.
    """
    scores, answers = score_choices(tested)
    scored = {k: score for k, score in scores.items() if score is not None}
    by_score = tuple(sorted(scored, key=lambda k: -scored[k]))
    if share == 1:
        return Ranking(share, seeds, scores, answers, by_score)
    trials = {k: tested[k] or [] for k in by_score}
    far = {k for k in by_score if _is_clear(trials[k], answers, beyond=True, among=len(by_score))}
    near = {k for k in by_score if _is_clear(trials[k], answers, beyond=False, among=len(by_score))}
    at_length = {k: mean(_accuracy_at_training_length(one, answers) for one in trials[k]) for k in by_score}
    order = sorted(by_score, key=lambda k: (k not in far, -scored[k] if k in far else 0.0, -at_length[k]))
    return Ranking(
        share, seeds, scores, answers, tuple(order), "beyond" if far else "training length" if near else "nothing"
    )


def score_choices(tested: Tested) -> tuple[dict[int, float | None], tuple[str, ...]]:
    """Return the score of each choice, and the answers that it is about.

    The score is the mean over seeds of `Evaluation.score`: of the accuracy beyond the training length, or of the loss
    of a language model. Before the switch some answers may not be trained yet. If that is so for any run of the arm,
    all of its choices are ranked by the answers that every one of them is trained on, at each length by the worst of
    these.
    """
    every = [one for group in tested.values() for one in group or ()]
    withheld = {name for one in every for name in one.withheld}
    answers = tuple(name for name in (every[0].evaluation.chance if every else ()) if name not in withheld)

    def score(one: Trial) -> float:
        return one.evaluation.mean_beyond_of(_ranked(one, answers)) if withheld else one.evaluation.score

    scores = {k: None if group is None else mean(map(score, group)) for k, group in tested.items()}
    return scores, answers if withheld else ()


def _ranked(one: Trial, answers: Collection[str]) -> list[str]:
    """Return the answers that are ranked; choices that withhold different ones may have none in common, and then each
    is ranked by its own."""
    return list(answers) or [name for name in one.evaluation.chance if name not in one.withheld]


def _is_clear(trials: Sequence[Trial], answers: Collection[str], *, beyond: bool, among: int) -> bool:
    """Return whether each ranked answer of a choice is clearly above chance, beyond the training length or at it.

    Clearly: an exact binomial test rejects guessing, corrected for the number of choices. Tests of one seed at several
    lengths may share tokens, so a mean over lengths counts as no more sequences than one length has.
    """
    lengths = trials[0].evaluation.lengths_beyond if beyond else _training_length(trials[0])
    if not lengths:
        return False
    counts = {one.length: one.sequences for one in trials[0].evaluation.counts}
    sequences = len(trials) * min(counts[length] for length in lengths)
    for name in _ranked(trials[0], answers):
        accuracy = mean(one.evaluation.accuracy(length, name) for one in trials for length in lengths)
        low, _ = binomial_interval(int(accuracy * sequences), sequences, 1 - 2 * GUESSING / among)
        if low <= trials[0].evaluation.chance[name]:
            return False
    return True


def _training_length(one: Trial) -> list[int]:
    """Return the longest tested length up to the training length, if there is one."""
    return [length for length in one.evaluation.lengths if length <= one.evaluation.training_length][-1:]


def _accuracy_at_training_length(one: Trial, answers: Collection[str]) -> float:
    evaluation = one.evaluation
    if not (lengths := _training_length(one)):
        return 0.0
    if not answers and not one.withheld:
        return evaluation.accuracy(lengths[0])
    return min(evaluation.accuracy(lengths[0], name) for name in _ranked(one, answers))
