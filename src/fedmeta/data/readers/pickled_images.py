"""The pickles of CIFAR, read without pickle: a machine with no way to call anything.

It knows the instructions that such a file has: plain values, lists, tuples, dictionaries with texts
as keys, and arrays of bytes. An instruction or a name beyond these ends the reading.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import read_regular
from fedmeta.data.pool import Array

_MOST = 2**20
"""Instructions of a file; CIFAR-100 has some 250,000."""


class ByteArray:
    """An array of unsigned bytes, while it is read and after.

    Args:
        array: what it holds; empty until its state has come.
    """

    def __init__(self) -> None:
        self.array: Array = np.empty(0, np.uint8)

    def fill(self, state: Any) -> None:
        """Take over (version, shape, type, column-major, content)."""
        _version, shape, _type, column_major, content = state
        order: Literal["F", "C"] = "F" if column_major is True or column_major == 1 else "C"
        sizes = [int(size) for size in shape]
        self.array = np.frombuffer(content, np.uint8).reshape(sizes, order=order)


class _ByteType:
    """The type of such an array."""


class _Name:
    """A known name that stands for something; `act` answers a call of it."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act


class _Mark:
    """Where a group of values begins."""


def _byte_type(code: Any, *_: Any) -> _ByteType:
    if not isinstance(code, str | bytes) or code not in ("u1", b"u1"):
        what = code if isinstance(code, str | bytes) else type(code).__name__
        raise DataError(f"it holds an array of type {what!r}", "only bytes are read from it")
    return _ByteType()


def _encoded(text: Any, _codec: Any) -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    if not isinstance(text, str):
        raise ValueError("a text is missing")
    return text.encode("latin1")


_ARRAY = _Name(lambda *_: ByteArray())
_KNOWN = {
    "numpy.core.multiarray _reconstruct": _ARRAY,
    "numpy._core.multiarray _reconstruct": _ARRAY,
    "numpy ndarray": _ARRAY,
    "numpy dtype": _Name(_byte_type),
    "_codecs encode": _Name(_encoded),
}
_PLAIN = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_BYTES = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # of Python 2, whose texts were bytes
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_RAW = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load_pickle(path: Path) -> dict[bytes, Any]:
    """A pickled dictionary of plain values and byte arrays; anything else is refused unrun."""
    try:
        content = _Machine(read_regular(path)).run()
    except FileNotFoundError:
        raise DataError(f"{path} is missing", "unpack the whole archive") from None
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.remedy) from None
    except Exception as error:  # a damaged pickle can fail in any way; none of them is ours
        raise DataError(f"{path} is not a whole pickle ({error})", "fetch it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no dictionary", "fetch it again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


class _Machine:
    """A stack, a memo, and one step for each instruction."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """What is on the stack when the file says stop."""
        for count, (code, value, _) in enumerate(pickletools.genops(self._content)):
            if count > _MOST:
                raise ValueError("it has too many instructions")
            if code.name == "STOP":
                return self._stack[-1]
            self._step(code.name, value)
        raise ValueError("it does not end")

    def _step(self, name: str, value: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _PLAIN:
            stack.append(_PLAIN[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _NUMBERS | _TEXTS | _RAW:
            stack.append(value)
        elif name in _BYTES:
            stack.append(value.encode("latin1"))
        elif name == "MARK":
            stack.append(_Mark())
        elif name in _PUT | {"MEMOIZE"}:
            self._memo[len(self._memo) if name == "MEMOIZE" else int(value)] = stack[-1]
        elif name in _GET:
            stack.append(self._memo[int(value)])
        elif name == "GLOBAL":
            stack.append(_known(value))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_known(f"{_text(module)} {_text(attribute)}"))
        else:
            self._combine(name)

    def _combine(self, name: str) -> None:
        """Instructions that take values from the stack."""
        stack = self._stack
        if name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "TUPLE":
            stack.append(tuple(self._group()))
        elif name == "LIST":
            stack.append(self._group())
        elif name in ("APPEND", "APPENDS"):
            added = [stack.pop()] if name == "APPEND" else self._group()
            _of(list, stack[-1]).extend(added)
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            pairs = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._group()
            if name == "DICT":
                stack.append({})
            table = _of(dict, stack[-1])
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                if not isinstance(key, str | bytes):
                    raise ValueError("it has a key that is no text")
                table[key] = value
        elif name == "REDUCE":
            given, called = stack.pop(), stack.pop()
            stack.append(_of(_Name, called).act(*_of(tuple, given)))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], ByteArray):
                stack[-1].fill(state)
            elif not isinstance(stack[-1], _ByteType):
                raise ValueError("it builds what is no array")
        else:
            raise DataError(
                f"it has the instruction {name}, which image data do not need",
                "do not trust this file; fetch it again from its origin",
            )

    def _group(self) -> list[Any]:
        """The values since the last mark, taken off the stack."""
        place = len(self._stack) - 1
        while not isinstance(self._stack[place], _Mark):
            place -= 1
            if place < 0:
                raise ValueError("a mark is missing")
        found = self._stack[place + 1 :]
        del self._stack[place:]
        return found


def _known(name: str) -> _Name:
    try:
        return _KNOWN[name]
    except KeyError:
        raise DataError(
            f"it asks for {name.replace(' ', '.')}, which image data do not need",
            "do not trust this file; fetch it again from its origin",
        ) from None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(_of(str, value))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__.strip('_').lower()} is missing")
    return value
