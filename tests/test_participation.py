from __future__ import annotations

import pytest

from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.uplink.participation import Participation

KEY = randomness.key(0)


def test_everyone_by_default() -> None:
    assert Participation().counted(4, 1, KEY).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.01, 1), (0.26, 3)])
def test_a_fraction_is_drawn_without_replacement(fraction: float, count: int) -> None:
    rounds = [Participation(fraction).counted(10, t, KEY).tolist() for t in range(1, 41)]
    assert all(len(set(each)) == len(each) == count for each in rounds)
    assert all(each == sorted(each) for each in rounds)
    assert set().union(*rounds) == set(range(10)), "in 40 rounds everyone has a turn"


def test_lost_uploads_are_lost_at_their_rate_and_independently() -> None:
    rounds = [Participation(lost=0.3).counted(100, t, KEY).tolist() for t in range(1, 101)]
    arrived = sum(map(len, rounds)) / 100**2
    assert abs(arrived - 0.7) < 0.02
    assert len({len(each) for each in rounds}) > 5


def test_lost_uploads_come_from_those_asked() -> None:
    asked = Participation(0.5).counted(20, 3, KEY).tolist()
    counted = Participation(0.5, lost=0.5).counted(20, 3, KEY).tolist()
    assert set(counted) < set(asked)


def test_a_draw_is_a_function_of_key_and_round() -> None:
    half = Participation(0.5)
    assert half.counted(20, 1, KEY).tolist() == half.counted(20, 1, KEY).tolist()
    assert half.counted(20, 1, KEY).tolist() != half.counted(20, 2, KEY).tolist()
    assert half.counted(20, 1, KEY).tolist() != half.counted(20, 1, randomness.key(1)).tolist()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"fraction": 0.0}, "fraction"), ({"fraction": 1.1}, "fraction"), ({"lost": 1.0}, "lost")],
)
def test_nonsense_is_refused(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        Participation(**arguments)
