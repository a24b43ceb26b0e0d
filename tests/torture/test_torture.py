"""The campaign in short: a few random cases of each kind."""

import math

import pytest
from campaign import campaign, table
from cases import CASES
from reference import prepare


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny_run):
    prepared = prepare(tiny_run, tmp_path_factory.mktemp("torture"), with_browser=True)
    yield prepared
    if prepared.browser is not None:
        prepared.browser.__exit__()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_no_promise_is_broken(name, shared):
    found = campaign(1.5, 1, shared, {name: math.inf}, {}, save=lambda found: None)
    assert found[name]["failures"] == [], table(found)
