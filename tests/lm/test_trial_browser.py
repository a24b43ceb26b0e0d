"""The page of a trial in a real browser, made from synthetic numbers: it is drawn, fits, and requests nothing."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))
from browser import CHROMIUM, Browser

from latebloom.lm.compare import recommend
from latebloom.lm.traces import TITLES
from latebloom.lm.trial import Trial
from latebloom.lm.trial_page import trial_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page with")
CONTEXTS, SEEDS = (64, 128, 256, 512, 1024), 5


def evaluation(random: np.random.Generator, documents: np.ndarray, worse: float) -> dict[str, Any]:
    """Return the evaluation of a run whose loss rises by so much with each doubling of the context."""
    losses = {c: documents + worse * i + random.normal(0, 0.01, len(documents)) for i, c in enumerate(CONTEXTS)}
    means = {str(c): {"mean": float(one.mean())} for c, one in losses.items()}
    return {
        "training_context": CONTEXTS[0],
        "contexts": list(CONTEXTS),
        "documents": len(documents),
        "loss": means,
        "loss_of_documents": {str(c): one.tolist() for c, one in losses.items()},
        "kinds": [
            {"kind": kind, "context": c, "mean": means[str(c)]["mean"] + shift}
            for kind, shift in (("copied in 1x", -1.0), ("closing bracket", -0.5), ("name", 0.4), ("rest", 0.1))
            for c in CONTEXTS
        ],
        "probes": [
            {"kind": kind, "context": c, "guessing": 0.2, "outcomes": random.integers(0, 2, 16).tolist()}
            for kind in TITLES
            for c in CONTEXTS
        ],
    }


def trial_numbers() -> dict[str, Any]:
    random = np.random.default_rng(0)
    documents = random.normal(3.0, 0.3, 20)
    arms = {
        arm: {seed: evaluation(random, documents, worse) for seed in range(SEEDS)}
        for arm, worse in (("joint", 0.15), ("delayed", 0.02))
    }
    curve = {"step": list(range(10, 410, 10)), "value": [6 - 0.007 * step for step in range(10, 410, 10)]}
    run = {"steps": 400, "tokens": 409_600, "parameters": 500_000, "seconds": 60.0, "cpu_seconds": 55.0, "curve": curve}
    split = {"documents": 1200, "tokens": 900_000}
    return {
        "plan": {
            "asked": asdict(Trial(seeds=SEEDS)),
            "training": {"model": {"model_type": "olmo_hybrid", "layer_types": ["linear_attention"] * 40}},
            "until": "10%",
        },
        "corpus": {
            "splits": {"train": split},
            "left_out": {"binary": 3, "near duplicate": 17},
            "traces": {"documents": 200, "tokens": 150_000},
        },
        "recommendation": asdict(recommend(arms, 6.0)),
        "seconds": 588.0,
        "runs": [
            {"arm": arm, "seed": seed, "switch_step": 40 if arm == "delayed" else None, **run}
            for arm in arms
            for seed in range(SEEDS)
        ],
        "evaluations": {arm: {str(seed): one for seed, one in by_seed.items()} for arm, by_seed in arms.items()},
    }


def test_the_page_is_drawn_in_light_and_dark_and_on_a_phone_without_complaints_or_requests(tmp_path):
    page = tmp_path / "index.html"
    command = ["latebloom", "trial", "tiny", "--data", "/a/long/path/to/the/texts/of/my-project", "--minutes", "10"]
    page.write_text(trial_page(trial_numbers(), "Trial of delayed attention: tiny on my-project", command))
    papers = []
    with Browser() as browser:
        for width, dark in ((1100, False), (1100, True), (390, False)):
            browser.look(width, 900, dark)
            browser.open(page)
            assert browser.value("document.querySelectorAll('svg.marks').length") == 3 + len(TITLES)
            browser.value("document.querySelectorAll('details:not([title])').forEach(part => { part.open = true; })")
            assert browser.value("document.documentElement.scrollWidth") <= width
            papers.append(browser.value("getComputedStyle(document.body).backgroundColor"))
            assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
        assert browser.complaints == []
    assert papers[0] == papers[2] != papers[1]
