"""Keys of a trial fleet: what they are good for, and who may read them."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedmeta.core.errors import SettingError
from fedmeta.fleet.certificates import (
    certificate_of,
    certify_nodes,
    make_authority,
    make_node,
    make_server,
    node_keys,
    revoke_node,
)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """A TLS handshake in memory; raises what the client or server would."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(10):
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return
    raise AssertionError("the handshake does not end")


def contexts(folder: Path, trusted: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    return server, ssl.create_default_context(cafile=str(trusted / "ca.crt"))


def test_edges_trust_the_platform_under_its_hosts_alone(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_server(tmp_path, ["platform.example", "127.0.0.1"])
    server, client = contexts(tmp_path, tmp_path)
    handshake(server, client, "platform.example")
    handshake(server, client, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, "impostor.example")


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        make_authority(tmp_path / name)
    make_server(tmp_path / "mine", ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(*contexts(tmp_path / "mine", tmp_path / "other"), "localhost")


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)  # the most careless one
    try:
        pairs = [
            make_authority(tmp_path),
            make_server(tmp_path, ["localhost"]),
            make_server(tmp_path, ["localhost"]),  # replaced
            make_node(tmp_path, "edge-1"),
        ]
    finally:
        os.umask(before)
    assert {stat.S_IMODE(pair.secret.stat().st_mode) for pair in pairs} == {0o600}
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    first = make_authority(tmp_path).public.read_bytes()
    assert make_authority(tmp_path).public.read_bytes() == first
    (tmp_path / "ca.key").unlink()
    with pytest.raises(SettingError, match="half an authority"):
        make_authority(tmp_path)


def test_the_authority_can_sign_only_servers(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_server(tmp_path, ["localhost"])
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "server.pem")
    )
    server.verify_directly_issued_by(authority)
    limits = server.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not limits.ca
    assert (
        authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    )


def test_a_nodes_key_is_what_flower_reads(tmp_path: Path) -> None:
    pair = make_node(tmp_path, "edge-1")
    secret = serialization.load_ssh_private_key(pair.secret.read_bytes(), None)
    public = serialization.load_ssh_public_key(pair.public.read_bytes())
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp384r1"
    assert secret.public_key() == public
    assert pair.public.read_text().endswith(" edge-1\n")


def test_certificates_of_node_keys_that_the_authority_signs(tmp_path: Path) -> None:
    make_authority(tmp_path)
    pair = make_node(tmp_path, "edge-1")
    assert certify_nodes(tmp_path) == [certificate_of(tmp_path, "edge-1")]
    assert certify_nodes(tmp_path) == []  # once
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    own = x509.load_pem_x509_certificate(certificate_of(tmp_path, "edge-1").read_bytes())
    own.verify_directly_issued_by(authority)
    assert own.public_key() == serialization.load_ssh_public_key(pair.public.read_bytes())
    assert own.subject.rfc4514_string() == "CN=edge-1"
    revoke_node(tmp_path, "edge-1")
    assert not certificate_of(tmp_path, "edge-1").exists()


def test_a_revoked_key_cannot_join_nor_come_back(tmp_path: Path) -> None:
    pair = make_node(tmp_path, "edge-1")
    make_node(tmp_path, "edge-2")
    assert list(node_keys(tmp_path)) == ["edge-1", "edge-2"]
    assert revoke_node(tmp_path, "edge-1") == revoke_node(tmp_path, "edge-1")
    assert list(node_keys(tmp_path)) == ["edge-2"]
    assert not pair.secret.exists()
    with pytest.raises(SettingError, match="choose another name"):
        make_node(tmp_path, "edge-1")
    with pytest.raises(SettingError, match="known: edge-2"):
        revoke_node(tmp_path, "edge-3")


@pytest.mark.parametrize("name", ["", "../ca", "a/b", ".hidden", "x.pub", "a b", "n" * 64])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="letters, digits"):
        make_node(tmp_path, name)


@pytest.mark.parametrize("hosts", [[], ["localhost:80"], ["https://x"], [""], ["bücher.example"]])
def test_hosts_that_are_none_are_refused(tmp_path: Path, hosts: list[str]) -> None:
    make_authority(tmp_path)
    with pytest.raises(SettingError, match="name or a"):
        make_server(tmp_path, hosts)


def test_a_server_needs_an_authority(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no authority"):
        make_server(tmp_path, ["localhost"])
