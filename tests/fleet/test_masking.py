"""Masks that cancel in the sum, and in nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import randomness
from fedmeta.core.errors import SettingError
from fedmeta.core.secret_random import keystream
from fedmeta.uplink.compression import Compression
from fedmeta.uplink.exchange_keys import ExchangeKey
from fedmeta.uplink.guard import Guard
from fedmeta.uplink.masking import (
    FalseOfferError,
    Occasion,
    Offer,
    Secrets,
    answered,
    masked,
    offer,
    opened,
    threshold,
)
from fedmeta.uplink.privacy import Privacy
from fedmeta.uplink.secret_sharing import PRIME, join, split
from fedmeta.uplink.uplink import Uplink
from fedmeta.uplink.whole_numbers import Content, MaskingError, from_whole, to_whole

pytest.importorskip("cryptography")

NAMES = ("a", "b", "c", "d", "e")
LIKE = {"w": torch.zeros(3, 2), "v": torch.zeros(4)}
CONTENT = Content(LIKE, ("loss",))
KEYS = {name: ExchangeKey.new() for name in NAMES}
OCCASION = Occasion("run1", 1, 3, {name: key.public for name, key in KEYS.items()})


class Group:
    """Edges that have dealt out shares to each other."""

    def __init__(self, occasion: Occasion = OCCASION) -> None:
        self.occasion = occasion
        self.own = {name: Secrets.new() for name in occasion.keys}
        self.offers = {n: offer(self.own[n], n, KEYS[n], occasion) for n in occasion.keys}

    def to(self, name: str) -> dict[str, list[str]]:
        return {other: each.to(name) for other, each in self.offers.items()}

    def masked(self, whole: torch.Tensor, name: str) -> torch.Tensor:
        return masked(whole, name, self.own[name], KEYS[name], self.occasion, self.to(name))

    def answered(self, arrived: str, name: str) -> dict[str, str]:
        return answered(arrived, name, KEYS[name], self.occasion, self.to(name))


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


def random_looking(vector: torch.Tensor) -> bool:
    return int((vector.abs() < 2**50).sum()) == 0  # of 12 numbers with 64 random bits


@pytest.mark.parametrize("lost", ["", "a", "c", "e"])
@pytest.mark.parametrize("silent", ["", "a", "d"])
def test_masks_cancel_in_the_sum_of_those_who_arrived(lost: str, silent: str) -> None:
    group, parts = Group(), {name: part(place) for place, name in enumerate(NAMES)}
    sent = {name: group.masked(to_whole(one, CONTENT), name) for name, one in parts.items()}
    arrived = "".join(name for name in NAMES if name != lost)
    answers = {name: group.answered(arrived, name) for name in arrived if name != silent}
    found = opened(answers, arrived, group.offers, OCCASION, 12)
    if len(answers) < threshold(5):
        assert found.mask is None
        return
    assert found.mask is not None
    assert found.liars == set()
    whole = sum(sent[name] for name in arrived) - found.mask
    assert isinstance(whole, torch.Tensor)
    wanted = total([parts[name] for name in arrived])
    assert near(from_whole(whole, CONTENT), wanted, 1e-6)  # of float32 itself
    exact = whole[:10].double() * 2.0**-40
    flat = torch.cat([wanted.update[name].double().reshape(-1) for name in LIKE])
    assert float((exact - flat).abs().max()) <= len(arrived) * 2.0**-41


def test_what_an_edge_sends_says_nothing_by_itself() -> None:
    zeros = Contribution(LIKE, torch.zeros(()), {"loss": torch.zeros(())})
    whole, group, other = to_whole(zeros, CONTENT), Group(), Group()
    sent = group.masked(whole, "a")
    assert random_looking(sent)
    assert not bool((sent == other.masked(whole, "a")).any())
    # Said to be lost, its pair masks can be undone, and its own seed is still on it.
    key, digest = ExchangeKey(group.own["a"].key), OCCASION.digest()
    left = sent.clone()
    for name in "bcde":
        left -= stream(key.agreed(group.offers[name].key, digest))
    assert random_looking(left)
    assert torch.equal(left - stream(group.own["a"].seed), whole)


def stream(seed: bytes) -> torch.Tensor:
    return torch.from_numpy(keystream(seed, 12).astype("int64"))


def test_fewer_shares_than_the_threshold_say_nothing() -> None:
    secret = bytes(range(32))
    shares = split(secret, 4, range(1, 7))
    for some in combinations(shares, 4):
        assert join({place: shares[place] for place in some}, 32) == secret
    # Three shares fit any secret: a fourth can be made up for each.
    three = {place: shares[place] for place in (1, 3, 6)}
    seen = {join({**three, 2: made % PRIME}, 32) for made in (0, 1, PRIME - 1)}
    assert len(seen) == 3
    assert secret not in seen
    assert join(three, 32) != secret


@pytest.mark.parametrize("liar", NAMES)
def test_one_false_share_is_found_and_named(liar: str) -> None:
    group = Group()
    answers = {name: group.answered("abcde", name) for name in NAMES}
    answers[liar] = dict.fromkeys(NAMES, "1" * 132)
    found = opened(answers, "abcde", group.offers, OCCASION, 12)
    honest = opened(
        {name: group.answered("abcde", name) for name in NAMES}, "abcde", group.offers, OCCASION, 12
    )
    assert found.mask is not None
    assert honest.mask is not None
    assert torch.equal(found.mask, honest.mask)
    assert found.liars <= {liar}


def test_an_offer_that_does_not_fit_its_shares_is_named() -> None:
    group = Group()
    group.offers["b"] = Offer(group.offers["b"].key, "0" * 64, group.offers["b"].shares)
    answers = {
        name: answered("abcde", name, KEYS[name], OCCASION, Group().to(name)) for name in NAMES
    }
    found = opened(answers, "abcde", group.offers, OCCASION, 12)
    assert found.mask is None
    assert len(found.liars) == 1


def test_a_mask_key_of_the_platforms_own_is_refused() -> None:
    group, mine = Group(), ExchangeKey.new()
    offers = group.to("a")
    for changed in ([mine.public, *offers["b"][1:]], [offers["b"][0], "0" * 64, offers["b"][2]]):
        with pytest.raises(FalseOfferError, match="edge b has dealt out are not its own"):
            masked(
                torch.zeros(12, dtype=torch.int64),
                "a",
                group.own["a"],
                KEYS["a"],
                OCCASION,
                {**offers, "b": changed},
            )
    # Nor does it do to encrypt shares of its own in another's name, or of another occasion.
    later = Group(replace(OCCASION, serial=4))
    with pytest.raises(FalseOfferError):
        answered("abcde", "a", KEYS["a"], OCCASION, {**offers, "b": later.offers["b"].to("a")})
    swapped = {**offers, "b": offers["c"]}
    with pytest.raises(FalseOfferError):
        answered("abcde", "a", KEYS["a"], OCCASION, swapped)


def test_small_sums_are_not_opened() -> None:
    group = Group()
    with pytest.raises(MaskingError, match="a sum of 3 of 5 edges would be too small"):
        group.answered("abc", "a")
    with pytest.raises(MaskingError, match="not among those asked"):
        group.answered("bcde", "a")
    with pytest.raises(MaskingError, match="would give away"):
        group.answered("abcdx", "a")  # a stranger
    with pytest.raises(MaskingError, match="a sum of 3 of 5"):
        answered(["a", "b", "c", "c", "c"], "a", KEYS["a"], OCCASION, group.to("a"))
    two = replace(OCCASION, keys={name: OCCASION.keys[name] for name in "ab"})
    with pytest.raises(MaskingError, match="a sum of 2 edges would give away"):
        offer(Secrets.new(), "a", KEYS["a"], two)
    same = replace(OCCASION, keys=dict.fromkeys("abcd", OCCASION.keys["a"]))
    with pytest.raises(MaskingError, match="a sum of 1 edges would give away"):
        offer(Secrets.new(), "a", KEYS["a"], same)
    forged = replace(OCCASION, keys={**OCCASION.keys, "a": OCCASION.keys["b"]})
    with pytest.raises(MaskingError, match="not among those asked"):
        offer(Secrets.new(), "a", KEYS["a"], forged)
    broken = replace(OCCASION, keys={**OCCASION.keys, "b": "no key"})
    with pytest.raises(MaskingError, match="key is none"):
        offer(Secrets.new(), "a", KEYS["a"], broken)


def test_no_two_sets_of_answers_can_open_both_secrets_of_an_edge() -> None:
    for edges in range(3, 60):
        assert 2 * threshold(edges) > edges + (edges - 1) // 3  # accomplices, who answer twice


def test_numbers_that_masks_have_no_room_for() -> None:
    with pytest.raises(MaskingError, match="is not finite"):
        to_whole(part(0, float("nan")), CONTENT)
    with pytest.raises(MaskingError, match="no room"):
        to_whole(part(0, 1e8), CONTENT)
    with pytest.raises(MaskingError, match="no room"):
        Group().masked(torch.full((12,), 2**61), "a")
    assert near(from_whole(to_whole(part(0, 1e5), CONTENT), CONTENT), part(0, 1e5), 1e-2)


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(SettingError, match="can judge none of them"):
        Uplink(Guard("reject"), secure_aggregation=True)
    with pytest.raises(SettingError, match="masks fill every bit"):
        Uplink(compression=Compression("8-bit"), secure_aggregation=True)
    for dp in ("local", "central"):
        assert Uplink(privacy=Privacy(dp, noise=1.0), secure_aggregation=True)
    assert Uplink(secure_aggregation=True).unmodified
