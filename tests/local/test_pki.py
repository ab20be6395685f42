"""Certificates that TLS itself believes, and nobody else's."""

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import SystemClock
from pipeline.local.pki import Authority, Pair, key_pair


def greet(server: Pair, client: Pair, authority: Path, name: str = "localhost") -> dict[str, str]:
    """The subject of the client that a server saw."""
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    ours.load_cert_chain(server.public, server.private)
    ours.verify_mode = ssl.CERT_REQUIRED
    theirs = ssl.create_default_context(cafile=str(authority))
    theirs.load_cert_chain(client.public, client.private)
    here, there = socket.socketpair()
    here.settimeout(10)
    there.settimeout(10)
    seen: dict[str, str] = {}

    def serve() -> None:
        with ours.wrap_socket(here, server_side=True) as greeted:
            certificate: Any = greeted.getpeercert()
            seen.update(part for (part,) in certificate["subject"])
            greeted.send(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with theirs.wrap_socket(there, server_hostname=name) as greeting:
            greeting.recv(1)
    finally:
        there.close()
        thread.join()
        here.close()
    return seen


def test_server_and_client_trust_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path, SystemClock())
    server = authority.server("api", ["127.0.0.1"], ["localhost"])
    client = authority.client("system:node:n", ["system:nodes"])
    for name in ("localhost", "127.0.0.1"):
        seen = greet(server, client, authority.certificate, name)
        assert seen == {"organizationName": "system:nodes", "commonName": "system:node:n"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_server_with_another_name_is_not_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path, SystemClock())
    server = authority.server("api", ["127.0.0.1"], ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        greet(server, authority.client("u"), authority.certificate, "other")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_certificate_of_another_ca_is_not_trusted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (Authority(tmp_path / name, SystemClock()) for name in ("a", "b"))
    server = other.server("api", [], ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(server, one.client("u"), one.certificate)


def test_private_keys_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    pairs = [
        Authority(tmp_path, SystemClock()).client("a:b"),
        key_pair(tmp_path, "service-accounts"),
    ]
    assert [pair.private.name for pair in pairs] == ["a-b.key", "service-accounts.key"]
    for pair in pairs:
        assert pair.private.stat().st_mode & 0o077 == 0
        assert "PRIVATE KEY" in pair.private.read_text()
        assert "PRIVATE" not in pair.public.read_text()
