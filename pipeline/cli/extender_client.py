"""Send requests to a running extender: `--extender` and its TLS options, and the HTTP client."""

import functools
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

import aiohttp
import click
import msgspec

from pipeline.bearer_tokens import is_loopback, parse_tokens
from pipeline.cli.help_sections import SecondaryOption
from pipeline.cli.safe_output import printable
from pipeline.errors import NotReadyError, SpringtideError, UsageError, unanswered_reason
from pipeline.input_files import read_file

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_ADDRESS: Final = (
    "give the address of `springtide extender`, such as http://host:8888; with TLS https://, and "
    "--extender-cert-file if it requires client certificates"
)
_FILES: Final = {
    "ca_file": "CA certificates (PEM) that verify the extender; those of the system by default.",
    "cert_file": "Client certificate (PEM), if the extender requires one.",
    "key_file": "Private key (PEM) of the client certificate.",
    "token_file": "File with a bearer token, if the extender accepts one.",
}
_T = TypeVar("_T")


class ExtenderClient(NamedTuple):
    """The address of an extender and the TLS context for it."""

    url: str
    tls: ssl.SSLContext
    token: str | None = None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self.tls)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        async with aiohttp.ClientSession(
            timeout=_TIMEOUT, connector=connector, headers=headers
        ) as session:
            yield session

    async def request(
        self,
        session: aiohttp.ClientSession,
        path: str,
        answer_type: type[_T],
        body: bytes | None = None,
    ) -> _T:
        """GET `path`, or POST `body` to it, and decode the answer. Raises `NotReadyError` while the
        extender is not ready, `SpringtideError` for any other failure."""
        method, url = "GET" if body is None else "POST", f"{self.url.rstrip('/')}{path}"
        try:
            async with session.request(method, url, data=body) as response:
                answer = await response.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise SpringtideError(
                f"the certificate of {url} is not trusted: {error.certificate_error}",
                hint="give the CA certificate that signed it with --extender-ca-file",
            ) from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SpringtideError(
                f"no extender answers at {url}: {unanswered_reason(error)}", hint=_ADDRESS
            ) from error
        if response.status == 401:
            raise SpringtideError(
                f"the extender at {self.url} accepts no client without a valid token",
                hint="give a token with --extender-token-file, or --extender-cert-file",
            )
        if response.status == 403:
            raise SpringtideError(
                f"the extender at {self.url} requires a client certificate",
                hint="give one that it trusts with --extender-cert-file",
            )
        if response.status == 503:
            raise NotReadyError(
                f"the extender at {url} is not ready: {answer[:300]!r}",
                hint="try again in a few seconds",
            )
        if response.status != 200:
            reason = f": {answer[:300]!r}" if response.status == 400 else ""
            raise SpringtideError(
                f"{method} {url} failed with status {response.status}{reason}",
                hint=None if reason else f"check that it is an extender: {_ADDRESS}",
            )
        try:
            return msgspec.json.decode(answer, type=answer_type)
        except msgspec.MsgspecError as error:
            raise SpringtideError(
                f"{url} does not answer as an extender: {error}", hint=_ADDRESS
            ) from error


def extender_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `--extender URL` and its TLS options, as the parameter `extender` of the command:
    an `ExtenderClient`, or None without the option."""

    @functools.wraps(function)
    def run(extender: str | None, **parameters: Any) -> Any:
        files = {name: parameters.pop(f"extender_{name}") for name in _FILES}
        return function(extender=_client(extender, **files), **parameters)

    decorated: Callable[..., Any] = run
    for name, help in reversed(_FILES.items()):
        flag, kind = f"--extender-{name.replace('_', '-')}", click.Path(path_type=Path)
        option = click.option(flag, cls=SecondaryOption, type=kind, metavar="FILE", help=help)
        decorated = option(decorated)
    return click.option(
        "--extender",
        metavar="URL",
        help="Ask this extender instead of reading Kafka. Its settings apply.",
    )(decorated)


def _client(
    url: str | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    token_file: Path | None,
) -> ExtenderClient | None:
    if url is None:
        if ca_file or cert_file or key_file or token_file:
            raise UsageError(
                "files for an extender are given without --extender",
                hint="give --extender https://host:8888",
            )
        return None
    parts = _check_url(url)
    if (cert_file is None) != (key_file is None):
        raise UsageError(
            "a client certificate and its key are given together",
            hint="give both --extender-cert-file and --extender-key-file",
        )
    tls = ssl.create_default_context()
    try:
        if file := ca_file:
            tls.load_verify_locations(file)
        if file := cert_file:
            tls.load_cert_chain(file, key_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError) else str(error)
        raise UsageError(f"cannot load {file}: {reason}", hint="give readable PEM files") from error
    token = _token(token_file)
    _warn_if_exposed(parts, token)
    return ExtenderClient(url, tls, token)


def _token(file: Path | None) -> str | None:
    """The first token of a file. Raises `UsageError`."""
    if file is None:
        return None
    try:
        return parse_tokens(read_file(file))[0].decode()
    except ValueError as error:
        raise UsageError(
            f"{file}: {error}", hint="name a file with a token of ASCII characters on each line"
        ) from error


def _check_url(url: str) -> SplitResult:
    """The parts of an address of an extender. Raises `UsageError`."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # an invalid port or IPv6 address
    raise UsageError(
        f"{url!r} is not the address of an extender",
        hint="give http:// or https:// with a host, such as http://host:8888",
    )


def _warn_if_exposed(parts: SplitResult, token: str | None) -> None:
    if token is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        text = (
            f"warning: the bearer token goes to {parts.geturl()} without encryption; use https://"
        )
        click.echo(printable(text), err=True)
