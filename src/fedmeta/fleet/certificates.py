"""Keys of a trial fleet: an authority, the platform's certificate, and a key for every node.

A folder holds all of it; only what is named is for others to read:

    ca.crt  server.pem      give ca.crt to every edge: it tells the platform from an impostor
    nodes/NAME.pub          the platform registers it: it tells this edge from a stranger
    nodes/NAME.crt          goes with its key: it tells this edge from a stranger to other edges
    revoked/NAME.pub        keys that the platform must not register again
    ca.key  server.key  nodes/NAME    secrets, readable by their owner alone

A fleet in earnest gets certificates from the authority its organisation already has, and makes each
node's key on the node (`ssh-keygen -t ecdsa -b 384`), so that no key ever travels.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedmeta.core.errors import MissingExtraError, SettingError, require
from fedmeta.core.storage import private_folder, write_bytes, writing

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtraError("cryptography, which makes keys,", "flower") from None

_DAYS = 365  # a trial does not last longer
_SECRET, _PUBLIC = 0o600, 0o644
_SKEW = timedelta(hours=1)  # clocks of small devices are late
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class KeyPair:
    """Where a key lies, and what others may see of it.

    Args:
        public: certificate (PEM) of an authority or a server, public key (OpenSSH) of a node.
        secret: the private key, a file with mode 0600.
    """

    public: Path
    secret: Path


def make_authority(folder: Path) -> KeyPair:
    """The authority of a folder, made where there is none; it signs the platform's certificate."""
    pair = KeyPair(folder / "ca.crt", folder / "ca.key")
    if pair.public.exists() and pair.secret.exists():
        return pair
    if pair.public.exists() or pair.secret.exists():
        raise SettingError(
            f"{folder} holds half an authority ({pair.public.name} or {pair.secret.name} is gone)",
            "restore the other file, or start with an empty folder",
        )
    key, name = _new_key(), _called("fedmeta trial authority")
    certificate = (
        _certificate(name, name, key.public_key(), signs=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _store(pair, certificate.public_bytes(serialization.Encoding.PEM), _secret(key))
    return pair


def make_server(folder: Path, hosts: Sequence[str]) -> KeyPair:
    """A certificate of the platform, signed by the folder's authority; an older one is replaced.

    It holds for the names and addresses under which edges reach the platform.
    """
    require(len(hosts) > 0, "hosts", hosts, "at least one name or address of the platform")
    names = x509.SubjectAlternativeName([_host(each) for each in hosts])
    authority, signer = _load_authority(folder)
    key, pair = _new_key(), KeyPair(folder / "server.pem", folder / "server.key")
    certificate = (
        _certificate(_called(hosts[0]), authority.subject, key.public_key(), signs=False)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA384())
    )
    _store(pair, certificate.public_bytes(serialization.Encoding.PEM), _secret(key))
    return pair


def server_name(folder: Path) -> str:
    """The first name or address in the platform's certificate: what edges reach it by."""
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return str(next(iter(names)).value)


def make_node(folder: Path, name: str) -> KeyPair:
    """The key that a node proves itself with (P-384, in OpenSSH's format, as Flower wants it)."""
    pair = _node_pair(folder, name)
    for taken in (pair.secret, pair.public, _revoked(folder, name)):
        if taken.exists():
            raise SettingError(
                f"there is a key of a node {name!r} already ({taken})", "choose another name"
            )
    key = _new_key()
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    secret = _secret(key, serialization.PrivateFormat.OpenSSH)
    _store(pair, public + f" {name}\n".encode(), secret)
    return pair


def certify_nodes(folder: Path) -> list[Path]:
    """Certificates of all node keys that have none yet, signed by the folder's authority.

    With it other edges can tell whose key it is without asking the platform, see `mask_identity`.
    """
    made = []
    for name, public in node_keys(folder).items():
        place = certificate_of(folder, name)
        if place.exists():
            continue
        authority, signer = _load_authority(folder)
        key = serialization.load_ssh_public_key(public.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SettingError(f"{public} is no elliptic-curve key", "make one of ecdsa, 384 bits")
        certificate = _certificate(_called(name), authority.subject, key, signs=False)
        content = certificate.sign(signer, hashes.SHA384())
        write_bytes(place, content.public_bytes(serialization.Encoding.PEM), _PUBLIC)
        made.append(place)
    return made


def certificate_of(folder: Path, name: str) -> Path:
    """Where the certificate of a node's key lies."""
    return folder / "nodes" / f"{name}.crt"


def node_keys(folder: Path) -> dict[str, Path]:
    """Public keys of the nodes that may join, by name and in its order."""
    return {path.stem: path for path in sorted((folder / "nodes").glob("*.pub"))}


def revoke_node(folder: Path, name: str) -> Path:
    """Take a node's key out of those that may join; returns where its public half lies now.

    The secret half is removed if it lies here. A platform that runs must be told besides, see
    `fedmeta.cli.certs`: what it has registered it keeps in its own database.
    """
    pair, place = _node_pair(folder, name), _revoked(folder, name)
    if place.exists():
        return place
    if not pair.public.exists():
        known = ", ".join(node_keys(folder)) or "none"
        raise SettingError(f"there is no key of a node {name!r} in {folder}", f"known: {known}")
    with writing(place):
        place.parent.mkdir(exist_ok=True)
        pair.public.rename(place)
        pair.secret.unlink(missing_ok=True)
        certificate_of(folder, name).unlink(missing_ok=True)
    return place


def _node_pair(folder: Path, name: str) -> KeyPair:
    require(
        _NAME.fullmatch(name) is not None and not name.endswith((".pub", ".crt")),
        "name",
        name,
        "letters, digits, dots, dashes and underscores",
    )
    return KeyPair(folder / "nodes" / f"{name}.pub", folder / "nodes" / name)


def _revoked(folder: Path, name: str) -> Path:
    return folder / "revoked" / f"{name}.pub"


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except FileNotFoundError as error:
        raise SettingError(
            f"{folder} has no authority ({Path(error.filename).name} is missing)",
            "make one with make_authority, or fedmeta certs",
        ) from None
    except ValueError as error:
        raise SettingError(
            f"the authority in {folder} is damaged ({error})", "restore it"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{folder}/ca.key is no elliptic-curve key", "make a new authority")
    return certificate, key


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _secret(
    key: ec.EllipticCurvePrivateKey,
    how: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, how, serialization.NoEncryption())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        plain = host.isascii() and host != "" and not re.search(r"[\s:/]", host)
        require(plain, "host", host, "a name or an address, without a port")
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, signs: bool
) -> x509.CertificateBuilder:
    """What certificates of an authority, which `signs`, and of a server have in common."""
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(signs, 0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _store(pair: KeyPair, public: bytes, secret: bytes) -> None:
    private_folder(pair.public.parent)
    write_bytes(pair.secret, secret, _SECRET)
    write_bytes(pair.public, public, _PUBLIC)
