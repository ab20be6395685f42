"""HTTPS with real certificates: a scheduler's client, one without a certificate, a renewal."""

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from pipeline.cli.main import cli
from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.http_server.server_tls import Tls
from pipeline.local.pki import Authority, Pair
from pipeline.settings import ExtenderSettings
from tests.extender.conftest import running
from tests.processes import until


def authority(folder: Path) -> Authority:
    folder.mkdir(exist_ok=True)
    return Authority(folder, SystemClock())


def server(ca: Authority, name: str = "extender") -> Pair:
    return ca.server(name, (), ["localhost"])


async def serial(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that is shown on a new connection."""
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


def served(own: Pair, ca: Authority) -> AbstractAsyncContextManager[int]:
    """The port of an extender with client certificates, whose table never catches up."""
    settings = ExtenderSettings(
        host="127.0.0.1", port=0, tls_cert_file=str(own.public),
        tls_key_file=str(own.private), tls_client_ca_file=str(ca.certificate),
    )  # fmt: skip
    return running(settings=settings)


async def test_https_with_client_certificates_and_a_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.http_server.limits.CERTIFICATE_CHECK_SECONDS", 0.05)
    ca = authority(tmp_path)
    own, client = server(ca), ca.client("scheduler")
    async with served(own, ca) as port:
        url = f"https://localhost:{port}/healthz"
        known = ssl.create_default_context(cafile=str(ca.certificate))
        async with aiohttp.ClientSession() as session:
            # A kubelet has no certificate to show.
            assert (await session.get(url, ssl=known)).status == 200
            for path in ("/v1/nodes", "/metrics", "/filter", "/none"):
                answer = await session.get(url.replace("/healthz", path), ssl=known)
                assert answer.status == 403
                assert "tls_client_ca_file" in (await answer.json())["Hint"]
            # A certificate of another CA is refused.
            stranger = ssl.create_default_context(cafile=str(ca.certificate))
            stranger.load_cert_chain(*authority(tmp_path / "other").client("stranger"))
            with pytest.raises(aiohttp.ClientError):
                await session.get(url, ssl=stranger)
            known.load_cert_chain(*client)
        async with aiohttp.ClientSession() as session:
            assert (
                await session.get(url.replace("/healthz", "/v1/nodes"), ssl=known)
            ).status == 503
        first = await serial(port, known)
        # A broken file in between changes nothing, nor does a certificate before its key.
        for invalid in ("no certificate", server(ca, "other").public.read_text()):
            own.public.write_text(invalid)
            await asyncio.sleep(0.2)
            assert await serial(port, known) == first
        renewed = x509.load_pem_x509_certificate(server(ca).public.read_bytes())
        shown = [await serial(port, known)]
        while shown[-1] == first:
            await asyncio.sleep(0.05)
            shown.append(await serial(port, known))
        assert shown[-1] == renewed.serial_number


async def test_a_renewed_ca_of_clients_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.http_server.limits.CERTIFICATE_CHECK_SECONDS", 0.05)
    old, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    own, trusted = server(old), tmp_path / "clients.crt"
    trusted.write_bytes(old.certificate.read_bytes())
    settings = ExtenderSettings(
        host="127.0.0.1", port=0, tls_cert_file=str(own.public), tls_key_file=str(own.private),
        tls_client_ca_file=str(trusted),
    )  # fmt: skip

    async def is_known(port: int, ca: Authority) -> bool:
        context = ssl.create_default_context(cafile=str(old.certificate))
        context.load_cert_chain(*ca.client("scheduler"))
        async with aiohttp.ClientSession() as session:
            try:
                answer = await session.get(f"https://localhost:{port}/v1/nodes", ssl=context)
            except aiohttp.ClientError:
                return False
            return answer.status == 503

    async with running(settings=settings) as port:
        assert [await is_known(port, ca) for ca in (old, new)] == [True, False]
        trusted.write_bytes(new.certificate.read_bytes())
        await until(lambda: is_known(port, new))
        assert not await is_known(port, old)


def linked(link: Path, folder: Path) -> None:
    """Exchange a symbolic link, as a kubelet does that renews a Secret."""
    new = link.with_name("..data_tmp")
    new.symlink_to(folder)
    new.rename(link)


def restored(link: Path, folder: Path) -> None:
    """Write files in place with the times that they had, as `cp -p` does."""
    for file in folder.iterdir():
        known = (link / file.name).stat()
        (link / file.name).write_bytes(file.read_bytes())
        os.utime(link / file.name, ns=(known.st_atime_ns, known.st_mtime_ns))


@pytest.mark.parametrize("renew", [linked, restored])
async def test_a_renewal_that_keeps_the_times_of_files_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renew: Callable[[Path, Path], None]
) -> None:
    monkeypatch.setattr("pipeline.http_server.limits.CERTIFICATE_CHECK_SECONDS", 0.05)
    ca, link = authority(tmp_path / "ca"), tmp_path / "..data"
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for file, content in zip(("tls.crt", "tls.key"), server(ca), strict=True):
            (tmp_path / name / file).write_bytes(content.read_bytes())
            os.utime(tmp_path / name / file, (1e9, 1e9))
    linked(link, tmp_path / "old")
    renewed = x509.load_pem_x509_certificate((tmp_path / "new" / "tls.crt").read_bytes())
    known = ssl.create_default_context(cafile=str(ca.certificate))
    async with served(Pair(link / "tls.crt", link / "tls.key"), ca) as port:
        assert await serial(port, known) != renewed.serial_number
        renew(link, tmp_path / "new")

        async def is_renewed() -> bool:
            return await serial(port, known) == renewed.serial_number

        await until(is_renewed, 20)


async def test_commands_ask_over_https(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    client = ca.client("scheduler")
    pod = tmp_path / "pod.yaml"
    pod.write_text("{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}")
    trusting = ("--extender-ca-file", str(ca.certificate))
    known = ("--extender-cert-file", str(client.public), "--extender-key-file", str(client.private))
    async with served(server(ca), ca) as port:
        url = f"https://localhost:{port}"

        async def ask(*flags: str) -> Result:
            arguments = ["score", "-f", str(pod), "--extender", url, *flags]
            return await asyncio.to_thread(CliRunner().invoke, cli, arguments)

        for flags, code, *words in (
            ((), 1, "is not trusted", "--extender-ca-file"),
            (trusting, 1, "--extender-cert-file"),
            ((*trusting, *known), 4, "is not ready"),
        ):
            ran = await ask(*flags)
            assert (ran.exit_code, [w for w in words if w not in ran.stderr]) == (code, []), (
                ran.stderr
            )


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
    server(authority(tmp_path), "other")
    (tmp_path / "text").write_text("text")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(cli, ["top", *flags])
    assert (ran.exit_code, says in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_cert_file": "own.crt"}, "extender.tls_key_file is missing"),
        ({"tls_key_file": "own.key"}, "extender.tls_cert_file is missing"),
        ({"tls_client_ca_file": "own.crt"}, "client certificates need HTTPS"),
        ({"tls_cert_file": "none.crt", "tls_key_file": "own.key"}, "No such file"),
        ({"tls_cert_file": "own.crt", "tls_key_file": "other.key"}, "own.crt"),
        ({"tls_cert_file": "own.crt", "tls_key_file": "own.key", "tls_client_ca_file": "text"},
         "extender.tls_client_ca_file"),
    ],
)  # fmt: skip
def test_invalid_files_are_named(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    ca = authority(tmp_path)
    server(ca, "own"), server(ca, "other")
    (tmp_path / "text").write_text("text")
    files: dict[str, Any] = {name: str(tmp_path / file) for name, file in given.items()}
    with pytest.raises(SettingsError, match=says):
        Tls.from_settings(ExtenderSettings(**files), "extender")
