"""Inputs made from honest ones: bytes that flip, values that lie, structures that grow."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
import tomllib
from pathlib import Path
from typing import Any

import safetensors.torch

from fedmeta.config.toml_files import to_toml

_NUMBERS = (0, 1, -1, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


def hostile(luck: random.Random) -> Any:
    """A value that nobody expects."""
    deep: Any = 1
    for _ in range(luck.choice((3, 70, 900))):
        deep = [deep] if luck.random() < 0.5 else {"a": deep}
    return luck.choice(
        [
            *(
                None,
                True,
                False,
                "",
                "x",
                "\x1b[31m\u202e",
                "\ud800",
                "9" * 500,
                "../../etc/passwd",
            ),
            *(0, -1, 1e308, -1e-308, float("nan"), float("inf"), 0.5, 10**400, -(10**19), 2**63),
            *(2**31, 10**9, 10**12, [], {}, [[]], [1, "a", None], {"name": {}}, [10**9, 10**9]),
            *("file.py:f", "os:system", "mlp", "cnn", deep, ["a"] * 1000),
        ]
    )


def mutate_bytes(content: bytes, luck: random.Random) -> bytes:
    """Some bytes changed, cut, repeated, or made an odd number."""
    found = bytearray(content)
    for _ in range(luck.choice((1, 1, 2, 5, 20))):
        if not found:
            break
        place = luck.randrange(len(found))
        kind = luck.randrange(6)
        if kind == 0:
            found[place] ^= 1 << luck.randrange(8)
        elif kind == 1:
            found[place] = luck.randrange(256)
        elif kind == 2:
            del found[place : place + luck.choice((1, 4, 100))]
        elif kind == 3:
            found[place:place] = found[place : place + luck.choice((1, 8, 200))]
        elif kind == 4:
            form = luck.choice(("<I", ">I", "<Q", "<H"))
            number = luck.choice(_NUMBERS) % 2 ** (8 * struct.calcsize(form))
            found[place : place + struct.calcsize(form)] = struct.pack(form, number)
        else:
            del found[place:]
    return bytes(found)


def mutate_value(value: Any, luck: random.Random) -> Any:
    """A nested value with a part replaced, taken away, renamed or added."""
    found = copy.deepcopy(value)
    for _ in range(luck.choice((1, 1, 2, 3))):
        places = _places(found)
        if not places:
            return hostile(luck)
        holder, key = luck.choice(places)
        kind = luck.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[f"{key}{luck.choice(('x', ' ', chr(27)))}"] = holder[key]
        elif kind == 2 and isinstance(holder, list):
            holder += holder[:50]
        else:
            holder[key] = hostile(luck)
    return found


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found


def mutate_file(path: Path, kind: str, luck: random.Random) -> None:
    """Change a file as somebody would who knows its kind, or blindly."""
    content = path.read_bytes()
    knows = luck.random() < 0.7
    try:
        if knows and path.suffix == ".json":
            content = json.dumps(mutate_value(json.loads(content), luck)).encode()
        elif knows and path.suffix == ".jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            lines = [mutate_value(line, luck) if luck.random() < 0.5 else line for line in lines]
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        elif knows and path.suffix == ".toml":
            table = mutate_value(tomllib.loads(content.decode()), luck)
            content = to_toml(table).encode("utf-8", "surrogatepass")
        elif knows and path.suffix == ".safetensors":
            content = _tensors(content, luck)
        elif path.suffix == ".onnx" and kind != "device":  # whose name has its checksum
            content = _onnx(content, luck, knows)
        else:
            content = mutate_bytes(content, luck)
    except (ValueError, AttributeError, TypeError, RecursionError, KeyError):
        content = mutate_bytes(content, luck)
    path.write_bytes(content)


def _tensors(content: bytes, luck: random.Random) -> bytes:
    """Other facts, or a tensor of another name or shape; no checksum, as older files have none."""
    size = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    tensors = safetensors.torch.load(content)
    facts = json.loads(about["fedmeta"])
    facts.pop("sha256", None)
    if luck.random() < 0.3:
        name = luck.choice(sorted(tensors))
        tensors[f"{name}x" if luck.random() < 0.5 else name] = tensors.pop(name).reshape(-1)
    return safetensors.torch.save(tensors, {"fedmeta": json.dumps(mutate_value(facts, luck))})


def _onnx(content: bytes, luck: random.Random, knows: bool) -> bytes:
    """A changed body with the checksum that fits it: whoever changes one changes the other."""
    import onnx

    entry = len(b"\x72\x00\x0a\x0e") + len(b"fedmeta.sha256") + 2 + 64
    body, end = content[:-entry], content[-entry:]
    if knows:
        model = onnx.load_from_string(body)
        facts = json.loads(model.metadata_props[0].value)
        model.metadata_props[0].value = json.dumps(mutate_value(facts, luck))
        if luck.random() < 0.5:
            node = luck.choice(list(model.graph.node))
            node.op_type = luck.choice(("Expand", "Loop", "Mul", "Tile", "Pad", "Evil", "If"))
        body = model.SerializeToString()
    else:
        body = mutate_bytes(body, luck)
    if luck.random() < 0.1:
        return mutate_bytes(content, luck)
    return body + end[:-64] + hashlib.sha256(body).hexdigest().encode()
