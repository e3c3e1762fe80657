"""Shorter uploads: nothing is lost for good, and the mean is right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmeta.core import randomness, tree
from fedmeta.core.errors import SettingError
from fedmeta.core.storage import payload_bytes
from fedmeta.core.tree import Tree
from fedmeta.uplink.compression import Compression

METHODS = [Compression("8-bit"), Compression("top-k", 0.25), Compression("top-k", 1.0)]


def drawn(seed: int, scale: float = 1.0) -> Tree:
    key = randomness.key(seed)
    return {
        "w": scale * randomness.normal(key, 12).reshape(3, 4),
        "b": 1e-3 * randomness.normal(randomness.fold(key, 1), 5),
    }


@pytest.mark.parametrize("how", METHODS, ids=str)
@given(st.integers(0, 10_000), st.floats(1e-6, 1e6), st.integers(1, 6))
def test_what_was_sent_and_what_is_left_is_all_there_was(
    how: Compression, seed: int, scale: float, rounds: int
) -> None:
    residual = tree.zeros_like(drawn(seed))
    sent, given_ = residual, residual
    for number in range(rounds):
        update = drawn(seed + number, scale)
        arrived, residual = how.sent(update, residual, randomness.key(number))
        sent, given_ = tree.add(sent, arrived), tree.add(given_, update)
    for name, leaf in tree.add(sent, residual).items():
        assert torch.allclose(leaf, given_[name], rtol=1e-12, atol=1e-12 * scale)


def test_eight_bits_are_right_in_the_mean() -> None:
    update = {"a": torch.tensor([1.0, 0.3, -0.7001, 1e-4, 0.0], dtype=torch.float64)}
    how = Compression("8-bit")
    many = torch.stack(
        [
            how.decoded(how.encoded(update, randomness.key(seed)), update)["a"]
            for seed in range(4000)
        ]
    )
    unit = 1 / 127
    error = (many.mean(0) - update["a"]).abs()
    assert bool((error < 5 * unit / 2 / 4000**0.5).all())  # five deviations at most
    assert bool(((many - update["a"]).abs() <= unit).all())


def test_zero_stays_zero() -> None:
    nothing = {"a": torch.zeros(3)}
    for how in METHODS:
        arrived, residual = how.sent(nothing, nothing, randomness.key(0))
        assert float(arrived["a"].abs().sum() + residual["a"].abs().sum()) == 0


@pytest.mark.parametrize("how", METHODS, ids=str)
def test_many_nodes_at_once_send_what_each_would_alone(how: Compression) -> None:
    nodes = [drawn(seed) for seed in range(3)]
    keys = torch.stack([randomness.key(seed) for seed in range(3)])
    stacked = {name: torch.stack([node[name] for node in nodes]) for name in nodes[0]}
    zero = tree.zeros_like(nodes[0])
    arrived, residual = torch.func.vmap(lambda one, key: how.sent(one, zero, key))(stacked, keys)
    for place, node in enumerate(nodes):
        alone = how.sent(node, zero, keys[place])
        for name in node:
            assert torch.equal(arrived[name][place], alone[0][name])
            assert torch.equal(residual[name][place], alone[1][name])


def test_uploads_are_as_short_as_they_should_be() -> None:
    model = {"w": torch.randn(100, 100), "b": torch.randn(100)}
    whole = payload_bytes(model)
    key = randomness.key(0)
    assert payload_bytes(Compression("8-bit").encoded(model, key)) < 0.27 * whole
    assert payload_bytes(Compression("top-k", 0.01).encoded(model, key)) < 0.03 * whole
    assert Compression().encoded(model, key) is model


@pytest.mark.parametrize("how", METHODS, ids=str)
def test_an_upload_from_afar_is_looked_at_before_it_is_read(how: Compression) -> None:
    like = drawn(0)
    wire = how.encoded(drawn(1), randomness.key(0))
    assert how.problem(wire, like) is None
    first = next(iter(wire))
    assert how.problem({**wire, first: wire[first][:-1]}, like) is not None
    assert how.problem({**wire, first: wire[first].to(torch.float16)}, like) is not None
    assert how.problem({**wire, "more": torch.zeros(1)}, like) == "'more' is unknown"
    assert (
        how.problem({name: leaf for name, leaf in wire.items() if name != first}, like) is not None
    )


@pytest.mark.parametrize("place", [-1, 17, 2**31 - 1])
def test_a_number_must_have_a_place(place: int) -> None:
    how, like = Compression("top-k", 0.25), drawn(0)
    wire = how.encoded(drawn(1), randomness.key(0))
    wire["places"][0] = place
    assert how.problem(wire, like) == "a number has no place"


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(SettingError, match="method"):
        Compression("zip")  # type: ignore[arg-type]
    for keep in (0.0, 1.1, float("nan")):
        with pytest.raises(SettingError, match="keep"):
            Compression("top-k", keep)
