from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmeta.errors import DataError
from fedmeta.sequences import run_sequence
from fedmeta.sequences.drawing import draw
from fedmeta.sequences.replay import reservoir, with_replay
from sequences.problems import small


def test_reservoir_is_a_uniform_sample_of_all_tasks() -> None:
    counts = np.zeros(12)
    for seed in range(3000):
        kept = reservoir([np.arange(4), np.arange(4, 12)], 3, np.random.default_rng(seed))
        assert len(set(kept.tolist())) == 3
        counts[kept] += 1
    assert np.abs(counts / 3000 - 3 / 12).max() < 0.03  # four standard deviations


def test_reservoir_of_the_past_is_a_stream() -> None:
    """What a device keeps after a task depends on what it kept before, not on looking back."""
    rng = np.random.default_rng
    first = reservoir([np.arange(10)], 4, rng(1))
    later = reservoir([np.arange(10), np.arange(10, 12)], 4, rng(1))
    assert len({*later.tolist()} - {*first.tolist(), 10, 11}) == 0


def test_sources_get_their_own_past_and_targets_none() -> None:
    drawn = draw(small(), 0)
    mixed = with_replay(drawn.tasks[2], drawn.tasks[:2], 4, 0.5, seed=0)
    for before, after in zip(drawn.tasks[2].nodes, mixed.nodes, strict=True):
        past = [np.r_[t.node(before.name).support, t.node(before.name).query] for t in drawn.tasks]
        added = np.setdiff1d(np.r_[after.support, after.query], np.r_[before.support, before.query])
        assert len(added) == (4 if before.role == "source" else 0)
        assert np.isin(added, np.concatenate(past[:2])).all()
    again = with_replay(drawn.tasks[2], drawn.tasks[:2], 4, 0.5, seed=0)
    assert all(
        (a.support == b.support).all() for a, b in zip(mixed.nodes, again.nodes, strict=True)
    )


@pytest.mark.parametrize("method", ["replay", "isolation", "replay+euclidean"])
def test_devices_must_stay(method: str) -> None:
    sequence = small(method)
    tasks = (*sequence.tasks[:2], replace(sequence.tasks[2], devices="new"))
    with pytest.raises(DataError, match="needs devices that stay, but task '4-5' has other nodes"):
        run_sequence(replace(sequence, tasks=tasks))
