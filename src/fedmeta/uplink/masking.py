"""Secure aggregation: the platform learns the sum of the edges' vectors, and no single one.

Numbers become whole ones, sums are modulo 2⁶⁴, and in a round every edge i sends

    z_i = v_i + PRG(b_i) + Σ_{j > i} PRG(s_ij) − Σ_{j < i} PRG(s_ij)        (mod 2⁶⁴)

to which the pairs' seeds s_ij = s_ji cancel in Σ z_i, once it is known whose z_i have arrived (U).
Then the edges of U, and they alone, reveal their own seed b_i and the seeds s_ij of pairs with an
edge j whose z_j has not arrived. A z_j that comes late is still hidden by b_j. If an edge of U does
not reveal, the round is repeated with fresh seeds: nothing was learned.

Seeds are functions of a key agreed on by Diffie and Hellman, and of the `MaskContext`: no seed is
used twice. The platform carries the public keys. So it is trusted to carry them as they are, to
invent no edges, and to tell all edges the same U; it may look at whatever it gets (honest but
curious).

This is the protocol of the reference without its secret shares: those save the work of a round
when an edge is lost between its two messages. Keys and their agreement are Flower's helpers; its
generator of masks is not used, since it has a seed of 32 bits.

Reference: Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core.errors import FedmetaError, MissingExtraError
from fedmeta.core.storage import write_bytes, writing
from fedmeta.core.tree import Tree

FEWEST = 3
"""Edges whose sum may be revealed: of two each would know the other's part."""

_UPDATE, _SCALAR = 2.0**-40, 2.0**-32  # what numbers are multiples of
_ROOM = 2.0**62  # largest multiple of a sum


class MaskingError(FedmetaError):
    """A masked sum that cannot be made, or must not be revealed."""


@dataclass(frozen=True)
class MaskContext:
    """The round that seeds are derived for; in any other they are useless.

    Args:
        run, round: of the message.
        starts: how often the platform was started.
        attempt: how often the round was asked for before.
        keys: public keys of all edges that are asked, by name.
    """

    run: str
    round: int
    starts: int
    attempt: int
    keys: Mapping[str, str]

    def digest(self) -> bytes:
        """A fingerprint."""
        facts = asdict(self)
        facts["life"] = facts.pop("starts")  # its name in messages, and so in every seed
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


class Content(NamedTuple):
    """What a masked vector holds: numbers of the update, then weight and metrics by name."""

    like: Tree
    metrics: tuple[str, ...]


def to_whole(total: Contribution, content: Content, edges: int) -> Tensor:
    """Σ contributions as one vector of whole numbers, ready to be masked.

    A number x becomes round(x · 2⁴⁰), those of weight and metrics round(x · 2³²), so that the error
    of a sum over n edges is at most n · 2⁻⁴¹ in every number.

    Args:
        total: of an edge.
        content: the order of its numbers.
        edges: how many are asked: their sum must have room.

    Raises:
        MaskingError: a number is not finite, or too large.

    Example:
        >>> one = Contribution({"a": torch.tensor([0.5])}, torch.tensor(2.0), {})
        >>> whole = to_whole(one, Content(one.update, ()), edges=3)
        >>> from_whole(whole + whole, Content(one.update, ()))
        Contribution(update={'a': tensor([1.])}, weight=tensor(4.), metrics={})
    """
    update = torch.cat([total.update[name].reshape(-1) for name in content.like])
    scalars = torch.stack([total.weight, *(total.metrics[name] for name in content.metrics)])
    parts = [(update, _UPDATE), (scalars, _SCALAR)]
    numbers = torch.cat([part.to("cpu", torch.float64) / unit for part, unit in parts])
    if not bool(numbers.isfinite().all()):
        raise MaskingError("its sum is not finite", "raise the penalty, or lower the step size")
    if float(numbers.abs().max()) > _ROOM / edges:
        raise MaskingError(
            f"its sum has a number above {_ROOM / edges * _UPDATE:.3g}, which masks have no room "
            "for",
            "scale the data, or leave secure aggregation out",
        )
    return numbers.round().to(torch.int64)


