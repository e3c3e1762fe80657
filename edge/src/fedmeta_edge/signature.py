"""Who wrote a model file: an Ed25519 signature in a file beside it, FILE.onnx.sig."""

from __future__ import annotations

from pathlib import Path

from fedmeta_edge.errors import EdgeError


def beside(path: Path) -> Path:
    """Where the signature of a model file lies."""
    return path.with_name(path.name + ".sig")


def check_signature(path: Path, content: bytes, public_key: Path) -> None:
    """Refuse a model file that the owner of a key has not signed.

    Args:
        path: of the model file; its signature, in hexadecimal digits, is in PATH.sig.
        content: of the model file.
        public_key: a PEM file with an Ed25519 public key.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise EdgeError(
            "cryptography, which checks signatures, is not installed",
            "pip install 'fedmeta-edge[signatures]'",
        ) from None
    try:
        key = load_pem_public_key(public_key.read_bytes())
    except Exception as error:  # cryptography has kinds of its own for keys it does not know
        raise EdgeError(f"{public_key} holds no public key ({error})", "give a PEM file") from None
    if not isinstance(key, Ed25519PublicKey):
        raise EdgeError(f"{public_key} holds a key of another kind", "give an Ed25519 key")
    there = beside(path)
    try:
        signature = bytes.fromhex(there.read_text(encoding="ascii")[:200])
    except (OSError, ValueError):
        raise EdgeError(
            f"{path} is not signed: there is no signature in {there}",
            "export it with --sign KEY, and copy both files",
        ) from None
    try:
        key.verify(signature, content)
    except InvalidSignature:
        raise EdgeError(
            f"{path} was not signed by the owner of {public_key}", "do not use this file"
        ) from None
