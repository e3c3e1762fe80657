import numpy as np
import pytest

from fedmeta.data.seeding import stream
from fedmeta.errors import SettingError


def test_steps_have_streams_of_their_own():
    draws = {stream(5, step).integers(2**60) for step in ("samples", "roles", "split", "sinusoid")}
    assert len(draws) == 4
    assert stream(np.int64(5), "roles").integers(2**60) in draws


@pytest.mark.parametrize("seed", [-1, 1.0, True, None])
def test_seed_is_a_whole_number(seed):
    with pytest.raises(SettingError, match="seed is"):
        stream(seed, "roles")
