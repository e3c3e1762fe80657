import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmeta.core.errors import DataError
from fedmeta.data import DataSettings
from fedmeta.data.episodes import draw_episodes

from .conftest import pool_of


def episodes(pool, seed=0, **fields):
    fields = {"nodes": 10, "classes_per_node": 3, "shots": 2, "queries": 4} | fields
    return draw_episodes(pool, DataSettings(partition="episodes", **fields), seed)


def real_classes(pool, nodes):
    return {int(c) for n in nodes for c in pool.labels[np.r_[n.support, n.query]]}


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**40), ways=st.integers(1, 4), shots=st.integers(1, 3), q=st.integers(1, 3)
)
def test_episodes_have_n_ways_and_k_shots(seed, ways, shots, q):
    pool = pool_of(*[70] * 9)
    drawn = episodes(pool, seed, classes_per_node=ways, shots=shots, queries=q)
    assert drawn.task.outputs == ways
    for node in drawn.nodes:  # Federation itself checks that no sample is in two places
        assert np.bincount(drawn.labels[node.support]).tolist() == [shots] * ways
        assert np.bincount(drawn.labels[node.query]).tolist() == [q] * ways
        positions = np.r_[node.support, node.query]
        meaning = {(drawn.labels[p], pool.labels[p]) for p in positions}
        assert len(meaning) == ways  # one real class per number
    assert not real_classes(pool, drawn.sources) & real_classes(pool, drawn.targets)
    again = episodes(pool, seed, classes_per_node=ways, shots=shots, queries=q)
    assert (drawn.labels == again.labels).all()


def test_numbers_inside_an_episode_are_in_random_order():
    pool = pool_of(*[70] * 4)
    drawn = episodes(pool, classes_per_node=4, target_share=0.0, nodes=10)
    orders = {
        tuple(pool.labels[node.support[drawn.labels[node.support] == way][0]] for way in range(4))
        for node in drawn.nodes
    }
    assert len(orders) > 5


def test_too_few_classes_are_shared_with_a_note():
    pool = pool_of(*[70] * 5)
    drawn = episodes(pool)
    assert "source and target episodes share classes: 6 are needed" in drawn.notes[0]
    assert episodes(pool, target_share=0.0).notes == ()


def test_target_share_of_the_classes():
    pool = pool_of(*[70] * 10)
    drawn = episodes(pool, classes_per_node=2, target_share=0.4, nodes=40)
    assert len(real_classes(pool, drawn.targets)) == 4
    assert len(real_classes(pool, drawn.sources)) == 6
    assert {node.name for node in episodes(pool, targets=("node-003",)).targets} == {"node-003"}


def test_exact_fit_and_exhaustion():
    pool = pool_of(*[20] * 3)  # 20 samples make 3 times 6: 9 requests of 9 possible
    drawn = episodes(pool, nodes=3, target_share=0.0)
    assert len(drawn.nodes) == 3
    with pytest.raises(DataError, match="4 nodes ask for 72 samples but toy has 54 to give"):
        episodes(pool, nodes=4, target_share=0.0)


def test_classes_that_are_too_small_are_not_used():
    with pytest.raises(DataError, match="need 3 such classes but toy has 2"):
        episodes(pool_of(70, 70, 5))


def test_labels_are_local():
    task = episodes(pool_of(*[70] * 9)).task
    assert task.local_labels
    assert task.class_names == ("way 0", "way 1", "way 2")


@pytest.mark.parametrize(
    ("classes", "nodes", "ways", "queries"),
    [(10, 44, 5, 5), (10, 45, 5, 4), (10, 72, 5, 1), (10, 73, 2, 5), (9, 10, 2, 5)],
    ids=str,
)
def test_five_ways_where_there_is_enough(classes, nodes, ways, queries):
    """Ten classes of 220 samples make 220 tens: 44 nodes of five ways. Nine leave no two sides."""
    pool = pool_of(*[220] * classes)
    asked = DataSettings(partition="episodes", nodes=nodes, target_share=0.0)
    drawn = draw_episodes(pool, asked, 0)
    assert drawn.task.outputs == ways
    assert {len(node.query) for node in drawn.nodes} == {ways * queries}
    told = {4: "4 query samples", 1: "1 query sample"}.get(queries, "2 classes per" * (nodes == 73))
    assert told in " ".join(drawn.notes)


@pytest.mark.parametrize("shots", [1, 5])
def test_seven_hundred_nodes_of_an_alphabet_collection(shots):
    """1,623 characters by twenty hands: five shots leave one query sample of each class."""
    pool = pool_of(*[20] * 1623)
    drawn = draw_episodes(pool, DataSettings(partition="episodes", nodes=700, shots=shots), 0)
    assert (drawn.task.outputs, len(drawn.nodes), len(drawn.targets)) == (5, 700, 140)
    assert {len(node.query) for node in drawn.nodes} == {25 if shots == 1 else 5}
    assert ("1 query sample per class, not 5" in " ".join(drawn.notes)) == (shots == 5)
    assert not real_classes(pool, drawn.sources) & real_classes(pool, drawn.targets)


def test_what_is_asked_for_is_not_changed():
    pool = pool_of(*[20] * 100)
    with pytest.raises(DataError, match="nodes ask for"):
        episodes(pool, classes_per_node=5, shots=5, queries=5, nodes=60)
