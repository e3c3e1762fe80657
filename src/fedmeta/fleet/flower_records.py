"""Parcels as Flower's records."""

from __future__ import annotations

from typing import cast

from fedmeta.core.errors import MissingExtraError
from fedmeta.fleet.message import Parcel, ParcelError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError:
    raise MissingExtraError("flwr", "flower") from None

_FACTS, _TENSORS = "facts", "tensors"


def to_records(parcel: Parcel) -> RecordDict:
    """A parcel as the content of a Flower message.

    The tensors are one array of bytes: Flower sends every array by a call of its own.
    """
    facts, tensors = parcel.encoded()
    array = Array(dtype="uint8", shape=(len(tensors),), stype="safetensors", data=tensors)
    return RecordDict(
        {_FACTS: ConfigRecord({"json": facts}), _TENSORS: ArrayRecord({"all": array})}
    )


def from_records(records: RecordDict) -> Parcel:
    """The inverse of `to_records`; what is not a parcel is refused."""
    try:
        facts = cast(ConfigRecord, records[_FACTS])["json"]
        tensors = cast(ArrayRecord, records[_TENSORS])["all"].data
    except (KeyError, AttributeError, TypeError) as error:
        raise ParcelError(f"a message is no parcel ({error!r})", "check its sender") from error
    if not isinstance(facts, str):
        raise ParcelError("a message is no parcel", "check its sender")
    return Parcel.decoded(facts, tensors)
