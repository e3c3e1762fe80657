"""C text: pieces of code that are files of this package, numbers, arrays, strings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

_WIDTH = 100


@cache
def _read(name: str) -> str:
    return (files("fedmeta.export.c") / "pieces" / f"{name}.c").read_text("utf-8")


def piece(name: str, **words: str) -> str:
    """A piece of code with words put in: NAME, or NAME(a, b) where the text has {0} and {1}.

    Example:
        >>> print(piece("loss_values", REAL="float").splitlines()[1])
        static void loss_slope(const float *z, const float *label, float *slope)
    """
    text = _read(name)
    for word, value in words.items():
        if re.search(rf"\b{word}\(", text):
            calls = {*re.findall(rf"\b{word}\([^()]*\)", text)}
            for call in calls:
                text = text.replace(call, value.format(*call[len(word) + 1 : -1].split(", ")))
        else:
            text = re.sub(rf"\b{word}\b", value.replace("\\", r"\\"), text)
    return text


def number(value: float) -> str:
    """A float32 as C writes it, exactly.

    Example:
        >>> number(0.1), number(3.0), number(1e-20)
        ('0.1f', '3.0f', '1e-20f')
    """
    return f"{np.float32(value)!s}f"


def double(value: float) -> str:
    """A float64 as C writes it, exactly."""
    return repr(float(value))


def array(kind: str, name: str, values: npt.NDArray[np.generic], about: str = "") -> str:
    """A constant array.

    Example:
        >>> print(array("float", "bias", np.array([0.5, 2.0], np.float32), "of a layer"))
        static const float bias[2] = { /* of a layer */
            0.5f, 2.0f,
        };
    """
    flat = values.ravel()
    texts = {
        "float": lambda: [f"{each!s}f" for each in flat.astype(np.float32)],
        "double": lambda: [repr(float(each)) for each in flat],
    }.get(kind, lambda: [str(int(each)) for each in flat])()
    note = f" /* {about} */" if about else ""
    return "\n".join([f"static const {kind} {name}[{flat.size}] = {{{note}", *_lines(texts), "};"])


def _lines(texts: Sequence[str]) -> list[str]:
    """Numbers with commas, as many to a line as fit."""
    lines, line = [], "   "
    for text in texts:
        if len(line) + len(text) + 2 > _WIDTH:
            lines.append(line)
            line = "   "
        line += f" {text},"
    return [*lines, line]


def string(text: str) -> str:
    r"""A C string of a text, whatever it holds.

    Example:
        >>> print(string('a "b"'), string("é?"))
        "a \"b\"" "\303\251\077"
    """
    plain = {ord(each) for each in " !#$%&'()*+,-./:;<=>@[]^_`{|}~"}
    shown = "".join(
        chr(byte)
        if byte in plain or (chr(byte).isalnum() and byte < 128)
        else f"\\{chr(byte)}"
        if byte in b'"\\'
        else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{shown}"'


def comment(text: str) -> str:
    """A text that cannot end the comment that it stands in.

    Example:
        >>> comment("a */ b")
        'a * / b'
    """
    plain = "".join(each if each.isprintable() and ord(each) < 128 else "?" for each in text)
    return plain.replace("*/", "* /").replace("/*", "/ *")
