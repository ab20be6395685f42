"""HTTPS with real certificates: a scheduler's client, one without a certificate, a renewal."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pipeline.cli.main import cli
from pipeline.errors import SettingsError
from pipeline.extender.server_tls import Tls
from pipeline.settings import ExtenderSettings
from tests.extender.conftest import start_service


class Signed(NamedTuple):
    """Files of a certificate and its key, and what signs others with them."""

    cert: Path
    key: Path
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey


def sign(folder: Path, name: str, by: Signed | None = None, serial: int = 1) -> Signed:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(private.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .sign(by.private if by else private, hashes.SHA256())
    )
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Signed(cert, key, certificate, private)


async def serial(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that is shown on a new connection."""
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


@asynccontextmanager
async def served(own: Signed, ca: Signed) -> AsyncIterator[int]:
    """The port of an extender with client certificates, whose table never catches up."""
    settings = ExtenderSettings(
        host="127.0.0.1", port=0, tls_cert_file=str(own.cert), tls_key_file=str(own.key),
        tls_client_ca_file=str(ca.cert),
    )  # fmt: skip
    stop = asyncio.Event()
    serving, port = await start_service(stop, settings=settings, linger_seconds=0.0)
    try:
        yield port
    finally:
        stop.set()
        await serving


async def test_https_with_client_certificates_and_a_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.extender.limits.CERTIFICATE_CHECK_SECONDS", 0.05)
    ca = sign(tmp_path, "ca")
    own, client = sign(tmp_path, "extender", ca, 10), sign(tmp_path, "scheduler", ca, 20)
    async with served(own, ca) as port:
        url = f"https://localhost:{port}/healthz"
        known = ssl.create_default_context(cafile=str(ca.cert))
        async with aiohttp.ClientSession() as session:
            # A kubelet has no certificate to show.
            assert (await session.get(url, ssl=known)).status == 200
            for path in ("/v1/nodes", "/metrics", "/filter", "/none"):
                answer = await session.get(url.replace("/healthz", path), ssl=known)
                assert answer.status == 403
                assert "tls_client_ca_file" in (await answer.json())["Hint"]
            # A certificate of another CA is refused.
            stranger = ssl.create_default_context(cafile=str(ca.cert))
            by_itself = sign(tmp_path, "stranger")
            stranger.load_cert_chain(by_itself.cert, by_itself.key)
            with pytest.raises(aiohttp.ClientError):
                await session.get(url, ssl=stranger)
            known.load_cert_chain(client.cert, client.key)
        async with aiohttp.ClientSession() as session:
            answer = await session.get(url.replace("/healthz", "/v1/nodes"), ssl=known)
            assert answer.status == 503
        assert await serial(port, known) == 10
        # A broken file in between changes nothing, nor does a certificate before its key.
        other = sign(tmp_path, "other", ca, 30)
        for useless in ("no certificate", other.cert.read_text()):
            own.cert.write_text(useless)
            await asyncio.sleep(0.2)
            assert await serial(port, known) == 10
        sign(tmp_path, "extender", ca, 11)
        shown = [await serial(port, known)]
        while shown[-1] == 10:
            await asyncio.sleep(0.05)
            shown.append(await serial(port, known))
        assert shown[-1] == 11


async def test_commands_ask_over_https(tmp_path: Path) -> None:
    ca = sign(tmp_path, "ca")
    own, client = sign(tmp_path, "extender", ca), sign(tmp_path, "scheduler", ca)
    pod = tmp_path / "pod.yaml"
    pod.write_text("{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}")
    trusting = ("--extender-ca-file", str(ca.cert))
    known = ("--extender-cert-file", str(client.cert), "--extender-key-file", str(client.key))
    async with served(own, ca) as port:
        url = f"https://localhost:{port}"

        async def ask(*flags: str) -> Result:
            arguments = ["score", "-f", str(pod), "--extender", url, *flags]
            return await asyncio.to_thread(CliRunner().invoke, cli, arguments)

        ran = await ask()
        assert (ran.exit_code, "is not trusted" in ran.stderr) == (1, True), ran.stderr
        assert "--extender-ca-file" in ran.stderr
        ran = await ask(*trusting)
        assert (ran.exit_code, "--extender-cert-file" in ran.stderr) == (1, True), ran.stderr
        ran = await ask(*trusting, *known)
        assert (ran.exit_code, "is not ready" in ran.stderr) == (4, True), ran.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--extender-ca-file", "ca.crt"], "without --extender"),
        (["--extender", "https://e", "--extender-cert-file", "ca.crt"], "give both"),
        (["--extender", "https://e", "--extender-ca-file", "none"], "none: No such file"),
        (["--extender", "https://e", "--extender-ca-file", "text"], "give readable PEM files"),
        (["--extender", "https://e", "--extender-cert-file", "ca.crt", "--extender-key-file",
          "other.key"], "give readable PEM files"),
    ],
)  # fmt: skip
def test_invalid_flags_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], says: str
) -> None:
    sign(tmp_path, "ca")
    sign(tmp_path, "other")
    (tmp_path / "text").write_text("text")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(cli, ["top", *flags])
    assert (ran.exit_code, says in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_cert_file": "ca.crt"}, "extender.tls_key_file is missing"),
        ({"tls_key_file": "ca.key"}, "extender.tls_cert_file is missing"),
        ({"tls_client_ca_file": "ca.crt"}, "client certificates need HTTPS"),
        ({"tls_cert_file": "none.crt", "tls_key_file": "ca.key"}, "No such file"),
        ({"tls_cert_file": "ca.crt", "tls_key_file": "other.key"}, "ca.crt"),
        ({"tls_cert_file": "ca.crt", "tls_key_file": "ca.key", "tls_client_ca_file": "text"},
         "extender.tls_client_ca_file"),
    ],
)  # fmt: skip
def test_invalid_files_are_named(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    sign(tmp_path, "ca")
    sign(tmp_path, "other")
    (tmp_path / "text").write_text("text")
    files: dict[str, Any] = {name: str(tmp_path / file) for name, file in given.items()}
    with pytest.raises(SettingsError, match=says):
        Tls.from_settings(ExtenderSettings(**files))