def from_whole(total: Tensor, content: Content) -> Contribution:
    """The inverse of `to_whole`, for a sum of such vectors."""
    first = next(iter(content.like.values()))
    sizes = [leaf.numel() for leaf in content.like.values()]
    *parts, scalars = torch.split(total, [*sizes, 1 + len(content.metrics)])
    update = {
        name: (part.to(torch.float64) * _UPDATE).reshape(leaf.shape).to(leaf)
        for (name, leaf), part in zip(content.like.items(), parts, strict=True)
    }
    weight, *metrics = (scalars.to(torch.float64) * _SCALAR).to(first)
    return Contribution(update, weight, dict(zip(content.metrics, metrics, strict=True)))


class MaskingKey:
    """An edge's private key of a run."""

    def __init__(self, kept: bytes) -> None:
        self._kept = kept

    @classmethod
    def open(cls, file: Path) -> MaskingKey:
        """The key in a file that only its owner can read; made when it is asked for first."""
        if not file.exists():
            private, _ = _asymmetric().generate_key_pairs()
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, _asymmetric().private_key_to_bytes(private), mode=0o600)
        return cls(file.read_bytes())

    @property
    def public(self) -> str:
        """What the others need of it."""
        keys = _asymmetric()
        private = keys.bytes_to_private_key(self._kept)
        return str(keys.public_key_to_bytes(private.public_key()).decode())

    def own_seed(self, context: MaskContext) -> bytes:
        """b_i."""
        return _derived(self._kept, context)

    def pair_seed(self, other: str, context: MaskContext) -> bytes:
        """s_ij, with the edge of that name."""
        from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

        keys = _asymmetric()
        mine = keys.bytes_to_private_key(self._kept)
        try:
            theirs = keys.bytes_to_public_key(context.keys[other].encode())
        except (KeyError, ValueError) as error:
            raise MaskingError(f"edge {other} has no public key", "start it again") from error
        return _derived(generate_shared_key(mine, theirs), context)


def masked(whole: Tensor, name: str, secret: MaskingKey, context: MaskContext) -> Tensor:
    """z_i of the edge of that name, see above; `whole` is its v_i, from `to_whole`."""
    _check(name, secret, context, context.keys)
    total = whole + _stream(secret.own_seed(context), len(whole))
    for other in context.keys:
        if other != name:
            mask = _stream(secret.pair_seed(other, context), len(whole))
            total = total + mask if name < other else total - mask
    return total


def revealed(
    arrived: Collection[str], name: str, secret: MaskingKey, context: MaskContext
) -> dict[str, str]:
    """What an edge of U reveals: b_i under its own name, s_ij under those not `arrived` (in U)."""
    _check(name, secret, context, arrived)
    pairs = {
        other: secret.pair_seed(other, context) for other in context.keys if other not in arrived
    }
    seeds = {name: secret.own_seed(context), **pairs}
    return {other: seed.hex() for other, seed in seeds.items()}


def mask_of(seeds: Mapping[str, Mapping[str, str]], length: int) -> Tensor:
    """What is left of all masks in Σ_U z_i, by what every edge of U has revealed."""
    total = torch.zeros(length, dtype=torch.int64)
    for name, mine in seeds.items():
        for other, seed in mine.items():
            mask = _stream(bytes.fromhex(seed), length)
            total = total + mask if name <= other else total - mask
    return total


def _check(name: str, secret: MaskingKey, context: MaskContext, edges: Collection[str]) -> None:
    """Refuse what would tell the platform more than a sum of many."""
    if context.keys.get(name) != secret.public or name not in edges:
        raise MaskingError(f"edge {name} is not among those asked", "start a new run")
    if len(edges) < FEWEST or not {*edges} <= {*context.keys}:
        raise MaskingError(
            f"a sum of {len(edges)} edges would give away what they sent",
            f"have at least {FEWEST} edges answer",
        )


def _derived(key: bytes, context: MaskContext) -> bytes:
    return hmac.digest(key, context.digest(), "sha256")


def _stream(seed: bytes, length: int) -> Tensor:
    """PRG: `length` numbers of 64 bits, AES-256 in counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    stream = bytearray(encryptor.update(bytes(8 * length)))
    return torch.frombuffer(stream, dtype=torch.int64)


def _asymmetric() -> ModuleType:
    """Flower's helpers for keys."""
    try:
        from flwr.supercore.primitives import asymmetric
    except ImportError:
        raise MissingExtraError("Flower, whose keys secure aggregation uses,", "flower") from None
    return asymmetric
