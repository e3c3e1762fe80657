"""Signatures of exported files: Ed25519, in FILE.sig beside them, which `fedmeta-edge` checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmeta.core.errors import MissingExtraError, SettingError
from fedmeta.core.storage import write_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign(file: Path, key: Path) -> Path:
    """Sign a file with a private key; returns the path of the signature.

    Args:
        file: what is signed, as it is now.
        key: a PEM file with an Ed25519 private key without a password.
    """
    signature = _private_key(key).sign(file.read_bytes())
    beside = file.with_name(file.name + ".sig")
    write_bytes(beside, signature.hex().encode() + b"\n")
    return beside


def check_key(key: Path) -> None:
    """Refuse a file that holds no such key, before anything is exported."""
    _private_key(key)


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise MissingExtraError("cryptography, which signs,", "sign") from None
    make = f"make one with openssl genpkey -algorithm ed25519 -out {path}"
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise SettingError(f"there is no key {path}", make) from None
    except Exception as error:  # cryptography has kinds of its own for keys it does not know
        raise SettingError(f"{path} holds no private key ({error})", make) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingError(f"{path} holds a key of another kind", make)
    return key
