from __future__ import annotations

import math
import re
from enum import IntEnum
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmeta.core import randomness
from fedmeta.core.randomness import DataPurpose, DiagnosisPurpose, Purpose

INT64 = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """The published mixer, with Python's own integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def unsigned(value: torch.Tensor | int) -> int:
    return int(value) & MASK


def test_published_values() -> None:
    """The first outputs of the reference implementation from state 0."""
    golden, state, drawn = 0x9E3779B97F4A7C15, 0, []
    for _ in range(3):
        drawn.append(splitmix64(state))
        state = (state + golden) & MASK
    assert drawn == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert unsigned(randomness.key(0)) == drawn[0]


@given(st.integers(0, 2**63 - 1), INT64)
def test_keys_are_splitmix64(seed: int, value: int) -> None:
    root = splitmix64(seed)
    assert unsigned(randomness.key(seed)) == root
    folded = splitmix64(splitmix64(root) ^ (value & MASK))
    assert unsigned(randomness.fold(randomness.key(seed), value)) == folded
    as_tensor = torch.tensor(value, dtype=torch.int64)
    assert unsigned(randomness.fold(randomness.key(seed), as_tensor)) == folded


@given(st.integers(0, 2**63 - 1))
def test_uniform_is_splitmix64_in_counter_mode(seed: int) -> None:
    source = splitmix64(seed)
    expected = [
        (splitmix64((source + n * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53 for n in range(1, 6)
    ]
    assert randomness.uniform(randomness.key(seed), 5).tolist() == expected


def test_uniform_looks_uniform() -> None:
    draws = randomness.uniform(randomness.key(3), 200_000)
    assert draws.dtype == torch.float64
    assert 0 <= float(draws.min()) < 1e-4
    assert 1 - 1e-4 < float(draws.max()) < 1
    assert abs(float(draws.mean()) - 0.5) < 0.003  # 4.6 standard errors
    assert abs(float(draws.var()) - 1 / 12) < 0.001
    tenths = torch.histc(draws, 10, 0, 1) / len(draws)
    assert float((tenths - 0.1).abs().max()) < 0.004
    lagged = torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1]
    assert abs(float(lagged)) < 0.01


def test_truncated_normal_is_cut_at_two_deviations() -> None:
    draws = randomness.truncated_normal(randomness.key(4), 200_000)
    assert 1.99 < float(draws.abs().max()) <= 2
    assert abs(float(draws.mean())) < 0.01
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    variance = 1 - 4 * density / math.erf(math.sqrt(2))
    assert abs(float(draws.var()) - variance) < 0.01


def test_children_are_unlike_their_parents_and_siblings() -> None:
    root = randomness.key(0)
    keys = [root, *(randomness.fold(root, n) for n in range(50))]
    keys += [randomness.fold(randomness.fold(root, 1), n) for n in range(50)]
    assert len({int(each) for each in keys}) == 101
    first, second = (randomness.uniform(key, 1000) for key in keys[1:3])
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.15


def test_works_under_vmap() -> None:
    keys = randomness.fold(randomness.key(9), torch.arange(4))
    together = torch.func.vmap(lambda key: randomness.uniform(randomness.fold(key, 5), 3))(keys)
    alone = torch.stack([randomness.uniform(randomness.fold(key, 5), 3) for key in keys])
    assert torch.equal(together, alone)


def test_name_keys() -> None:
    assert randomness.name_key("node-001") == randomness.name_key("node-001")
    assert randomness.name_key("node-001") != randomness.name_key("node-002")
    assert -(2**63) <= randomness.name_key("ρ") < 2**63


@pytest.mark.parametrize("table", [Purpose, DiagnosisPurpose, DataPurpose])
def test_purposes_are_distinct(table: type[IntEnum]) -> None:
    """Names that share a number would be aliases, which iteration leaves out."""
    assert list(table.__members__) == [purpose.name for purpose in table]


def test_purposes_of_runs_keep_their_numbers() -> None:
    """Another number changes every run drawn with it."""
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        **{"AUGMENTATION": -1, "SUPPORT": 1, "QUERY": 2, "BATCH": 3, "DUAL": 4, "RESPLIT": 5},
        **{
            "STEP_SIZES": 6,
            "RESPLIT_CLASSES": 7,
            "RENAME": 8,
            "PERSONAL": 9,
            "TURN": 10,
            "PARTICIPANTS": 11,
            "LOST_UPLOADS": 12,
            "GENERATED": 13,
            "NODES": 21,
        },
        **{"PARTICIPATION": 22, "EDGES": 23, "ROUNDING": 31, "NOISE": 32, "FALSE_UPLOAD": 41},
    }


def test_a_diagnosis_shares_no_stream_with_a_run_of_its_seed() -> None:
    """Both fold into the root key of a seed, which may be the same."""
    of_runs = {Purpose.NODES, Purpose.PARTICIPATION, Purpose.EDGES}
    assert not of_runs & set(DiagnosisPurpose)


def test_a_purpose_folds_like_its_number() -> None:
    assert torch.equal(
        randomness.fold(randomness.key(3), Purpose.NOISE), randomness.fold(randomness.key(3), 32)
    )


def test_no_purpose_is_a_constant_elsewhere() -> None:
    """The tables of `randomness` are complete: nobody folds a number of their own."""
    sources = (Path(randomness.__file__).parents[1]).rglob("*.py")
    folding = re.compile(r"fold\([^()]*(?:\([^()]*\))?[^()]*, (?:-?\d+|_[A-Z_]+)\)")
    code = {path: re.sub(r">>>.*", "", path.read_text(encoding="utf-8")) for path in sources}
    found = {
        path.name
        for path, text in code.items()
        if path.name != "randomness.py" and folding.search(text)
    }
    assert found == set()
