import numpy as np
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
        assert (abs(taken - share * held) <= 1)[free].all()


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
