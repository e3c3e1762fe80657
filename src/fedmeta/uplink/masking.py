"""Secure aggregation: the platform learns the sum of the edges' vectors, and no single one.

The protocol of Bonawitz et al. For an occasion (one masked sum) every edge i makes a mask key and a
seed b_i, and deals both out in shares to the n edges that are asked, encrypted so that the platform
can only pass them on. Vectors are of whole numbers, sums modulo 2⁶⁴, and edge i sends

    z_i = v_i + PRG(b_i) + Σ_{j > i} PRG(s_ij) − Σ_{j < i} PRG(s_ij)

where s_ij = s_ji is what the mask keys of i and j agree on (Diffie and Hellman). The platform says
whose z_i have arrived (U); every edge answers once, with its share of b_i for those in U and its
share of the mask key for the others. `threshold` answers open Σ_U z_i, whoever else is lost by
then; a single z_i would need both b_i and the mask key of i, of which no edge gives both.

What differs from the paper. Edges deal out the shares of the next occasion together with their
answer for this one, so that a sum takes two messages instead of four. Shares are encrypted under
long-lived exchange keys, which node keys have signed (`fleet.mask_identity`), and every ciphertext
is bound to the occasion and to the sender's mask key: so these need no signature of their own.
There is no consistency check, in which edges sign U: with more than two thirds of the edges needed
to open anything, and one answer each, a platform that tells edges different U still opens at most
one sum per occasion, and without accomplices one of at least half of the edges.

PRG is AES-256 in counter mode, keys are X25519, encryption is AES-256-GCM, derivation HKDF-SHA256.

Reference: Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmeta.core.secret_random import keystream
from fedmeta.uplink.exchange_keys import SECRET_BYTES, ExchangeKey, decrypted, encrypted
from fedmeta.uplink.secret_sharing import SHARE_BYTES, join, split
from fedmeta.uplink.whole_numbers import MaskingError, check_room

FEWEST = 3
"""Edges whose sum may be revealed: of two each would know the other's part."""


def threshold(edges: int) -> int:
    """How many of them must take part to the end: more than two thirds.

    Example:
        >>> [threshold(edges) for edges in (3, 4, 10, 100)]
        [3, 3, 7, 67]
    """
    return 2 * edges // 3 + 1


@dataclass(frozen=True)
class Occasion:
    """The one sum that mask keys and seeds are made for.

    Args:
        run: name of the run.
        starts: how often the platform was started.
        serial: number of the sum since then.
        keys: public exchange keys of all edges that are asked, by name.
    """

    run: str
    starts: int
    serial: int
    keys: Mapping[str, str]

    def digest(self) -> bytes:
        """A fingerprint."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()

    @property
    def places(self) -> dict[str, int]:
        """Where the polynomials of shares are evaluated for each edge."""
        return {name: place for place, name in enumerate(sorted(self.keys), start=1)}

    @property
    def threshold(self) -> int:
        """How many answers open the sum."""
        return threshold(len(self.keys))

    def check(self, name: str, public: str, edges: Collection[str]) -> None:
        """Refuse what would tell the platform more than a sum of many."""
        if self.keys.get(name) != public or name not in edges:
            raise MaskingError(f"edge {name} is not among those asked", "start a new run")
        different = len({*self.keys.values()})
        if different < max(FEWEST, len(self.keys)) or not {*edges} <= {*self.keys}:
            raise MaskingError(
                f"a sum of {different} edges would give away what they sent",
                f"have at least {FEWEST} edges answer",
            )
        if len({*edges}) < self.threshold:
            raise MaskingError(
                f"a sum of {len({*edges})} of {len(self.keys)} edges would be too small",
                f"have at least {self.threshold} of them answer",
            )


class Secrets(NamedTuple):
    """What an edge makes for one occasion: its mask key (private), and b."""

    key: bytes
    seed: bytes

    @classmethod
    def new(cls) -> Secrets:
        """From the system's randomness."""
        return cls(secrets.token_bytes(SECRET_BYTES), secrets.token_bytes(SECRET_BYTES))


class Offer(NamedTuple):
    """What others are told of an edge's secrets.

    Args:
        key: public, of its mask key.
        seal: SHA-256 of its seed, so that one joined from false shares is noticed.
        shares: of both secrets, encrypted for each edge, by name.
    """

    key: str
    seal: str
    shares: dict[str, str]

    def to(self, name: str) -> list[str]:
        """The part of it that an edge is sent: mask key, seal, its own shares."""
        return [self.key, self.seal, self.shares[name]]


def offer(own: Secrets, name: str, identity: ExchangeKey, occasion: Occasion) -> Offer:
    """Deal the secrets of the edge of that name out."""
    occasion.check(name, identity.public, occasion.keys)
    key, seal = ExchangeKey(own.key).public, hashlib.sha256(own.seed).hexdigest()
    places = occasion.places
    keys, seeds = (split(each, occasion.threshold, places.values()) for each in own)
    shares = {}
    for other, place in places.items():
        plain = b"".join(part[place].to_bytes(SHARE_BYTES, "big") for part in (keys, seeds))
        channel, bound = _channel(identity, occasion, (name, other), other, key + seal)
        shares[other] = encrypted(channel, plain, bound)
    return Offer(key, seal, shares)


