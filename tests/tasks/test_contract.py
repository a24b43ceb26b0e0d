"""The rules that a task from outside the package is compared with before a run."""

import pytest

from latebloom.tasks import Recall
from latebloom.tasks.contract import SAMPLE, has_chance_level


@pytest.mark.parametrize("values", [2, 10, 64, 256, 1000, 5000])
def test_a_right_chance_level_is_accepted_with_any_number_of_answers(values):
    task = Recall(keys=64, values=values)
    for length in range(2, 22):
        assert has_chance_level(task, task.batch(0, "train", 0, length=length, size=SAMPLE), length) is None


@pytest.mark.parametrize("values", [2, 4, 10])
def test_a_chance_level_that_is_too_low_is_found(values, monkeypatch):
    monkeypatch.setattr(Recall, "chance", property(lambda self: {"recall": 0.5 / self.values}))
    task = Recall(keys=64, values=values)
    batch = task.batch(0, "train", 0, length=10, size=1024)
    assert f"chance of recall is {50 / values:.2g}%" in (has_chance_level(task, batch, 10) or "")
