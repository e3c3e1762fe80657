import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmeta.data.splitting import split


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=12), min_size=1, max_size=6),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_split_is_stratified_and_never_empty(nodes, share, seed):
    strata = np.concatenate(nodes)
    owned = np.split(np.arange(len(strata)), np.cumsum([len(each) for each in nodes])[:-1])
    sets = split(owned, strata, share, np.random.default_rng(seed))
    for positions, (support, query) in zip(owned, sets, strict=True):
        assert sorted([*support, *query]) == positions.tolist()
        assert len(support) >= 1
        assert len(query) >= 1
        held = np.bincount(strata[positions], minlength=5)
        taken = np.bincount(strata[support], minlength=5)
        assert (taken[held >= 2] >= 1).all()
        assert (taken < held)[held >= 2].all()
        free = (held < 2) | ((taken > 1) & (taken < held - 1))
        # Classes of one sample are in the support set, for which another one gives up some.
        assert (abs(taken - share * held) <= 1 + (held == 1).sum())[free].all()
        if (held >= 2).any() and (held > 0).sum() <= 0.75 * len(positions):
            assert (taken[held >= 1] >= 1).all()


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_both_classes_of_three_samples_are_in_support(share):
    """Of samples a, a, b the support set has one a and b, whatever the share."""
    strata = np.array([0, 0, 1])
    for seed in range(20):
        ((support, query),) = split([np.arange(3)], strata, share, np.random.default_rng(seed))
        assert sorted(strata[support]) == [0, 1]
        assert strata[query].tolist() == [0]


def test_a_single_sample_takes_the_place_of_another():
    """Of a, a, a, a, b at 0.4 two are support: rounding gives both to a, which gives one up."""
    strata = np.array([0, 0, 0, 0, 1])
    for seed in range(20):
        ((support, _),) = split([np.arange(5)], strata, 0.4, np.random.default_rng(seed))
        assert sorted(strata[support]) == [0, 1]


def test_many_single_samples_leave_a_query_set():
    """Ten classes of one sample and one of two: of 12 samples 3 at least are asked."""
    strata = np.r_[np.arange(10), 10, 10]
    for seed in range(20):
        ((support, query),) = split([np.arange(12)], strata, 0.5, np.random.default_rng(seed))
        assert len(query) == 3
        assert 10 in strata[support]
        assert 10 in strata[query]


def test_nodes_without_single_samples_are_split_as_ever():
    """The draws that results rest on: positions that this seed has always given."""
    strata = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    sets = split([np.arange(7), np.arange(7, 12)], strata, 0.5, np.random.default_rng(3))
    assert [(s.tolist(), q.tolist()) for s, q in sets] == [
        ([0, 1, 4, 5], [3, 2, 6]),
        ([9, 7, 10], [11, 8]),
    ]


def test_share_of_a_node_is_kept_by_hand():
    """15 and 15 at one half is 15, not 8 + 8; 10 and 10 at one fifth is 2 + 2."""
    strata = np.repeat([0, 1], 15)
    ((support, _),) = split([np.arange(30)], strata, 0.5, np.random.default_rng(0))
    assert len(support) == 15
    ((support, _),) = split([np.r_[0:10, 15:25]], strata, 0.2, np.random.default_rng(0))
    assert np.bincount(strata[support]).tolist() == [2, 2]


def test_no_class_is_favoured_by_rounding():
    strata = np.tile([0, 0, 0, 1, 1, 1], 200)
    owned = np.split(np.arange(1200), 200)
    sets = split(owned, strata, 0.5, np.random.default_rng(0))
    extra = sum(np.bincount(strata[support], minlength=2)[0] == 2 for support, _ in sets)
    assert 70 < extra < 130
