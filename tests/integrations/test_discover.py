"""Every hybrid of the installed Transformers, found by its configuration, is seen as one."""

import pytest
from discover import Row, candidates, look

OTHER = {
    "zamba": "the block around attention has no path around it",
    "zamba2": "the block around attention has no path around it",
}
"""Families in which the search by class names finds less than there is, with the reason."""


def summary(row: Row) -> object:
    assert not row.reason
    assert row.seen is not None
    return {one.path: one.modules for one in row.seen.attention}, row.seen.mixers, row.seen.starved, row.seen.severed


@pytest.mark.parametrize("family", candidates())
def test_attention_is_seen_where_the_search_by_names_finds_it(family):
    row = look(family)
    assert not row.reason
    assert row.seen is not None
    paths = [one.path for one in row.seen.attention]
    assert all(any(name == path or name.startswith(f"{path}.") for path in paths) for name in row.matched)
    if family not in OTHER and row.is_hybrid:
        assert paths == list(row.matched)
    assert row.seen.severed == ()
    assert not any("mamba" in path or "linear_attn" in path for path in row.seen.starved)


@pytest.mark.parametrize("family", candidates())
def test_attention_with_its_softmax_written_out_is_seen_alike(family):
    row = look(family)
    if row.seen is not None and row.seen.attention:
        assert summary(look(family, attn_implementation="eager")) == summary(row)


@pytest.mark.slow
def test_no_hybrid_is_missed_by_its_configuration():
    likely = candidates()
    assert [family for family in candidates(everything=True) if family not in likely and look(family).is_hybrid] == []
