"""A trial stays within its minutes: what is planned fits, and what turns out slower is left out or stopped."""

import json
from dataclasses import asdict
from random import Random

import pytest
from small_lm import small_training

from latebloom.lm import pace, trial
from latebloom.lm.pace import FEWEST, FEWEST_STEPS, RESERVE, Cost, OutOfTime, TimedWork, fit, measure
from latebloom.lm.trial import Trial, run_trial
from latebloom.lm.work import Work


@pytest.mark.parametrize("case", range(50))
def test_what_is_planned_fits_into_the_time_less_the_reserve(case):
    random = Random(case)
    cost = Cost(*(10 ** random.uniform(-3, 0) for _ in range(4)))
    seconds, seeds, processes = random.uniform(30, 3600), random.randint(1, 6), random.randint(1, 5)
    amount = fit(seconds, seeds, processes, cost)
    assert min(amount.documents, amount.probes) >= FEWEST
    assert 1 <= amount.seeds <= seeds
    if amount.steps >= FEWEST_STEPS:
        planned = amount.seconds(cost, processes)
        one_more_step = pace.runs_in_a_row(amount.seeds, processes) * cost.step
        assert seconds * (1 - RESERVE) - one_more_step <= planned <= seconds * (1 - RESERVE)
    else:  # too slow for any number of seeds that has an interval
        assert amount.seeds == min(seeds, 2)


def test_seeds_are_given_up_before_steps_are_too_few():
    cost = Cost(step=1, run=5, evaluation=1, window=0.01)
    assert [fit(60 * minutes, 3, 2, cost).seeds for minutes in (10, 2.5)] == [3, 2]


class Clock:
    """A machine whose runs take a time of our choice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 1000.0
        monkeypatch.setattr(trial.time, "time", lambda: self.now)
        monkeypatch.setattr(trial, "measure", lambda *_: Cost(step=0.1, run=1, evaluation=1, window=0.01))
        monkeypatch.setattr(trial, "run_one", self.run_one)
        monkeypatch.setattr(trial, "recommend", lambda arms, unigram: Done(len(arms["joint"])))
        self.seconds = seconds

    def run_one(self, arm, seed, out, plan, deadline) -> None:
        self.now += self.seconds
        if self.now > deadline:
            self.now = deadline
            raise OutOfTime("over")
        folder = out / "runs" / f"{arm}-{seed}"
        folder.mkdir(parents=True)
        for name in ("evaluation.json", "result.json"):
            (folder / name).write_text("{}")
        (folder / "metrics.jsonl").write_text("")


Done = trial.dataclass(frozen=True)(type("Done", (), {"__annotations__": {"seeds": int}}))


@pytest.mark.parametrize(("seconds", "seeds"), [(1, 3), (18, 3), (35, 1), (50, 1), (100, 0)])
def test_a_machine_that_becomes_slower_costs_seeds_and_never_more_minutes(
    corpus, tmp_path, monkeypatch, seconds, seeds
):
    clock = Clock(monkeypatch, seconds)
    found = run_trial([corpus.folder], tmp_path / "trial", Trial(minutes=2, seeds=3, processes=1, context=32))
    assert found["seconds"] <= 120
    assert len(found["evaluations"]["joint"]) == seeds
    if not seeds:
        assert found["recommendation"]["sentence"].startswith("There was too little time to tell")
    assert json.loads((tmp_path / "trial" / "trial.json").read_text())["plan"]["cost"]["step"] == 0.1
    assert clock.now <= 1120


def test_a_run_stops_at_the_deadline(corpus, tmp_path):
    with pytest.raises(OutOfTime):
        trial.train(small_training(corpus), tmp_path / "run", work=TimedWork(deadline=0))
    assert not (tmp_path / "run" / "result.json").exists()


def test_costs_are_measured_by_a_short_run(corpus):
    cost = measure(small_training(corpus), "plateau@2x", (1, 2))
    assert all(value > 0 for value in asdict(cost).values())
    assert isinstance(TimedWork(1e18), Work)