def masked(
    whole: Tensor,
    name: str,
    own: Secrets,
    identity: ExchangeKey,
    occasion: Occasion,
    offers: Mapping[str, list[str]],
) -> Tensor:
    """z_i of the edge of that name, see above.

    Args:
        whole: v_i.
        name: of the edge.
        own: its secrets, for this occasion and this vector alone.
        identity: its exchange key.
        occasion: who is asked.
        offers: of all of them to this edge, by name; see `Offer.to`.
    """
    received(name, identity, occasion, offers)  # no mask key that is not its owner's
    check_room(float(whole.abs().max()), len(occasion.keys))
    mine, digest = ExchangeKey(own.key), occasion.digest()
    total = whole + _stream(own.seed, len(whole))
    for other, (key, _, _) in offers.items():
        if other != name:
            mask = _stream(mine.agreed(key, digest), len(whole))
            total.add_(mask, alpha=1 if name < other else -1)
    return total


def received(
    name: str, identity: ExchangeKey, occasion: Occasion, offers: Mapping[str, list[str]]
) -> dict[str, tuple[bytes, bytes]]:
    """An edge's shares of every edge's mask key and seed.

    Raises:
        FalseOfferError: somebody has not sent what this edge was to get.
    """
    occasion.check(name, identity.public, occasion.keys)
    if {*offers} != {*occasion.keys}:
        raise MaskingError("not all edges that are asked have dealt out shares", "ask them again")
    shares, wrong = {}, []
    for other, (key, seal, share) in offers.items():
        channel, bound = _channel(identity, occasion, (other, name), other, key + seal)
        plain = decrypted(channel, share, bound)
        if plain is None or len(plain) != 2 * SHARE_BYTES:
            wrong.append(other)
        else:
            shares[other] = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
    if wrong:
        raise FalseOfferError(wrong)
    return shares


class FalseOfferError(MaskingError):
    """Shares that are not what their sender's key says, or were changed on the way."""

    def __init__(self, senders: list[str]) -> None:
        super().__init__(
            f"the shares that edge {senders[0]} has dealt out are not its own", "leave it out"
        )
        self.senders = senders


def answered(
    arrived: Collection[str],
    name: str,
    identity: ExchangeKey,
    occasion: Occasion,
    offers: Mapping[str, list[str]],
) -> dict[str, str]:
    """The one answer of an edge to who has `arrived`: a share of every edge, by name."""
    occasion.check(name, identity.public, arrived)
    shares = received(name, identity, occasion, offers)
    return {other: shares[other][other in arrived].hex() for other in occasion.keys}


class Opened(NamedTuple):
    """What came of joining shares.

    Args:
        mask: what is left of all masks in Σ_U z_i; None: it could not be found.
        liars: edges whose shares, or whose offers, were false.
    """

    mask: Tensor | None
    liars: set[str]


def opened(
    answers: Mapping[str, Mapping[str, str]],
    arrived: Collection[str],
    offers: Mapping[str, Offer],
    occasion: Occasion,
    length: int,
) -> Opened:
    """Join the shares of at least `threshold` edges.

    Args:
        answers: from `answered`, by name of who gave them.
        arrived: U.
        offers: of all that were asked.
        occasion: that they are for.
        length: of the vectors.
    """
    total, liars, places = torch.zeros(length, dtype=torch.int64), set[str](), occasion.places
    keys, digest = {name: each.key for name, each in offers.items()}, occasion.digest()
    for name in occasion.keys:
        shares = {
            other: int(answers[other][name], 16) for other in answers if name in answers[other]
        }

        def is_it(secret: bytes, name: str = name) -> bool:
            if name in arrived:
                return hashlib.sha256(secret).hexdigest() == offers[name].seal
            return ExchangeKey(secret).public == keys[name]

        secret, liar = _joined(shares, places, occasion.threshold, is_it)
        if secret is None:
            return Opened(None, {name})
        liars |= liar
        if name in arrived:
            total += _stream(secret, length)
            continue
        lost = ExchangeKey(secret)
        for other in arrived:
            mask = _stream(lost.agreed(keys[other], digest), length)
            total.add_(mask, alpha=1 if other < name else -1)
    return Opened(total, liars)


def _joined(
    shares: Mapping[str, int],
    places: Mapping[str, int],
    enough: int,
    is_it: Callable[[bytes], bool],
) -> tuple[bytes | None, set[str]]:
    """A secret, though one of its shares may be false; and whose that was."""
    for left_out in (None, *shares):
        some = [name for name in shares if name != left_out][:enough]
        if len(some) == enough:
            secret = join({places[name]: shares[name] for name in some}, SECRET_BYTES)
            if is_it(secret):
                return secret, set() if left_out is None else {left_out}
    return None, set()


def _channel(
    identity: ExchangeKey, occasion: Occasion, way: tuple[str, str], other: str, content: str
) -> tuple[bytes, bytes]:
    """The key of shares on their way between this edge and an`other`; what they are bound to."""
    bound = json.dumps([occasion.digest().hex(), *way, content]).encode()
    return identity.agreed(occasion.keys[other], bound), bound


def _stream(seed: bytes, length: int) -> Tensor:
    """PRG: `length` numbers of 64 bits."""
    return torch.from_numpy(keystream(seed, length).view(np.int64).copy())
