"""Whose key it is that masks are agreed on with: exchange keys, signed by node keys.

The platform carries the keys that edges agree on masks with. So that it cannot put its own in their
place, an edge signs its exchange key with its node key, whose certificate the fleet's authority has
signed (`certificates`); every edge has the authority's own. Without node keys (--insecure) nothing
is signed, and the platform is trusted to carry keys as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmeta.core.storage import write_bytes, writing
from fedmeta.uplink.exchange_keys import SECRET_BYTES, ExchangeKey
from fedmeta.uplink.whole_numbers import MaskingError

_FILE = "exchange.key"  # in the edge's folder


def exchange_key(home: Path) -> ExchangeKey:
    """The edge's key, in a file that only its owner can read; made when it is asked for first."""
    file = home / _FILE
    if not file.exists():
        with writing(file):
            home.mkdir(parents=True, exist_ok=True)
        write_bytes(file, ExchangeKey.new().kept, mode=0o600)
    kept = file.read_bytes()
    if len(kept) != SECRET_BYTES:
        raise MaskingError(f"{file} is damaged", "delete it, and start a new run")
    return ExchangeKey(kept)


def identity(home: Path, name: str, certs: str, run: str) -> str:
    """An edge's public exchange key and the proof that it is its own, as text.

    Args:
        home: folder of the edge.
        name: of the edge.
        certs: folder with its node key and that key's certificate; empty: there are none.
        run: the proof is for.
    """
    public = exchange_key(home).public
    if not certs:
        return json.dumps({"public": public})
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedmeta.fleet.certificates import certificate_of

    place = Path(certs) / "nodes" / name
    try:
        certificate = certificate_of(Path(certs), name).read_text(encoding="ascii")
        key = serialization.load_ssh_private_key(place.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise MaskingError(
            f"edge {name} cannot prove whose key for masks it has ({error})",
            f"make {place}.crt with fedmeta certs, and put it beside the key",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise MaskingError(f"{place} is no elliptic-curve key", "make one of ecdsa, 384 bits")
    signature = key.sign(_statement(run, name, public), ec.ECDSA(hashes.SHA384()))
    proof = {"public": public, "certificate": certificate, "signature": signature.hex()}
    return json.dumps(proof)


def verified(identities: Mapping[str, str], certs: str, run: str) -> dict[str, str]:
    """Public exchange keys by name, each of them proven to be its owner's.

    Args:
        identities: as the platform has carried them, by name.
        certs: folder with the authority's certificate; empty: nothing is proven.
        run: the proofs must be for.

    Raises:
        MaskingError: one is not its owner's.
    """
    keys = {}
    for name, text in identities.items():
        try:
            proof = json.loads(text)
            keys[name] = str(proof["public"])
            if certs:
                _check(proof, name, run, Path(certs) / "ca.crt")
        except (ValueError, KeyError, TypeError) as error:
            raise MaskingError(
                f"the key for masks of edge {name} is not signed by it ({error or 'false'})",
                "make certificates of all node keys with fedmeta certs; else ask who runs the "
                "platform",
            ) from error
    return keys


def _check(proof: Mapping[str, Any], name: str, run: str, authority: Path) -> None:
    """Raise ValueError, KeyError or TypeError unless the proof is one."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    trusted = x509.load_pem_x509_certificate(authority.read_bytes())
    certificate = x509.load_pem_x509_certificate(str(proof["certificate"]).encode())
    try:
        certificate.verify_directly_issued_by(trusted)
        named = [
            one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        if named != [name]:
            raise ValueError("the certificate is of another")
        now = datetime.now(UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise ValueError("the certificate has expired")
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("the certificate is of another kind of key")
        signature = bytes.fromhex(str(proof["signature"]))
        statement = _statement(run, name, str(proof["public"]))
        key.verify(signature, statement, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise ValueError("a signature is false") from None


def _statement(run: str, name: str, public: str) -> bytes:
    """What is signed."""
    return json.dumps(["fedmeta exchange key", run, name, public]).encode()
