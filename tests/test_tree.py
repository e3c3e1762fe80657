from __future__ import annotations

import torch

from fedmeta.core import tree

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
    assert numbers(tree.map_leaves(torch.maximum, A, B)) == [10, 20, 30]
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


def test_descent_by_hand() -> None:
    assert numbers(tree.descend(A, 0.5, B)) == [-4, -8, -12]
    assert numbers(tree.descend(A, 1e300, B)) == [-float("inf")] * 3


def test_one_launch_is_the_same_sum() -> None:
    """What a GPU runs, here on a CPU: mapped over nodes, shared or not, and differentiated."""
    shift = tree._in_one_launch
    assert numbers(shift(A, -0.5, {"y": B["y"], "x": B["x"]})) == [-4, -8, -12]
    many = {name: torch.stack([B[name], 2 * B[name]], dim=-1) for name in B}

    def squares(a: tree.Tree, b: tree.Tree) -> torch.Tensor:
        return tree.squared_norm(shift(a, -0.5, b))

    values = torch.func.vmap(squares, (None, -1))(A, many)
    plain = [tree.squared_norm(tree.descend(A, 0.5, tree.scale(k, B))) for k in (1, 2)]
    assert values.tolist() == torch.stack(plain).tolist()
    by_a, by_b = torch.func.vmap(torch.func.grad(squares, (0, 1)), (None, -1))(A, many)
    assert by_a["x"].tolist() == [[-8, -16], [-18, -36]]
    assert by_b["x"].tolist() == [[4, 8], [9, 18]]


def test_copies_are_tensors_of_their_own() -> None:
    whole = {"a": (torch.arange(3), [torch.ones(2, 2).t()]), "b": torch.tensor(2.0)}
    copy = tree.cloned(whole)
    assert copy["a"][0].tolist() == [0, 1, 2]
    assert copy["a"][0] is not whole["a"][0]
    copy["a"][1][0].zero_()
    assert float(whole["a"][1][0].sum()) == 4
    assert copy["b"].dtype == torch.float32


def test_works_under_vmap() -> None:
    stacked = {name: torch.stack([A[name], B[name]]) for name in A}
    norms = torch.func.vmap(tree.squared_norm)(stacked)
    assert norms.tolist() == [14, 1400]
