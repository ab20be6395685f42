"""An extender that a command asks: its address, and who it must be over HTTPS.

Owes the rest: `--extender` and the flags beside it, as one parameter `extender` of a command.
"""

import functools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import click

from pipeline.errors import NotReadyError, SpringtideError, UsageError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_ADDRESS: Final = (
    "give the address of `springtide extender`, as http://host:8888; https:// if it has a "
    "certificate, with --extender-cert-file if it asks for yours"
)
_FILES: Final = ("ca_file", "cert_file", "key_file")


class AskedExtender(NamedTuple):
    """The extender at `url`; `tls` says whom to trust there, and as whom to come."""

    url: str
    tls: ssl.SSLContext

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """What it is asked through."""
        connector = aiohttp.TCPConnector(ssl=self.tls)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            yield session

    async def ask(
        self, session: aiohttp.ClientSession, path: str, body: bytes | None = None
    ) -> bytes:
        """What it answers: to GET, or to POST of `body`. Raises `NotReadyError` while it cannot
        say, `SpringtideError` for any other trouble."""
        method, url = "GET" if body is None else "POST", f"{self.url.rstrip('/')}{path}"
        try:
            async with session.request(method, url, data=body) as response:
                answer = await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise SpringtideError(
                f"the certificate shown at {url} is not trusted: {error.certificate_error}",
                hint="give the file of who signed it with --extender-ca-file",
            ) from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SpringtideError(
                f"no extender answers at {url}: {error or type(error).__name__}",
                hint=_ADDRESS,
            ) from error
        if response.status == 403:
            raise SpringtideError(
                f"the extender at {self.url} wants to know who asks",
                hint="give a certificate that it knows with --extender-cert-file",
            )
        if response.status == 503:
            raise NotReadyError(f"the extender at {url} is not ready: {answer[:300]!r}")
        if response.status != 200:
            said = f": {answer[:300]!r}" if response.status == 400 else ""
            raise SpringtideError(
                f"{method} {url} was answered with {response.status}{said}",
                hint=None if said else f"is it an extender? {_ADDRESS}",
            )
        return answer


def extender_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `--extender URL`, and files for HTTPS. The command gets `extender`, an
    `AskedExtender` or None."""

    @functools.wraps(function)
    def run(extender: str | None, **parameters: Any) -> Any:
        files = {name: parameters.pop(f"extender_{name}") for name in _FILES}
        return function(extender=_asked(extender, **files), **parameters)

    helps = {
        "ca_file": "Who signed the certificate of an https:// extender; usually who the system "
        "trusts.",
        "cert_file": "Your certificate, where the extender asks for one.",
        "key_file": "Its key.",
    }
    decorated: Callable[..., Any] = run
    for name in reversed(_FILES):
        flag, kind = f"--extender-{name.replace('_', '-')}", click.Path(path_type=Path)
        decorated = click.option(flag, type=kind, metavar="FILE", help=helps[name])(decorated)
    return click.option(
        "--extender", metavar="URL", help="Ask this extender, not Kafka: its settings hold."
    )(decorated)


def _asked(
    url: str | None, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> AskedExtender | None:
    if url is None:
        if ca_file or cert_file or key_file:
            raise UsageError(
                "files for HTTPS, and no extender to ask", hint="give --extender https://host:8888"
            )
        return None
    if (cert_file is None) != (key_file is None):
        raise UsageError(
            "a certificate goes with its key",
            hint="give both --extender-cert-file and --extender-key-file",
        )
    tls = ssl.create_default_context()
    if ca_file is not None:
        _read(ca_file, lambda: tls.load_verify_locations(ca_file))
    if cert_file is not None:
        _read(cert_file, lambda: tls.load_cert_chain(cert_file, key_file))
    return AskedExtender(url, tls)


def _read(file: Path, read: Callable[[], None]) -> None:
    try:
        read()
    except (OSError, ssl.SSLError) as error:
        said = error.strerror if isinstance(error, FileNotFoundError) else str(error)
        raise UsageError(f"{file}: {said}", hint="name PEM files that can be read") from error
