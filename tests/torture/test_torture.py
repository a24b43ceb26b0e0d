"""The campaign in short: a few random cases of each kind."""

import math

import pytest
from campaign import attack
from cases import CASES
from reference import end, prepare


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny_run):
    prepared = prepare(tiny_run, tmp_path_factory.mktemp("torture"), with_browser=True)
    yield prepared
    end(prepared)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_no_promise_is_broken(name, shared):
    turn = attack(name, 0, math.inf, 1.5, 1, shared)
    assert turn["failures"] == [], turn
