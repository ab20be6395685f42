"""Clients use a renewed certificate for their next connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.clock import SystemClock
from pipeline.kafka.client import ssl_context
from pipeline.local.pki import Authority, Pair
from pipeline.settings import KafkaSettings
from pipeline.tls import RenewedContext


@asynccontextmanager
async def server(authority: Authority) -> AsyncIterator[int]:
    """A TLS server that answers with the user of the client's certificate; its port."""
    pair = authority.server("server", ["127.0.0.1"], [])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pair.public, pair.private)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subject = dict(entry[0] for entry in writer.get_extra_info("peercert")["subject"])
        writer.write(subject["commonName"].encode() + b"\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def user_seen(port: int, context: ssl.SSLContext) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    line = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    return line.decode().strip()


def put(pair: Pair, target: Pair) -> None:
    """Replace files as a renewal does."""
    for new, old in zip(pair, target, strict=True):
        renewed = old.with_suffix(".new")
        renewed.write_bytes(new.read_bytes())
        renewed.replace(old)


async def test_a_kafka_client_connects_with_the_renewed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, SystemClock())
    in_use = Pair(tmp_path / "in-use.crt", tmp_path / "in-use.key")
    put(authority.client("old"), in_use)
    kafka = KafkaSettings(
        security_protocol="SSL", ssl_ca_file=authority.certificate,
        ssl_cert_file=in_use.public, ssl_key_file=in_use.private,
    )  # fmt: skip
    context = ssl_context(kafka)
    assert context is not None
    async with server(authority) as port:
        assert await user_seen(port, context) == "old"
        in_use.public.write_bytes(b"half-writ")
        assert await user_seen(port, context) == "old"
        put(authority.client("new"), in_use)
        assert await user_seen(port, context) == "new"


async def test_a_renewed_authority_replaces_the_former(tmp_path: Path) -> None:
    for name in ("former", "renewed"):
        (tmp_path / name).mkdir()
    former, renewed = (Authority(tmp_path / n, SystemClock()) for n in ("former", "renewed"))
    file = tmp_path / "ca.crt"
    file.write_bytes(former.certificate.read_bytes())

    def create() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(file))
        client = renewed.client("user")
        context.load_cert_chain(client.public, client.private)
        return context

    context = RenewedContext(create, [file])
    async with server(renewed) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await user_seen(port, context)
        file.write_bytes(renewed.certificate.read_bytes())
        assert await user_seen(port, context) == "user"
