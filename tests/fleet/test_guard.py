"""The guard of the sum: what it refuses, and what it leaves of a contribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.errors import SettingError
from fedmeta.uplink.guard import Guard, Reply, chosen, judge, scaled

THETA = {"a": torch.zeros(2), "b": torch.zeros(3)}


def reply(length: float = 1.0, share: float = 0.25, **changed: Tensor) -> Reply:
    update = {"a": torch.tensor([length * share, 0.0]), "b": torch.zeros(3)}
    metrics = {"meta_loss": torch.tensor(0.5)}
    one = Contribution({**update, **changed}, torch.tensor(share), metrics)
    return Reply(one, share, weight=share)


def fleet(**odd: Reply) -> dict[str, Reply]:
    return {"e1": reply(1.0), "e2": reply(1.2), "e3": reply(0.8), **odd}


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (reply(a=torch.tensor([torch.nan, 0.0])), "'a' is not finite"),
        (reply(b=torch.tensor([torch.inf, 0.0, 0.0])), "'b' is not finite"),
        (reply(b=torch.zeros(4)), r"'b' has shape (4,), not (3,)"),
        (reply(b=torch.zeros(3, dtype=torch.float64)), "'b' is torch.float64, not torch.float32"),
        (reply(c=torch.zeros(1)), "parameter 'c' is unknown"),
        (reply(share=0.0), "its weight is 0, not above 0 and at most 0"),
        (reply()._replace(weight=0.1), "its weight is 0.25, not above 0 and at most 0.1"),
        (reply()._replace(share=2.0), "its share of the samples is 2, not above 0 and at most 1"),
        (reply(9.0), "‖v‖/Σw is 9, more than 4 times the median 1"),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(odd: Reply, reason: str) -> None:
    verdict = judge(Guard("reject"), fleet(odd=odd), THETA)
    assert verdict.refused == {"odd": reason}
    assert list(verdict.accepted) == ["e1", "e2", "e3"]


def test_a_missing_parameter_and_an_odd_scalar_are_refused() -> None:
    short = reply()
    del short.contribution.update["b"]
    lying = reply()
    lying.contribution.metrics["meta_loss"] = torch.tensor(torch.nan)
    long = reply()
    long.contribution.metrics["meta_loss"] = torch.zeros(5)
    verdict = judge(Guard(), fleet(short=short, lying=lying, long=long), THETA)
    assert verdict.refused == {
        "short": "parameter 'b' is missing",
        "lying": "'meta_loss' is not finite",
        "long": "its weight or a metric is not one number",
    }


def test_without_a_bound_only_what_cannot_be_right_is_refused() -> None:
    assert judge(Guard(), fleet(large=reply(1e6)), THETA).refused == {}


def test_clipping_scales_to_the_bound() -> None:
    verdict = judge(Guard("clip"), fleet(large=reply(100.0)), THETA)
    assert verdict.clipped == {"large": pytest.approx(0.04)}
    assert torch.allclose(verdict.accepted["large"].update["a"], torch.tensor([1.0, 0.0]))
    assert verdict.accepted["large"].weight == 0.25
    assert verdict.accepted["e1"].update["a"][0] == 0.25  # the others are as they were


def test_an_edge_is_judged_by_its_share_and_not_by_its_size() -> None:
    large = reply(1.0, share=0.75)  # three times as long, for three times as many samples
    assert judge(Guard("reject", 1.5), fleet(large=large), THETA).refused == {}


def test_nobody_is_left_when_all_are_wrong() -> None:
    wrong = {name: reply(a=torch.full((2,), torch.nan)) for name in ("x", "y")}
    verdict = judge(Guard("reject"), wrong, THETA)
    assert verdict.accepted == {}
    assert list(verdict.refused) == ["x", "y"]


@given(
    st.lists(st.floats(0.1, 10), min_size=3, max_size=9),
    st.floats(1e3, 1e9),
    st.integers(0, 9),
)
def test_a_minority_cannot_move_the_bound_beyond_the_honest(
    honest: list[float], large: float, place: int
) -> None:
    norms = [*honest[:place], large, *honest[place:]]
    at = norms.index(large)
    guard = Guard("reject")
    scales = guard.scales(torch.tensor(norms, dtype=torch.float64))
    assert scales[at] == 0
    kept = torch.tensor(norms)[scales > 0]
    assert float(kept.max()) <= guard.factor * max(honest)


def test_refused_rows_leave_nothing_and_keep_their_state() -> None:
    rows = Contribution(
        {"a": torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [4.0, 4.0]])},
        torch.tensor([1.0, 1.0, 1.0]),
        {"loss": torch.tensor([1.0, torch.inf, 3.0])},
    )
    scales = torch.tensor([1.0, 0.0, 0.5])
    left = scaled(rows, scales)
    assert left.update["a"].tolist() == [[1.0, 2.0], [0.0, 0.0], [2.0, 2.0]]
    assert left.weight.tolist() == [1.0, 0.0, 1.0]
    assert left.metrics["loss"].tolist() == [1.0, 0.0, 3.0]
    new, old = torch.ones(3, 2), torch.zeros(3, 2)
    assert chosen(scales, new, old).tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("outliers", "factor"), [("drop", 4.0), ("clip", 1.0), ("clip", torch.inf)]
)
def test_settings_that_make_no_sense(outliers: str, factor: float) -> None:
    with pytest.raises(SettingError, match="guard"):
        Guard(outliers, factor)  # type: ignore[arg-type]


def test_a_guard_that_would_leave_fewer_than_half_judges_no_direction() -> None:
    """Nobody agrees with anybody, so that the last verdicts stand; one is far too long as well."""
    axes = torch.eye(5) * 0.25
    replies = {f"e{n}": reply(a=axis[:2], b=axis[2:]) for n, axis in enumerate(axes)}
    replies["e4"] = reply(a=axes[4][:2], b=9 * axes[4][2:])
    guard = Guard("reject", direction=-0.2)
    assert set(judge(guard, replies, THETA, opposite=["e0"]).refused) == {"e0", "e4"}
    verdict = judge(guard, replies, THETA, opposite=["e0", "e1"])
    assert set(verdict.refused) == {"e4"}
    assert "more than 4 times the median" in verdict.refused["e4"]
