from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedmeta.core.errors import DataError
from fedmeta.studies.sequences import run_sequence
from fedmeta.studies.sequences.drawing import draw, in_task
from fedmeta.studies.sequences.replay import reservoir, with_replay
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


def test_a_source_learns_from_its_own_past_task_by_task() -> None:
    drawn = draw(small(), 0)
    task = drawn.tasks[2]
    mixed = with_replay(task, drawn.tasks[:2], 4, 0.5, seed=0)
    assert mixed.nodes[: len(task.nodes)] == task.nodes  # its present, and targets, as they were
    past = mixed.nodes[len(task.nodes) :]
    assert past
    assert {node.role for node in past} == {"source"}
    for node in past:
        number = 0 if node.name.startswith(in_task(0, "")) else 1
        own = drawn.tasks[number].node(node.name.removeprefix(in_task(number, "")))
        assert own.role == "source"
        kept = np.r_[node.support, node.query]
        assert np.isin(kept, np.r_[own.support, own.query]).all()
        assert len(kept) >= 2
    for source in task.sources:  # no device keeps more than it has room for
        mine = [n.size for n in past if n.name in (in_task(k, source.name) for k in range(2))]
        assert sum(mine) <= 4
    again = with_replay(task, drawn.tasks[:2], 4, 0.5, seed=0)
    pairs = zip(mixed.nodes, again.nodes, strict=True)
    assert all((a.support == b.support).all() and (a.query == b.query).all() for a, b in pairs)


@pytest.mark.parametrize("method", ["replay", "isolation", "replay+euclidean"])
def test_devices_must_stay(method: str) -> None:
    sequence = small(method)
    tasks = (*sequence.tasks[:2], replace(sequence.tasks[2], devices="new"))
    with pytest.raises(DataError, match="needs devices that stay, but task '4-5' has other nodes"):
        run_sequence(replace(sequence, tasks=tasks))
