"""Noise in whole numbers: a million draws against its exact distribution, with a known key."""

from __future__ import annotations

import math
import os
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest

from fedmeta.core.errors import MissingExtraError, SettingError
from fedmeta.core.secret_random import SecretRandom, keystream
from fedmeta.uplink import discrete_gaussian
from fedmeta.uplink.discrete_gaussian import DiscreteGaussian

pytest.importorskip("cryptography")

DRAWS = 1_000_000
KEY = bytes(range(32))


def masses(deviation: float, largest: int) -> np.ndarray[Any, Any]:
    """P(n) for n = −largest … largest."""
    numbers = np.arange(-largest, largest + 1, dtype=np.float64)
    weights = np.exp(-(numbers**2) / (2 * deviation**2))
    return weights / weights.sum()


def chi_square(seen: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """How far counts are from their expectation, in deviations of the statistic."""
    enough = wanted > 20
    seen = np.append(seen[enough], seen[~enough].sum())
    wanted = np.append(wanted[enough], wanted[~enough].sum())
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], wanted[:-1]
    freedom = len(wanted) - 1
    return float((((seen - wanted) ** 2 / wanted).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("deviation", [0.4, 1.0, 5.0, 20.7, 130.0])
def test_a_million_draws_have_the_exact_distribution(deviation: float) -> None:
    drawn = DiscreteGaussian(deviation).draw(DRAWS, SecretRandom(KEY))
    largest = int(14 * deviation) + 2
    assert int(np.abs(drawn).max()) <= largest
    seen = np.bincount(drawn + largest, minlength=2 * largest + 1)
    exact = masses(deviation, largest)
    assert abs(chi_square(seen, DRAWS * exact)) < 5
    # The same statistic sees noise that is two per cent too small.
    assert chi_square(seen, DRAWS * masses(1.02 * deviation, largest)) > 10
    numbers = np.arange(-largest, largest + 1)
    variance = float((exact * numbers**2).sum())
    kurtosis = float((exact * numbers**4).sum()) / variance**2
    assert abs(drawn.mean()) < 5 * math.sqrt(variance / DRAWS)
    assert drawn.var() == pytest.approx(variance, rel=5 * math.sqrt((kurtosis - 1) / DRAWS))
    ahead = (drawn[1:] * drawn[:-1]).mean() / variance
    assert abs(ahead) < 5 / math.sqrt(DRAWS)


def test_a_million_draws_of_the_size_that_runs_have() -> None:
    deviation = 1.37 * 2.0**41
    drawn = DiscreteGaussian(deviation).draw(DRAWS, SecretRandom(KEY))
    ordered = np.sort(drawn) / deviation
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in ordered[:: DRAWS // 10_000]])
    places = np.arange(0, DRAWS, DRAWS // 10_000) / DRAWS
    assert np.abs(below - places).max() < 1.95 / math.sqrt(DRAWS) + 1e-4  # Kolmogorov, p = 0.001
    for shift in (0, 8, 30):  # there is no bit that noise leaves as it was
        low = np.bincount((drawn >> shift) & 255, minlength=256)
        assert abs(chi_square(low, np.full(256, DRAWS / 256))) < 5


def test_what_64_bits_do_not_decide_is_decided_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = DiscreteGaussian(1000.25)
    plain = gaussian.draw(2_000, SecretRandom(KEY))
    asked = []
    original = DiscreteGaussian._likely

    def likely(self: DiscreteGaussian, x: int, y: int) -> int:
        asked.append((x, y))
        return original(self, x, y)

    monkeypatch.setattr(DiscreteGaussian, "_likely", likely)
    monkeypatch.setattr(discrete_gaussian, "_UNSURE", 2.0)  # nothing is decided in floats

    class Zero(SecretRandom):  # whose further bits are 0, so that the first 64 decide
        def whole(self, bits: int) -> int:
            return 0

    assert np.array_equal(gaussian.draw(2_000, Zero(KEY)), plain)
    assert len(asked) >= 2_000
    getcontext().prec = 60
    x, y = asked[0]
    k = 1 << gaussian._power
    exact = (-Decimal(y * (y + 2 * k * x)) / (2 * Decimal("1000.25") ** 2)).exp()
    assert abs(Decimal(original(gaussian, x, y)) / 2**192 - exact) < Decimal(10) ** -50


def test_a_tie_with_the_table_is_broken_by_further_bits() -> None:
    gaussian = DiscreteGaussian(5.0)
    table = discrete_gaussian._table(5.0, gaussian._power)

    class Given(SecretRandom):
        def __init__(self, more: int) -> None:
            super().__init__(KEY)
            self.more = more

        def words(self, count: int) -> Any:
            first = np.full(count, table.first[3], np.uint64)
            first[count // 3 :] = 0  # y = 0, positive, kept
            return first

        def whole(self, bits: int) -> int:
            return self.more

    # P(X ≤ 3) itself is above 3; whatever is less is not.
    assert set(gaussian.draw(5, Given(table.rest[3])).tolist()) == {4}
    assert set(gaussian.draw(5, Given(table.rest[3] - 1)).tolist()) == {3}
    whole = [(int(a) << 128) + b for a, b in zip(table.first, table.rest, strict=True)]
    assert whole == sorted(whole)
    assert whole[-1] == 1 << 192


def test_deviations_that_make_no_sense() -> None:
    for deviation in (0.0, -1.0, 2.0**45, float("nan")):
        with pytest.raises(SettingError):
            DiscreteGaussian(deviation)


def test_bits_are_those_of_the_cipher_and_none_comes_twice() -> None:
    stream = SecretRandom(KEY)
    first, second = stream.words(5), stream.words(4)
    assert np.array_equal(np.concatenate([first, second]), keystream(KEY, 9))
    assert not np.array_equal(SecretRandom().words(4), SecretRandom().words(4))
    # FIPS 197, C.3: the block of a counter under the key 00 01 … 1f.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(bytes(15) + b"\x01")
    assert keystream(KEY, 4)[2:].tobytes() == block


def test_a_forked_process_draws_something_else() -> None:
    stream = SecretRandom(KEY)
    stream.words(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, stream.words(1).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 8) != stream.words(1).tobytes()
    os.close(reading)
    os.close(writing)


def test_without_the_package_it_is_said_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingExtraError, match=r"fedmeta\[dp\]"):
        SecretRandom().words(1)
