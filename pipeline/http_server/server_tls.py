"""HTTPS of a service: its certificate and key, and the CA of client certificates.

An invalid file is an error at the start. Later, a renewed certificate is read without a restart;
the old one stays in use while the new files are invalid.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.http_server import limits
from pipeline.logs import get_logger

_log = get_logger(__name__)


class TlsSettings(Protocol):
    """The settings of a section about HTTPS: paths of PEM files."""

    @property
    def tls_cert_file(self) -> str | None: ...
    @property
    def tls_key_file(self) -> str | None: ...
    @property
    def tls_client_ca_file(self) -> str | None: ...


@dataclass(slots=True)
class Tls:
    """The context of new connections, and the files that its certificate comes from."""

    context: ssl.SSLContext
    cert_file: str
    key_file: str

    @classmethod
    def from_settings(cls, settings: TlsSettings, section: str) -> "Tls | None":
        """The context that a section of the settings describes; None for plain HTTP. Raises
        `SettingsError`."""
        cert_file, key_file = settings.tls_cert_file, settings.tls_key_file
        if cert_file is None and key_file is None:
            if settings.tls_client_ca_file is not None:
                raise SettingsError(
                    f"{section}.tls_client_ca_file: client certificates need HTTPS",
                    key=f"{section}.tls_client_ca_file",
                    hint=f"set {section}.tls_cert_file and {section}.tls_key_file, too",
                )
            return None
        if cert_file is None or key_file is None:
            missing = "tls_cert_file" if cert_file is None else "tls_key_file"
            raise SettingsError(
                f"{section}.{missing} is missing",
                key=f"{section}.{missing}",
                hint="HTTPS needs a certificate and its key",
            )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        tls = cls(context, cert_file, key_file)
        if (invalid := tls.reload()) is not None:
            raise _invalid_file(
                f"{section}.tls_cert_file", f"{cert_file}, {key_file}", invalid
            ) from invalid
        if settings.tls_client_ca_file is not None:
            try:
                context.load_verify_locations(settings.tls_client_ca_file)
            except (OSError, ssl.SSLError) as error:
                raise _invalid_file(
                    f"{section}.tls_client_ca_file", settings.tls_client_ca_file, error
                ) from error
            # A kubelet's probes have no certificate; the handlers refuse other clients without one.
            context.verify_mode = ssl.CERT_OPTIONAL
        return tls

    async def watch_files(self, clock: Clock) -> NoReturn:
        """Reload the certificate whenever its files change, until cancelled. A file that was being
        written may keep its time, so invalid files are read again at every check."""
        in_use = logged = self._modified_at()
        while True:
            await clock.sleep(limits.CERTIFICATE_CHECK_SECONDS)
            modified_at = self._modified_at()
            if modified_at == in_use:
                continue
            if (error := self.reload()) is None:
                in_use = modified_at
                _log.info("certificate reloaded", file=self.cert_file)
            elif modified_at != logged:
                logged = modified_at
                _log.warning("certificate not reloaded; the old one stays", reason=str(error))

    def reload(self) -> Exception | None:
        """Use the files as they are now for new connections. Returns the error if they are invalid;
        the old certificate then stays in use."""
        try:
            # A context loses its certificate if the new key does not match: try a new one first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            return error
        return None

    def _modified_at(self) -> tuple[float | None, ...]:
        return tuple(_modified(Path(name)) for name in (self.cert_file, self.key_file))


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def _no_password() -> str:
    # Without it, a key with a password would wait for a terminal.
    raise ValueError("the key has a password")


def _invalid_file(key: str, file: str, error: Exception) -> SettingsError:
    reason = error.strerror if isinstance(error, FileNotFoundError) else str(error)
    return SettingsError(
        f"{key}: {file}: {reason}",
        key=key,
        hint="name readable PEM files; the key must belong to the certificate",
    )
