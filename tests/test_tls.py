"""Clients use a renewed certificate for their next connection."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.kafka.client import ssl_context
from pipeline.kube.api_access import api_access
from pipeline.local.pki import Authority, Pair
from pipeline.settings import KafkaSettings, KubernetesSettings
from pipeline.tls import https_context


@asynccontextmanager
async def server(
    authority: Authority, verify_mode: ssl.VerifyMode = ssl.CERT_REQUIRED
) -> AsyncIterator[int]:
    """A TLS server that answers with the user of the client's certificate, if it requires one; its
    port."""
    pair = authority.server("server", ["127.0.0.1"], [])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = verify_mode
    context.load_cert_chain(pair.public, pair.private)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert") or {"subject": ()}
        subject = dict(entry[0] for entry in certificate["subject"])
        writer.write(subject.get("commonName", "").encode() + b"\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def user_seen(port: int, context: ssl.SSLContext) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return line.decode().strip()


def put(pair: Pair, target: Pair) -> None:
    """Replace files as a renewal does."""
    for new, old in zip(pair, target, strict=True):
        renewed = old.with_suffix(".new")
        renewed.write_bytes(new.read_bytes())
        renewed.replace(old)


def kafka_context(authority: Authority, pair: Pair) -> ssl.SSLContext:
    kafka = KafkaSettings(
        security_protocol="SSL", ssl_ca_file=authority.certificate,
        ssl_cert_file=pair.public, ssl_key_file=pair.private,
    )  # fmt: skip
    context = ssl_context(kafka)
    assert context is not None
    return context


def api_context(authority: Authority, pair: Pair) -> ssl.SSLContext:
    name = {"name": "a"}
    cluster = {"server": "https://127.0.0.1", "certificate-authority": str(authority.certificate)}
    user = {"client-certificate": str(pair.public), "client-key": str(pair.private)}
    file = pair.public.with_name("kubeconfig")
    tree = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [name | {"cluster": cluster}], "users": [name | {"user": user}],
        "contexts": [name | {"context": {"cluster": "a", "user": "a"}}],
    }  # fmt: skip
    file.write_text(json.dumps(tree))
    access = api_access(KubernetesSettings(kubeconfig=file))
    assert access.tls is not None
    return access.tls


@pytest.mark.parametrize("create", [kafka_context, api_context])
async def test_a_client_connects_with_the_renewed_certificate(
    create: Callable[[Authority, Pair], ssl.SSLContext], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, SystemClock())
    in_use = Pair(tmp_path / "in-use.crt", tmp_path / "in-use.key")
    put(authority.client("old"), in_use)
    context = create(authority, in_use)
    async with server(authority) as port:
        assert await user_seen(port, context) == "old"
        in_use.public.write_bytes(b"half-writ")
        assert await user_seen(port, context) == "old"
        put(authority.client("new"), in_use)
        assert await user_seen(port, context) == "new"


async def test_a_renewed_authority_replaces_the_former(tmp_path: Path) -> None:
    """Prometheus, whose client has no certificate."""
    for name in ("former", "renewed"):
        (tmp_path / name).mkdir()
    former, renewed = (Authority(tmp_path / n, SystemClock()) for n in ("former", "renewed"))
    file = tmp_path / "ca.crt"
    file.write_bytes(former.certificate.read_bytes())
    context = https_context("provider.ca_file", file)
    async with server(renewed, verify_mode=ssl.CERT_NONE) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await user_seen(port, context)
        file.write_bytes(renewed.certificate.read_bytes())
        assert await user_seen(port, context) == ""
