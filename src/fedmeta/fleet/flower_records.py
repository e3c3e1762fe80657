"""Messages as Flower's records."""

from __future__ import annotations

from typing import cast

from fedmeta.core.errors import MissingExtraError
from fedmeta.fleet.message import Message, MessageError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError:
    raise MissingExtraError("flwr", "flower") from None

_FACTS, _TENSORS = "facts", "tensors"


def to_records(message: Message) -> RecordDict:
    """A message as the content of a Flower message.

    The tensors are one array of bytes: Flower sends every array by a call of its own.
    """
    facts, tensors = message.encoded()
    array = Array(dtype="uint8", shape=(len(tensors),), stype="safetensors", data=tensors)
    return RecordDict(
        {_FACTS: ConfigRecord({"json": facts}), _TENSORS: ArrayRecord({"all": array})}
    )


def from_records(records: RecordDict) -> Message:
    """The inverse of `to_records`; what is not a message is refused."""
    try:
        facts = cast(ConfigRecord, records[_FACTS])["json"]
        tensors = cast(ArrayRecord, records[_TENSORS])["all"].data
    except (KeyError, AttributeError, TypeError) as error:
        raise MessageError(f"a message is no message ({error!r})", "check its sender") from error
    if not isinstance(facts, str):
        raise MessageError("a message is no message", "check its sender")
    return Message.decoded(facts, tensors)
