from __future__ import annotations

import torch

from fedmeta import tree

A = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[3.0]])}
B = {"x": torch.tensor([10.0, 20.0]), "y": torch.tensor([[30.0]])}


def numbers(a: tree.Tree) -> list[float]:
    return [float(entry) for leaf in a.values() for entry in leaf.reshape(-1)]


def test_arithmetic_by_hand() -> None:
    assert numbers(tree.add(A, B)) == [11, 22, 33]
    assert numbers(tree.subtract(A, B)) == [-9, -18, -27]
    assert numbers(tree.scale(2, A)) == [2, 4, 6]
    assert numbers(tree.combine(2, A, -0.5, B)) == [-3, -6, -9]
    assert numbers(tree.zeros_like(A)) == [0, 0, 0]
    assert numbers(tree.transform(torch.maximum, A, B)) == [10, 20, 30]
    assert float(tree.squared_norm(A)) == 14
    assert tree.size(A) == 3


def test_names_and_order_stay() -> None:
    back_to_front = {"y": B["y"], "x": B["x"]}
    assert list(tree.add(A, back_to_front)) == ["x", "y"]
    assert numbers(tree.add(A, back_to_front)) == [11, 22, 33]


def test_finite_looks_at_every_leaf() -> None:
    assert tree.is_finite(A)
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not tree.is_finite({**A, "y": torch.tensor([[bad]])})


def test_works_under_vmap() -> None:
    stacked = {name: torch.stack([A[name], B[name]]) for name in A}
    norms = torch.func.vmap(tree.squared_norm)(stacked)
    assert norms.tolist() == [14, 1400]
