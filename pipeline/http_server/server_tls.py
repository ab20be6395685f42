"""HTTPS of a service: its certificate and key, and the CA of client certificates.

An invalid file is an error at the start. Later, renewed files are read without a restart; the old
ones stay in use while the new ones are invalid.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

from pipeline.certificate_validity import show_validity
from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.file_stamps import FileStamps, file_stamps
from pipeline.http_server import limits
from pipeline.logs import get_logger

_log = get_logger(__name__)

_INVALID: Final = (OSError, ssl.SSLError, ValueError)
"""What invalid files raise."""


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
    """The context of new connections, and the files that it comes from."""

    context: ssl.SSLContext
    cert_file: str
    key_file: str
    client_ca_file: str | None
    stamps: FileStamps

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
        files = cert_file, key_file, settings.tls_client_ca_file
        # Before they are read: a file that is replaced meanwhile is read again.
        stamps = _stamps(*files)
        try:
            context = _with_certificate(cert_file, key_file)
        except _INVALID as error:
            raise _invalid_file(
                f"{section}.tls_cert_file", f"{cert_file}, {key_file}", error
            ) from error
        try:
            _trust_clients(context, settings.tls_client_ca_file)
        except _INVALID as error:
            raise _invalid_file(
                f"{section}.tls_client_ca_file", str(settings.tls_client_ca_file), error
            ) from error
        show_validity("server", cert_file)
        return cls(context, *files, stamps)

    async def watch_files(self, clock: Clock) -> NoReturn:
        """Reload the files whenever one changes, until cancelled. Invalid files are read again at
        every check."""
        logged = self.stamps
        while True:
            await clock.sleep(limits.CERTIFICATE_CHECK_SECONDS)
            stamps = _stamps(self.cert_file, self.key_file, self.client_ca_file)
            if stamps == self.stamps:
                continue
            if (error := self.reload()) is None:
                self.stamps = stamps
                _log.info("certificate reloaded", file=self.cert_file)
            elif stamps != logged:
                logged = stamps
                _log.warning("certificate not reloaded; the old one stays", reason=str(error))

    def reload(self) -> Exception | None:
        """Use the files as they are now for new connections. Returns the error if they are invalid;
        the old ones then stay in use."""
        try:
            context = _with_certificate(self.cert_file, self.key_file)
            _trust_clients(context, self.client_ca_file)
        except _INVALID as error:
            return error
        self.context = context
        return None


def _with_certificate(cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert_file, key_file, password=_no_password)
    return context


def _trust_clients(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is not None:
        context.load_verify_locations(ca_file)
        # A kubelet's probes have no certificate; the handlers refuse other clients without one.
        context.verify_mode = ssl.CERT_OPTIONAL


def _stamps(*files: str | None) -> FileStamps:
    return file_stamps(Path(file) for file in files if file is not None)


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
