"""Keys that two parties agree on secrets with, and encryption under these: X25519, AES-256-GCM."""

from __future__ import annotations

import secrets
from types import ModuleType

from fedmeta.core.errors import MissingExtraError
from fedmeta.uplink.whole_numbers import MaskingError

SECRET_BYTES = 32
_NONCE = 12  # bytes


class ExchangeKey:
    """A private key for agreeing on secrets with others; 32 bytes.

    Example:
        >>> one, other = ExchangeKey.new(), ExchangeKey.new()
        >>> one.agreed(other.public, b"") == other.agreed(one.public, b"")
        True
    """

    def __init__(self, kept: bytes) -> None:
        self.kept = kept
        self._private = _x25519().X25519PrivateKey.from_private_bytes(kept)

    @classmethod
    def new(cls) -> ExchangeKey:
        """A key from the system's randomness."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def public(self) -> str:
        """What the others need of it."""
        raw: bytes = self._private.public_key().public_bytes_raw()
        return raw.hex()

    def agreed(self, other: str, purpose: bytes) -> bytes:
        """32 bytes that the owners of both keys know, and nobody else (HKDF-SHA256)."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        try:
            theirs = _x25519().X25519PublicKey.from_public_bytes(bytes.fromhex(other))
            common = self._private.exchange(theirs)
        except ValueError as error:
            raise MaskingError("another edge's key is none", "start it again") from error
        return HKDF(hashes.SHA256(), SECRET_BYTES, None, b"fedmeta masks " + purpose).derive(common)


def encrypted(key: bytes, plain: bytes, bound: bytes) -> str:
    """Text that only the key opens, and only together with what it is bound to."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE)
    return (nonce + AESGCM(key).encrypt(nonce, plain, bound)).hex()


def decrypted(key: bytes, text: str, bound: bytes) -> bytes | None:
    """The inverse of `encrypted`; None: it was not made with this key, or was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        sent = bytes.fromhex(text)
        return AESGCM(key).decrypt(sent[:_NONCE], sent[_NONCE:], bound)
    except (InvalidTag, ValueError):
        return None


def _x25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise MissingExtraError("cryptography, which makes keys of masks,", "flower") from None
    return x25519
