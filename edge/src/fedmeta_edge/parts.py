"""Samples that are texts, or several arrays: how they become the one row that a model takes.

Both are told by the model's file: texts by its encoding (words by their checksum, or a tokenizer of
the `tokenizers` library), several arrays by the inputs that a row holds side by side.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fedmeta_edge.errors import EdgeError

_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_MOST = 2**28  # numbers that a file may speak of
_ROOM = 2**27  # numbers in memory
_GROWTH, _WORD_LENGTH = 64, 1000  # as in fedmeta: times that a text may grow; letters of a word
_VOCABULARY = ("vocab", "merges", "added_tokens")

Array = npt.NDArray[Any]


def numbers_of_texts(texts: Sequence[str], text: Mapping[str, Any]) -> Array:
    """The tokens of every text, cut or filled up with 0, (n, length).

    Args:
        texts: raw.
        text: of the model's encoding.

    Example:
        >>> about = {"length": 4, "vocabulary": 1000, "tokenizer": "", "embedding": ""}
        >>> numbers_of_texts(["Good, good"], about).tolist()
        [[627.0, 72.0, 627.0, 0.0]]
    """
    if text["embedding"]:
        raise EdgeError(
            f"the model takes sentence embeddings ({text['embedding']}), which need PyTorch",
            "compute them elsewhere and give them as x in an .npz file",
        )
    _check_room(len(texts) * text["length"])
    found = np.zeros((len(texts), text["length"]), np.float32)
    tokenizer = _tokenizer(text["tokenizer"]) if text["tokenizer"] else None
    for row, each in enumerate(texts):
        if tokenizer is not None:
            tokens = [1 + number for number in _ids(tokenizer, each)]
        else:
            words = _WORD.findall(each.casefold())
            tokens = [1 + zlib.crc32(word.encode()) % (text["vocabulary"] - 1) for word in words]
        cut = tokens[: text["length"]]
        found[row, : len(cut)] = cut
    return found


def _tokenizer(content: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EdgeError("the model takes texts by a tokenizer", "pip install tokenizers") from None
    try:
        _check_growth(json.loads(content))
        found = Tokenizer.from_str(content)
    except BaseException as error:  # of a damaged text it raises what it likes
        _told(error, "the model's tokenizer cannot be read")
    found.no_padding()
    found.no_truncation()
    return found


def _ids(tokenizer: Any, text: str) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        _told(error, "the model's tokenizer fails on a text")
    return ids


def _told(error: BaseException, problem: str) -> NoReturn:
    """An error of the library, whose panics are no `Exception`, as one line."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        raise EdgeError(problem, "export it again") from error
    raise error


def _check_growth(rules: Any, growth: int = 1) -> int:
    """Refuse rules by which a short text becomes a very long one; how much longer the others do."""
    if isinstance(rules, dict):
        added = rules.get({"Replace": "content", "Prepend": "prepend"}.get(str(rules.get("type"))))
        if isinstance(added, str) and len(added) > 1:
            growth *= 1 + len(added)
        longest = rules.get("max_input_chars_per_word", 0)
        if growth > _GROWTH or (isinstance(longest, int) and longest > _WORD_LENGTH):
            raise ValueError("it makes texts far longer")
        rules = [each for name, each in rules.items() if name not in _VOCABULARY]
    for each in rules if isinstance(rules, list) else ():
        growth = _check_growth(each, growth)
    return growth


def _check_room(numbers: int) -> None:
    if numbers > _ROOM:
        raise EdgeError(
            f"the samples would take {4 * numbers / 1e9:.3g} GB of memory", "give fewer at once"
        )


def joined(arrays: Mapping[str, Array], inputs: Sequence[Mapping[str, Any]], file: object) -> Array:
    """Several arrays as rows, (n, width).

    A sequence may be shorter than the model takes; `lengths` or `NAME_lengths` say how many steps
    of each are real, without them all are.

    Args:
        arrays: by name.
        inputs: of the model: name, shape, kind, sequence.
        file: for messages.

    Example:
        >>> about = [{"name": "w", "shape": [3], "kind": "tokens", "sequence": True}]
        >>> joined({"w": np.array([[5, 6]]), "lengths": np.array([1])}, about, "f").tolist()
        [[5.0, 0.0, 0.0, 1.0]]
    """
    blocks: list[Array] = []
    for part in inputs:
        name, shape = part["name"], tuple(part["shape"])
        values = arrays.get(name)
        if values is None:
            raise EdgeError(
                f"{file} has no array {name!r}",
                f"the model takes {', '.join(str(each['name']) for each in inputs)}",
            )
        if part["kind"] == "pixels" and values.shape[1:] != shape:
            values = np.moveaxis(values, 3, 1) if values.ndim == 4 else values[:, None]
        longest = shape[0] if part["sequence"] else 0
        fits = values.ndim > 0 and values.dtype.kind in "buif"
        if part["sequence"]:
            fits = fits and values.ndim == 1 + len(shape) and 1 <= values.shape[1] <= longest
            fits = fits and values.shape[2:] == shape[1:]
        if not fits or (not part["sequence"] and values.shape[1:] != shape):
            raise EdgeError(
                f"samples of {name!r} in {file} have shape {values.shape[1:]}, the model takes "
                f"{shape}",
                "give (n, *shape) samples like those it was trained on",
            )
        if not part["sequence"]:
            blocks.append(values.reshape(len(values), -1))
            continue
        alone = sum(bool(each["sequence"]) for each in inputs) == 1
        told = arrays.get(f"{name}_lengths", arrays.get("lengths") if alone else None)
        steps = values.shape[1]
        counts = np.full(len(values), steps) if told is None else told.reshape(-1)
        if len(counts) != len(values) or (
            len(counts) and not 1 <= counts.min() <= counts.max() <= steps
        ):
            raise EdgeError(
                f"the lengths of {name!r} in {file} are not one per sample from 1 to {steps}",
                "give how many steps of each sample are real",
            )
        _check_room(len(values) * math.prod(shape))
        padded = np.zeros((len(values), *shape), np.float32)
        padded[:, :steps] = values
        padded[np.arange(longest) >= counts[:, None]] = 0
        blocks += [padded.reshape(len(values), -1), counts[:, None]]
    if len({len(each) for each in blocks}) > 1:
        raise EdgeError(f"the arrays of {file} have different numbers of samples", "give as many")
    with np.errstate(over="ignore"):
        return np.concatenate(blocks, axis=1).astype(np.float32)


def make_sense(text: Mapping[str, Any] | None, inputs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what a file says of its texts and inputs can be."""
    if text is not None:
        texts = all(isinstance(text[key], str) for key in ("column", "tokenizer", "embedding"))
        whole = all(
            isinstance(text[key], int) and 0 <= text[key] <= _MOST
            for key in ("length", "vocabulary")
        )
        if not texts or not whole or (not text["embedding"] and text["vocabulary"] < 2):
            return False
    for part in inputs:
        sides = list(part["shape"])
        if not isinstance(part["name"], str) or not isinstance(part["sequence"], bool):
            return False
        if (
            not all(isinstance(side, int) and side >= 1 for side in sides)
            or math.prod(sides) > _MOST
        ):
            return False
        if part["sequence"] and not sides:
            return False
    return True
