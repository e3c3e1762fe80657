"""The field's protocols: one model, one head, on samples that nobody learned from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmeta.studies.sequences import measured
from fedmeta.studies.sequences.drawing import draw
from fedmeta.studies.sequences.measures import incremental
from fedmeta.studies.sequences.one_head import accuracy, one_head_row
from fedmeta.studies.sequences.running import run_sequence
from sequences.problems import small


def test_which_classes_may_be_answered() -> None:
    logits = torch.tensor([[0.0, 3.0, 9.0], [5.0, 4.0, 9.0], [0.0, 1.0, 2.0]])
    labels = torch.tensor([1, 1, 2])
    assert accuracy(logits, labels, (0, 1, 2)) == pytest.approx(1 / 3, abs=1e-6)
    assert accuracy(logits, labels, (0, 1)) == pytest.approx(1 / 3, abs=1e-6)
    assert accuracy(logits, labels, (1, 2)) == pytest.approx(1 / 3, abs=1e-6)
    assert accuracy(logits, labels, (1,)) == pytest.approx(2 / 3, abs=1e-6)
    assert np.isnan(accuracy(logits / 0, labels, (0, 1)))


def test_average_over_the_moments_by_hand() -> None:
    """½ [0.9 + ½ (0.7 + 0.8)]."""
    assert incremental([[0.1, 0.1], [0.9, 0.2], [0.7, 0.8]]) == pytest.approx(0.825)
    assert incremental([[0.7, 0.8]]) is None


def test_matrices_of_both_protocols_beside_ours() -> None:
    sequence = small("none")
    (found,) = run_sequence(sequence, [0])
    whole, told = (np.array(found[f"{name}-incremental"]) for name in ("class", "task"))
    assert whole.shape == told.shape == (4, 3)
    assert (whole <= told).all()  # more classes to choose from
    assert whole[1, 0] == told[1, 0]  # after the first task there are no others
    assert (whole[3] < told[3]).any()
    assert measured([found], "class-incremental")["incremental"]["n"] == 1


def test_test_sets_are_what_targets_hold() -> None:
    """A model that answers with the right class of the targets' samples alone is always right."""
    sequence = small("none")
    drawn = draw(sequence, 0)
    task = drawn.tasks[1]
    mine = [np.concatenate([t.support, t.query, t.precise]) for t in task.targets]
    rows = np.unique(np.concatenate(mine))
    learned = [np.concatenate([s.support, s.query]) for each in drawn.tasks for s in each.sources]
    assert not np.isin(rows, np.concatenate([*learned, *drawn.platform])).any()
    assert drawn.classes == [(0, 1), (2, 3), (4, 5)]
    assert drawn.known([0, 2]) == (0, 1, 4, 5)

    asked = []

    class Spy:
        theta = None
        task = None

        def scaled(self, inputs: np.ndarray) -> torch.Tensor:
            asked.append(inputs)
            return torch.zeros(len(inputs))

        def network(self, _theta: object, inputs: torch.Tensor) -> torch.Tensor:
            return torch.eye(10)[2].expand(len(inputs), 10)

    spies = [Spy()] * 3
    found = one_head_row(spies, drawn, 2, shared=True)  # type: ignore[arg-type]
    assert np.array_equal(asked[1], task.inputs[rows])
    twos = float((task.labels[rows] == 2).mean())
    assert found[1]["class-incremental"] == pytest.approx(twos, abs=1e-5)
    assert found[0]["class-incremental"] == 0
    assert "class-incremental" not in one_head_row(spies, drawn, 2, shared=False)[0]  # type: ignore[arg-type]


def test_heads_of_their_own_know_no_other_classes() -> None:
    (found,) = run_sequence(small("isolation"), [0])
    assert "task-incremental" in found
    assert "class-incremental" not in found


def test_all_at_once_has_learned_all_tasks() -> None:
    sequence = replace(small("joint"), title="x")
    (found,) = run_sequence(sequence, [0])
    assert np.shape(found["class-incremental"]) == (1, 3)
