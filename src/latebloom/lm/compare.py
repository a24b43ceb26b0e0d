"""Compare delayed with joint training over seeds and documents, and say what follows.

The criterion was fixed before any data were seen: a delay helps if the loss on the same tokens at 4 times the training
context and beyond is lower, with an interval clear of zero, while the loss at 1x is worse by less than 0.02 nats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Literal

import numpy as np

from latebloom.lm.evaluate import WORSE
from latebloom.report.statistics import LEVEL, Estimate

FAR = 4
"""The multiple of the training context from which on a delay should help."""
LEARNED = 0.5
"""Nats by which a model must be better than the frequencies of tokens for its training to tell anything."""
MOST_SEEDS = 50
Verdict = Literal["helps", "trade", "hurts", "no difference", "too little data", "too little training"]
Arms = Mapping[str, Mapping[int, dict[str, Any]]]
"""Evaluations by arm and seed."""


def paired_losses(arms: Arms, contexts: Sequence[int]) -> np.ndarray:
    """Return delayed - joint of the loss, averaged over contexts, by seed and document."""
    seeds = sorted(arms["joint"].keys() & arms["delayed"].keys())

    def losses(arm: str, seed: int) -> np.ndarray:
        return np.mean([arms[arm][seed]["loss_of_documents"][str(context)] for context in contexts], axis=0)

    return np.stack([losses("delayed", seed) - losses("joint", seed) for seed in seeds])


def estimate(differences: np.ndarray) -> Estimate:
    """Return the mean of differences (seeds, documents) with an interval that counts both as random.

    The variances of the mean over seeds and over documents are added, and the quantile is that of Student's t with one
    less than the number of seeds as degrees of freedom. One seed has no interval.
    """
    mean, (seeds, documents) = float(differences.mean()), differences.shape
    if seeds < 2 or documents < 2:
        return Estimate(mean, None, None, seeds)
    half = _quantile(seeds) * sqrt(sum(_variances(differences)))
    return Estimate(mean, mean - half, mean + half, seeds)


def _quantile(seeds: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, seeds - 1))


def _variances(differences: np.ndarray) -> tuple[float, float]:
    """Return the variance of the mean that comes from seeds, and that from documents."""
    seeds, documents = differences.shape
    over_documents, by_document = differences.mean(axis=1), differences.mean(axis=0)
    return float(over_documents.var(ddof=1) / seeds), float(by_document.var(ddof=1) / documents)


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean of one value for each seed, with Student's interval."""
    return estimate(np.repeat(np.array(values, dtype=float)[:, None], 2, axis=1))


@dataclass(frozen=True)
class Recommendation:
    """What a trial says."""

    verdict: Verdict
    sentence: str
    """The answer."""
    advice: str
    near: Estimate
    """Delayed - joint at 1x, in nats."""
    far: Estimate
    """The same at 4x and beyond."""


def recommend(arms: Arms, unigram: float) -> Recommendation:
    """Return the recommendation; `unigram` is the loss of a model that knows only how frequent each token is."""
    first = next(iter(arms["joint"].values()))
    base, contexts = first["training_context"], first["contexts"]
    is_far = contexts[-1] >= FAR * base
    far_contexts = [one for one in contexts if one >= FAR * base] if is_far else contexts[-1:]
    near = estimate(paired_losses(arms, [base]))
    differences = paired_losses(arms, far_contexts)
    far = estimate(differences)
    joint = float(np.mean([one["loss"][str(base)]["mean"] for one in arms["joint"].values()]))
    verdict = _verdict(near, far, is_far, joint, unigram)
    span = f"{far_contexts[0] / base:g}x" + (" and beyond" if len(far_contexts) > 1 else "")
    measured = f"at {span} the loss changes by {_nats(far)}, and at 1x by {_nats(near)}"
    sentence, advice = {
        "helps": (
            f"Delaying attention helps on this data: {measured}.",
            "Try it at full size, with the same share of the steps, and evaluate at the contexts that you need.",
        ),
        "trade": (
            f"Delaying attention is a trade on this data: {measured}.",
            "The loss at 1x is the price. A shorter delay may cost less: repeat the trial with half of --until.",
        ),
        "hurts": (
            f"Delaying attention does harm on this data: {measured}.",
            "Stay with joint training, or repeat the trial with a shorter delay.",
        ),
        "no difference": (
            f"Delaying attention makes no difference at long contexts on this data: {measured}.",
            "Stay with joint training: there is nothing to gain there that this trial could see.",
        ),
        "too little data": (
            f"There is too little data to tell: {measured}.",
            _more_seeds(far, differences)
            if is_far
            else f"No context of {FAR}x was tested: give more text or a shorter --context.",
        ),
        "too little training": (
            f"There was too little training to tell: the loss of joint training at 1x is {joint:.2f} nats, and the "
            f"frequencies of the tokens alone give {unigram:.2f}.",
            "Give more --minutes, fewer --seeds or a smaller model.",
        ),
    }[verdict]
    return Recommendation(verdict, sentence, advice, near, far)


def _verdict(near: Estimate, far: Estimate, is_far: bool, joint: float, unigram: float) -> Verdict:
    if joint > unigram - LEARNED:
        return "too little training"
    if not is_far or far.low is None or far.high is None or near.low is None:
        return "too little data"
    if far.high < 0:
        return "helps" if near.mean < WORSE else "trade"
    if far.low > 0:
        return "hurts"
    if not (far.low > -WORSE and far.high < WORSE):
        return "too little data"
    return "hurts" if near.low > 0 and near.mean >= WORSE else "no difference"


def _more_seeds(far: Estimate, differences: np.ndarray) -> str:
    """Say how many seeds would settle a difference of the size that was seen."""
    if far.high is None:
        return "One seed has no interval: repeat the trial with --seeds 3 or more."
    of_seeds, of_documents = _variances(differences)
    left = (far.mean / _quantile(far.seeds)) ** 2 - of_documents  # more seeds do not lower the variance from documents
    if left <= 0:
        return "The difference is small beside the variation between documents; give more text and more --minutes."
    wanted = ceil(far.seeds * of_seeds / left)
    if wanted > MOST_SEEDS:
        return "The difference is small beside the variation between seeds; longer training tells more than more seeds."
    return f"If the difference is as large as it seems, about {max(wanted, far.seeds + 1)} seeds would settle it."


def _nats(one: Estimate) -> str:
    interval = "" if one.low is None else f" [{one.low:+.3f}, {one.high:+.3f}]"
    return f"{one.mean:+.3f} nats{interval}"
