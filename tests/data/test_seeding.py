import numpy as np
import pytest

from fedmeta.core.errors import SettingError
from fedmeta.data.seeding import stream

STEPS = ("samples", "roles", "split", "sinusoid", "precise")


def test_steps_have_streams_of_their_own():
    draws = {stream(5, step).integers(2**60) for step in STEPS}
    assert len(draws) == 5
    assert stream(np.int64(5), "roles").integers(2**60) in draws


def test_nodes_have_streams_of_their_own():
    draws = {stream(5, "precise", name).integers(2**60) for name in ("node-000", "node-001", "")}
    assert len(draws | {stream(5, "precise").integers(2**60)}) == 4
    assert stream(5, "precise", "node-000").integers(2**60) in draws
    assert stream(6, "precise", "node-000").integers(2**60) not in draws


@pytest.mark.parametrize("seed", [-1, 1.0, True, None])
def test_seed_is_a_whole_number(seed):
    with pytest.raises(SettingError, match="seed is"):
        stream(seed, "roles")
