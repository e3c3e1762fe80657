import numpy as np
import pytest

from fedmeta.core.errors import SettingError
from fedmeta.core.randomness import DataPurpose, generator

STEPS = (
    DataPurpose.SAMPLES,
    DataPurpose.ROLES,
    DataPurpose.SPLIT,
    DataPurpose.SINUSOID,
    DataPurpose.PRECISE,
)


def test_steps_have_streams_of_their_own():
    draws = {generator(5, step).integers(2**60) for step in STEPS}
    assert len(draws) == 5
    assert generator(np.int64(5), DataPurpose.ROLES).integers(2**60) in draws


def test_nodes_have_streams_of_their_own():
    draws = {
        generator(5, DataPurpose.PRECISE, name).integers(2**60)
        for name in ("node-000", "node-001", "")
    }
    assert len(draws | {generator(5, DataPurpose.PRECISE).integers(2**60)}) == 4
    assert generator(5, DataPurpose.PRECISE, "node-000").integers(2**60) in draws
    assert generator(6, DataPurpose.PRECISE, "node-000").integers(2**60) not in draws


@pytest.mark.parametrize("seed", [-1, 1.0, True, None])
def test_seed_is_a_whole_number(seed):
    with pytest.raises(SettingError, match="seed is"):
        generator(seed, DataPurpose.ROLES)
