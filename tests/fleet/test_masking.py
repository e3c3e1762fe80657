"""Masks that cancel in the sum, and in nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.masking import (
    Content,
    MaskContext,
    MaskingError,
    MaskingKey,
    from_whole,
    mask_of,
    masked,
    revealed,
    to_whole,
)
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.uplink import Uplink

pytest.importorskip("flwr", reason="keys are made by Flower's helpers")

NAMES = ("a", "b", "c", "d")
LIKE = {"w": torch.zeros(3, 2), "v": torch.zeros(4)}
CONTENT = Content(LIKE, ("loss",))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MaskingKey]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: MaskingKey.open(folder / name / "masking.key") for name in NAMES}


@pytest.fixture
def context(secrets: dict[str, MaskingKey]) -> MaskContext:
    return MaskContext("run1", 3, 1, 0, {name: one.public for name, one in secrets.items()})


def part(number: int, scale: float = 1.0) -> Contribution:
    drawn = randomness.normal(randomness.key(number), 12).to(torch.float32) * scale
    update = {"w": drawn[:6].reshape(3, 2), "v": drawn[6:10]}
    return Contribution(update, drawn[10].abs(), {"loss": drawn[11]})


def total(parts: list[Contribution]) -> Contribution:
    def added(leaves: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([leaf.double() for leaf in leaves]).sum(0)

    update = {name: added([p.update[name] for p in parts]) for name in LIKE}
    loss = added([p.metrics["loss"] for p in parts])
    return Contribution(update, added([p.weight for p in parts]), {"loss": loss})


def near(one: Contribution, other: Contribution, within: float) -> bool:
    a = torch.cat([*(one.update[n].double().reshape(-1) for n in LIKE), one.weight.reshape(1)])
    b = torch.cat([*(other.update[n].double().reshape(-1) for n in LIKE), other.weight.reshape(1)])
    return bool((a - b).abs().max() <= within)


@pytest.mark.parametrize("lost", [(), ("a",), ("c",), ("d",)])
def test_masks_cancel_in_the_sum_of_those_who_arrived(
    secrets: dict[str, MaskingKey], context: MaskContext, lost: tuple[str, ...]
) -> None:
    parts = {name: part(place) for place, name in enumerate(NAMES)}
    sent = {
        name: masked(to_whole(one, CONTENT, 4), name, secrets[name], context)
        for name, one in parts.items()
    }
    here = [name for name in NAMES if name not in lost]
    seeds = {name: revealed(here, name, secrets[name], context) for name in here}
    opened = sum(sent[name] for name in here) - mask_of(seeds, 12)
    assert isinstance(opened, torch.Tensor)
    found = from_whole(opened, CONTENT)
    wanted = total([parts[name] for name in here])
    assert near(found, wanted, 1e-6)  # of float32 itself
    exact = opened[:10].double() * 2.0**-40
    flat = torch.cat([wanted.update[name].double().reshape(-1) for name in LIKE])
    assert float((exact - flat).abs().max()) <= len(here) * 2.0**-41


def test_what_an_edge_sends_says_nothing_by_itself(
    secrets: dict[str, MaskingKey], context: MaskContext
) -> None:
    zeros = Contribution(LIKE, torch.zeros(()), {"loss": torch.zeros(())})
    whole = to_whole(zeros, CONTENT, 4)
    sent = masked(whole, "a", secrets["a"], context)
    assert int((sent.abs() < 2**50).sum()) == 0  # of 12 numbers with 64 random bits
    other = masked(whole, "a", secrets["a"], replace(context, attempt=1))
    assert not bool((sent == other).any())
    # Seeds of the pairs alone, as after a false report of its loss, do not open it.
    pairs = {name: revealed("bcd", name, secrets[name], context) for name in "bcd"}
    left = sent + mask_of({name: {"a": seeds["a"]} for name, seeds in pairs.items()}, 12)
    assert int((left.abs() < 2**50).sum()) == 0


def test_fewer_than_three_are_not_opened(
    secrets: dict[str, MaskingKey], context: MaskContext
) -> None:
    whole = torch.zeros(12, dtype=torch.int64)
    few = replace(context, keys={name: context.keys[name] for name in "ab"})
    with pytest.raises(MaskingError, match="a sum of 2 edges would give away"):
        masked(whole, "a", secrets["a"], few)
    with pytest.raises(MaskingError, match="a sum of 2 edges would give away"):
        revealed("ab", "a", secrets["a"], context)
    with pytest.raises(MaskingError, match="not among those asked"):
        revealed("bcd", "a", secrets["a"], context)
    with pytest.raises(MaskingError, match="a sum of 4 edges would give away"):
        revealed(["a", "b", "x", "y"], "a", secrets["a"], context)  # strangers
    forged = replace(context, keys={**context.keys, "a": context.keys["b"]})
    with pytest.raises(MaskingError, match="not among those asked"):
        masked(whole, "a", secrets["a"], forged)
    broken = replace(context, keys={**context.keys, "b": "no key"})
    with pytest.raises(MaskingError, match="edge b has no public key"):
        masked(whole, "a", secrets["a"], broken)


def test_numbers_that_masks_have_no_room_for() -> None:
    with pytest.raises(MaskingError, match="is not finite"):
        to_whole(part(0, float("nan")), CONTENT, 4)
    with pytest.raises(MaskingError, match="no room"):
        to_whole(part(0, 1e8), CONTENT, 4)
    assert near(from_whole(to_whole(part(0, 1e5), CONTENT, 4), CONTENT), part(0, 1e5), 1e-2)


def test_the_key_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "home" / "masking.key"
    secret = MaskingKey.open(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert MaskingKey.open(file).public == secret.public
    assert "PRIVATE" not in secret.public


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(SettingError, match="can judge none of them"):
        Uplink(Guard("reject"), secure_aggregation=True)
    with pytest.raises(SettingError, match="masks fill every bit"):
        Uplink(compression=Compression("8-bit"), secure_aggregation=True)
    for dp in ("local", "central"):
        assert Uplink(privacy=Privacy(dp, noise=1.0), secure_aggregation=True)
    assert Uplink(secure_aggregation=True).unmodified
