"""Tokenizers of the `tokenizers` library, whose files may come from anybody.

A file is read within a size, and refused if its rules would blow texts up: one that replaces a
letter by a million makes gigabytes of a page. Whatever the library raises becomes one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmeta.core.errors import DataError, FedmetaError, MissingExtraError
from fedmeta.core.input_files import open_regular
from fedmeta.core.plain_values import parse_json

MOST_IDS = 2**24
"""Ids that tokens may have: below it whole numbers are exact in float32."""
_LARGEST = 64 * 2**20  # bytes of a file
_GROWTH = 64  # times that a text may become longer
_WORD = 1000  # characters of a word that is looked at


def tokenizer_text(path: Path) -> str:
    """The content of a tokenizer's file."""
    with open_regular(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise DataError(f"{path} is larger than a tokenizer is", "check the path")
    return content.decode("utf-8")


def tokenizer_of(content: str) -> Any:
    """A tokenizer from the content of its file, which fills nothing up and cuts nothing off."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("tokenizers, which reads tokenizer files,", "text") from None
    with _told("the tokenizer cannot be read"):
        _check_growth(parse_json(content))
        with _unsaid():
            found = Tokenizer.from_str(content)
        found.no_padding()
        found.no_truncation()
        return found


def highest_id(tokenizer: Any) -> int:
    """The largest id that a tokenizer gives; added tokens may lie beyond its vocabulary."""
    known = tokenizer.get_vocab(with_added_tokens=True)
    highest = max(known.values(), default=0)
    if highest >= MOST_IDS:
        raise DataError(f"the tokenizer has id {highest}", f"use one with ids below {MOST_IDS}")
    return highest


def token_ids(tokenizer: Any, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """The ids of every text.

    Args:
        tokenizer: from `tokenizer_of`.
        texts: raw.
        special: whether the tokenizer's own tokens stand at the start and end.
    """
    with _told("the tokenizer fails on a text"):
        found = tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return [each.ids for each in found]


@contextmanager
def _told(problem: str) -> Iterator[None]:
    """Whatever the library raises as one line; its panics are no `Exception`."""
    try:
        yield
    except FedmetaError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        first = next(iter(str(error).splitlines()), type(error).__name__)
        remedy = "give a tokenizer.json of tokenizers"
        raise DataError(f"{problem} ({first[:200]})", remedy) from None


@contextmanager
def _unsaid() -> Iterator[None]:
    """What the library writes to standard error by itself, when it panics, is dropped."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_growth(rules: Any) -> None:
    """Refuse rules by which a short text becomes a very long one, or a long word takes for ever."""
    growth = 1
    for rule in _rules(rules):
        kind = rule.get("type")
        added = str(rule.get({"Replace": "content", "Prepend": "prepend"}.get(str(kind), ""), ""))
        growth *= 1 + len(added) if len(added) > 1 else 1
        longest = rule.get("max_input_chars_per_word", 0)
        if growth > _GROWTH or (isinstance(longest, int) and longest > _WORD):
            raise DataError("the tokenizer makes texts far longer", "use one that does not")


def _rules(value: Any) -> Iterator[Mapping[str, Any]]:
    """All tables in the parts of a tokenizer that look at texts, but its vocabulary."""
    if isinstance(value, Mapping):
        yield value
        for name, each in value.items():
            if name not in ("vocab", "merges", "added_tokens"):
                yield from _rules(each)
    elif isinstance(value, list):
        for each in value:
            yield from _rules(each)
