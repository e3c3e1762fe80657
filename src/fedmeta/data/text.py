"""How texts become inputs: numbers of words, tokens of a tokenizer, or sentence embeddings.

Which it is travels with the model, a tokenizer with its whole vocabulary, so that a device's texts
become what training saw. Nothing is learned from the texts: words are numbered by a checksum, so
that no node tells which it uses.

    words      word → 1 + crc32(word) mod (V − 1), case apart, marks as words of their own
    tokenizer  id + 1, ids as a file of the `tokenizers` library has them
    embedding  a vector of numbers per text, by a frozen sentence encoder

Number 0 is what shorter texts are filled up with.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedmeta.core.errors import DataError
from fedmeta.core.input_files import check_input
from fedmeta.data.columns import Table
from fedmeta.data.faults import Faults, counted, rows_where
from fedmeta.data.pool import Array
from fedmeta.data.sentences import encoder, encoder_digest
from fedmeta.data.tokenizer import highest_id, token_ids, tokenizer_of, tokenizer_text

BY_WORDS = "words"
_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_tokenizer = lru_cache(maxsize=2)(tokenizer_of)


def words_of(text: str) -> list[str]:
    """The words and marks of a text, in lower case.

    Example:
        >>> words_of("Isn't it GOOD?")
        ['isn', "'", 't', 'it', 'good', '?']
    """
    return _WORD.findall(text.casefold())


def word_numbers(text: str, vocabulary: int) -> list[int]:
    """A number from 1 on for every word of a text, the same on every machine.

    Two words may share one: of V numbers and k words a word keeps its own with probability
    about exp(−k/V).

    Example:
        >>> word_numbers("good, good", 1000)
        [627, 72, 627]
    """
    return [1 + zlib.crc32(word.encode()) % (vocabulary - 1) for word in words_of(text)]


@dataclass(frozen=True)
class TextEncoding:
    """How the texts of a column become inputs.

    Args:
        column: name of the column.
        length: tokens per text: longer texts are cut, shorter ones filled up with 0.
        vocabulary: how many numbers there are, 0 included; 0 for embeddings.
        tokenizer: a file of the `tokenizers` library, as text; empty: words, or an embedding.
        embedding: "minilm" or the folder of an encoder; empty: tokens.
        digest: of the encoder's weights.

    Example:
        >>> encoding = TextEncoding("body", length=4, vocabulary=1000)
        >>> encoding.inputs(["Good, good", ""]).tolist()
        [[627.0, 72.0, 627.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        >>> TextEncoding.from_facts(encoding.facts()) == encoding
        True
    """

    column: str
    length: int = 0
    vocabulary: int = 0
    tokenizer: str = field(default="", repr=False)
    embedding: str = ""
    digest: str = ""

    @property
    def tokens(self) -> bool:
        """Whether inputs are whole numbers that a network looks up."""
        return not self.embedding

    def facts(self) -> dict[str, Any]:
        """As plain values, for the header of a model file."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TextEncoding:
        """The inverse of `facts`."""
        column, tokenizer, embedding, digest = (
            str(facts[name]) for name in ("column", "tokenizer", "embedding", "digest")
        )
        length, vocabulary = (int(facts[name]) for name in ("length", "vocabulary"))
        found = cls(column, length, vocabulary, tokenizer, embedding, digest)
        if found.tokens and not (found.length >= 1 and found.vocabulary >= 2):
            raise ValueError("its text has no length or vocabulary")
        return found

    def inputs(self, texts: Sequence[str]) -> Array:
        """(N, length) numbers of tokens, or (N, width) embeddings, as float32."""
        if self.embedding:
            if encoder_digest(self.embedding) != self.digest:
                raise DataError(
                    f"the sentence encoder {self.embedding!r} here is another than the model was "
                    "trained with",
                    "install or name the same one",
                )
            return encoder(self.embedding).embeddings(texts)
        whole = sum(map(len, texts))
        check_input(f"{len(texts)} texts", 4 * len(texts) * self.length, whole)
        found = np.zeros((len(texts), self.length), np.float32)
        for row, numbers in enumerate(self.numbers(texts)):
            found[row, : len(numbers)] = numbers[: self.length]
        return found

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of every text, all of them."""
        if not self.tokenizer:
            return [word_numbers(text, self.vocabulary) for text in texts]
        found = token_ids(_tokenizer(self.tokenizer), texts)
        return [[1 + number for number in each] for each in found]


def text_encoding(
    column: str, tokenizer: str, embedding: str | None, length: int, vocabulary: int
) -> TextEncoding:
    """The encoding that settings ask for.

    Args:
        column: with the texts.
        tokenizer: "words" or the path of a tokenizer's file.
        embedding: "minilm" or the folder of an encoder; None: tokens.
        length: tokens per text.
        vocabulary: how many numbers words get.
    """
    if embedding is not None:
        return TextEncoding(column, embedding=embedding, digest=encoder_digest(embedding))
    if tokenizer == BY_WORDS:
        return TextEncoding(column, length, vocabulary)
    try:
        content = tokenizer_text(Path(tokenizer).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"there is no tokenizer {tokenizer!r} that can be read ({error})",
            'give "words" or the path of a tokenizer.json',
        ) from None
    return TextEncoding(column, length, 2 + highest_id(_tokenizer(content)), tokenizer=content)


def encoded_texts(
    table: Table, encoding: TextEncoding, faults: Faults, notes: list[str], forgiving: bool
) -> tuple[Array, Array]:
    """The inputs of a column of texts, and which rows have none.

    Args:
        table: has the column, or that is a fault.
        encoding: how.
        faults: collects what is wrong.
        notes: collects what people should know.
        forgiving: whether rows without a text are no fault.
    """
    none = np.zeros(table.rows, np.bool_)
    if encoding.column not in table.names:
        faults.add(f"it has no column {encoding.column!r} with the texts", "name it with --text")
        return np.zeros((table.rows, 1), np.float32), none
    column = table.column(encoding.column, written=True)
    if len(column.codes) != table.rows:
        faults.add(f"column {encoding.column!r} holds lists or objects", "give texts")
        return np.zeros((table.rows, 1), np.float32), none
    gaps = column.gaps
    if gaps.any() and not forgiving:
        faults.add(
            f"column {encoding.column!r} has no text in {counted(gaps.sum(), 'row')}",
            "leave such rows out: --missing drop",
            rows_where(gaps),
        )
    # Every text once; the last row is for rows that have none.
    found = encoding.inputs([*column.texts, ""])[column.codes]
    if encoding.tokens:
        lengths = np.array([*map(len, encoding.numbers([*column.texts, ""]))])[column.codes]
        if (cut := int((lengths > encoding.length).sum())) > 0:
            notes.append(
                f"{counted(cut, 'text')} of more than {encoding.length} tokens (the longest has "
                f"{lengths.max()}) cut there: --text-length"
            )
    return found, gaps
