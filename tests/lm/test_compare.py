"""The recommendation of a trial: each verdict from made-up losses, and intervals that hold their level."""

import numpy as np
import pytest

from latebloom.lm.compare import Arms, estimate, recommend

CONTEXTS = (32, 64, 128, 256)


def arms(near: float, far: float, noise: float, seeds: int = 3, joint: float = 3.0) -> Arms:
    """Return evaluations in which the delay changes the loss at 1x and from 4x on by so much, with noise over seeds."""
    random = np.random.default_rng(0)
    documents = random.normal(joint, 0.3, 20)
    found: dict[str, dict[int, dict]] = {"joint": {}, "delayed": {}}
    for arm, by_seed in found.items():
        for seed in range(seeds):
            change = {32: near, 64: near, 128: far, 256: far} if arm == "delayed" else dict.fromkeys(CONTEXTS, 0.0)
            shift = random.normal(0, noise)
            losses = {c: documents + shift + change[c] + random.normal(0, noise / 5, 20) for c in CONTEXTS}
            by_seed[seed] = {
                "training_context": 32,
                "contexts": list(CONTEXTS),
                "loss": {str(c): {"mean": float(one.mean())} for c, one in losses.items()},
                "loss_of_documents": {str(c): one.tolist() for c, one in losses.items()},
            }
    return found


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (
            arms(0.0, -0.3, 0.005),
            "helps",
            "Delaying attention helps on this data: at 4x and beyond",
        ),
        (arms(0.1, -0.3, 0.005), "trade", "is a trade on this data"),
        (arms(0.0, 0.3, 0.005), "hurts", "does harm on this data"),
        (arms(0.0, 0.0, 0.002), "no difference", "makes no difference at long contexts on this data"),
        (arms(0.1, 0.0, 0.002), "hurts", "does harm on this data"),
        (arms(0.0, 0.0, 0.0), "no difference", "makes no difference at long contexts on this data"),
        (arms(0.0, -0.1, 0.3), "too little data", "There is too little data to tell"),
        (arms(0.0, -0.3, 0.0, seeds=1), "too little data", "There is too little data to tell"),
        (arms(0.0, -0.3, 0.005, joint=5.8), "too little training", "There was too little training to tell"),
    ],
)
def test_each_verdict(found, verdict, words):
    said = recommend(found, unigram=6.0)
    assert said.verdict == verdict
    assert said.sentence.startswith(words) or words in said.sentence
    assert said.advice.endswith(".")
    assert said.advice


def test_without_a_context_of_4x_there_is_no_verdict():
    found = arms(-0.3, -0.3, 0.005)
    for by_seed in found.values():
        for one in by_seed.values():
            one["contexts"] = [32, 64]
    said = recommend(found, unigram=6.0)
    assert said.verdict == "too little data"
    assert said.advice == "No context of 4x was tested: give more text or a shorter --context."


def test_the_advice_depends_on_what_the_variation_is_between():
    """Seeds that agree cannot settle what differs between documents."""
    found = arms(0.0, -0.1, 0.15, seeds=4)
    assert "seeds would settle it" in recommend(found, unigram=6.0).advice
    noise = np.random.default_rng(2).normal(0, 1.0, 20)
    for one in found["delayed"].values():
        for context in ("128", "256"):
            one["loss_of_documents"][context] = (np.array(one["loss_of_documents"][context]) + noise).tolist()
    said = recommend(found, unigram=6.0)
    assert said.verdict == "too little data"
    assert "variation between documents" in said.advice


def test_one_seed_is_told_to_be_repeated():
    assert "--seeds 3" in recommend(arms(0.0, -0.3, 0.0, seeds=1), 6.0).advice


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_over_seeds_and_documents_hold_their_level(seeds):
    """With random effects of seeds and of documents, 95% intervals hold the true difference at least so often."""
    random, held = np.random.default_rng(1), 0
    for _ in range(400):
        effects = random.normal(0, 1, (seeds, 1)) + random.normal(0, 1, (1, 12)) + random.normal(0, 0.5, (seeds, 12))
        one = estimate(effects + 0.7)
        assert one.low is not None
        assert one.high is not None
        held += one.low <= 0.7 <= one.high
    assert held >= 0.93 * 400
