"""Random bits that nobody can foresee or trace back: what noise and masks are made of.

`randomness` is a function of the run's seed and can be inverted; that is right for what a run must
be able to repeat, and wrong for whatever protects somebody. Here bits are the key stream of AES-256
in counter mode. Its key comes from the operating system, lives in the memory of one process, and is
written nowhere: what was drawn cannot be drawn again.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmeta.core.errors import MissingExtraError

KEY_BYTES = 32
Words = NDArray[np.uint64]


def fresh_key() -> bytes:
    """A key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def keystream(key: bytes, words: int) -> Words:
    """The first numbers of 64 bits of a key's stream.

    Example:
        >>> [f"{word:016x}" for word in keystream(bytes(32), 2)]
        ['898940a278c095dc', '8720849214a248ad']
    """
    return SecretRandom(key).words(words)


class SecretRandom:
    """A stream of secret bits, each handed out once.

    Args:
        key: of 32 bytes; None, for all but tests: a fresh one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key, self._process = key or fresh_key(), os.getpid()
        self._stream: Any = None

    def words(self, count: int) -> Words:
        """The next numbers of 64 bits."""
        if self._process != os.getpid():  # a forked process must not draw what its parent draws
            self._key, self._process, self._stream = fresh_key(), os.getpid(), None
        if self._stream is None:
            self._stream = _stream(self._key)
        drawn: bytes = self._stream.update(bytes(8 * count))
        return np.frombuffer(drawn, "<u8")

    def whole(self, bits: int) -> int:
        """The next bits as one number, a multiple of 64 of them."""
        return int.from_bytes(self.words(bits // 64).tobytes(), "big")


def _stream(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtraError(
            "cryptography, which noise and masks are drawn with,", "dp"
        ) from None
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
