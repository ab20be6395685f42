"""Who may send which request: a rule for each group of routes.

- `probes` (/healthz, /readyz) are open: a kubelet has no certificate. So is `console`, the files of
  the web page: they hold no data, and a browser sends no token when it opens a page.
- `scheduler` (filter, prioritize, preempt) requires a client certificate, with one of the names in
  `scheduler_names` if there are any.
- `queries`, `metrics` and `watcher` require a client certificate or a token of `query_token_file`,
  unless `open_routes` names them.

Without `tls_client_ca_file` no certificate is required, without a token file no token.
"""

import hmac
from pathlib import Path
from typing import Final, Literal, NoReturn

from aiohttp import web

from pipeline.bearer_tokens import is_loopback, parse_tokens
from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.extender.http_responses import error_response
from pipeline.http_server import limits
from pipeline.logs import get_logger
from pipeline.settings import ExtenderSettings

Access = Literal["probes", "console", "scheduler", "queries", "metrics", "watcher"]
OPEN: Final[tuple[Access, ...]] = ("probes", "console")
"""Groups that need neither certificate nor token."""

_CERTIFICATE_HINT: Final = "show a certificate that extender.tls_client_ca_file has signed"
_TOKEN_HINT: Final = "send `Authorization: Bearer` with a token of extender.query_token_file"

_log = get_logger(__name__)


class Tokens:
    """The tokens of a file, one a line; several, so that clients can change one by one."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises ValueError and OSError."""
        self._file = file
        self._tokens = self._read()

    def __contains__(self, token: str) -> bool:
        # Every token is compared, so that the time does not tell which is similar.
        data = token.encode("utf-8", "surrogateescape")
        return sum(hmac.compare_digest(data, known) for known in self._tokens) > 0

    def reload(self) -> Exception | None:
        """Read the file again. Returns the error if it is invalid; the tokens then stay valid."""
        try:
            self._tokens = self._read()
        except (OSError, ValueError) as error:
            return error
        return None

    def _read(self) -> list[bytes]:
        return parse_tokens(self._file.read_bytes())


class Authentication:
    """The rules of one service."""

    def __init__(self, settings: ExtenderSettings, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self._requires_certificate = settings.tls_client_ca_file is not None
        self._scheduler_names = frozenset(settings.scheduler_names)
        self._open: frozenset[Access] = frozenset((*OPEN, *settings.open_routes))

    @classmethod
    def from_settings(cls, settings: ExtenderSettings) -> "Authentication":
        """The rules that the settings describe. Raises `SettingsError`."""
        if settings.tls_client_ca_file is None:
            _check_without_certificates(settings)
        if settings.query_token_file is None:
            return cls(settings, None)
        try:
            return cls(settings, Tokens(Path(settings.query_token_file)))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(
                f"extender.query_token_file: {settings.query_token_file}: {reason}",
                key="extender.query_token_file",
                hint="name a readable file with a token of ASCII characters on each line",
            ) from error

    def refusal(self, request: web.Request, access: Access) -> web.Response | None:
        """The answer to a client that may not send this request, else None."""
        if access in self._open:
            return None
        certificate = request.get_extra_info("peercert")
        if access == "scheduler":
            return self._refusal_of_scheduler(certificate)
        if certificate or not (self._requires_certificate or self._tokens):
            return None
        if self._tokens is None:
            return error_response(403, "client certificate required", _CERTIFICATE_HINT)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip() in self._tokens:
            return None
        needed = "bearer token" + " or client certificate" * self._requires_certificate
        error = "invalid bearer token" if token else f"{needed} required"
        return error_response(401, error, _TOKEN_HINT, {"WWW-Authenticate": "Bearer"})

    def _refusal_of_scheduler(self, certificate: object) -> web.Response | None:
        if not self._requires_certificate:
            return None
        if not certificate:
            return error_response(403, "client certificate required", _CERTIFICATE_HINT)
        name = _common_name(certificate)
        if not self._scheduler_names or name in self._scheduler_names:
            return None
        return error_response(
            403,
            f"{name[:200]!r} is not a scheduler",
            "add the common name of its certificate to extender.scheduler_names",
        )

    async def watch_tokens(self, clock: Clock) -> NoReturn:
        """Read the token file again now and then, until cancelled."""
        logged = None
        while True:
            await clock.sleep(limits.CERTIFICATE_CHECK_SECONDS)
            error = self._tokens.reload() if self._tokens is not None else None
            if error is not None and str(error) != logged:
                _log.warning("tokens not reloaded; the old ones stay", reason=str(error))
            logged = error and str(error)


def _check_without_certificates(settings: ExtenderSettings) -> None:
    if settings.scheduler_names:
        raise SettingsError(
            "extender.scheduler_names has no effect without client certificates",
            key="extender.scheduler_names",
            hint="set extender.tls_client_ca_file, too",
        )
    if settings.push_out and settings.mode == "act" and not is_loopback(settings.host):
        raise SettingsError(
            "extender.push_out: client certificates are required, because a request may cause "
            "evictions",
            key="extender.push_out",
            hint="set extender.tls_client_ca_file, or extender.host to 127.0.0.1 beside the "
            "scheduler",
        )


def _common_name(certificate: object) -> str:
    """The common name of a certificate as Python's ssl reads it; Kubernetes' name of a user."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return next((value for ((key, value), *_) in subject if key == "commonName"), "")
