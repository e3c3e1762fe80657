"""The facts and the checksum that travel inside an .onnx file.

The facts are one JSON text among the file's `metadata_props`, under the key "fedmeta". The checksum
is a further entry at the very end: the last 64 bytes of the file are the SHA-256, in hexadecimal
digits, of everything before that entry. Any ONNX tool reads such a file, and a device checks it
without one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FORMAT = 1
FACTS, CHECKSUM = "fedmeta", "fedmeta.sha256"


def with_checksum(proto: Any, facts: Mapping[str, Any]) -> bytes:
    """The bytes of a file: an `onnx.ModelProto`, facts about it, and the checksum of both."""
    import onnx

    proto.metadata_props.add(key=FACTS, value=json.dumps({"format": FORMAT, **facts}))
    content: bytes = proto.SerializeToString()
    # Protobuf messages one after the other are one message with the fields of both.
    end = onnx.ModelProto()
    end.metadata_props.add(key=CHECKSUM, value=hashlib.sha256(content).hexdigest())
    return content + bytes(end.SerializeToString())
