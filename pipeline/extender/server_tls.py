"""HTTPS for the extender: the certificate, its key, and who may sign those of clients.

Owes the rest: an error at the start that names the file which is of no use; later on a certificate
that is renewed without a restart, and the old one for as long as the new one is not readable.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from pipeline.clock import Clock
from pipeline.errors import SettingsError
from pipeline.logs import get_logger
from pipeline.settings import ExtenderSettings

LOOK_EVERY_SECONDS: Final = 10.0

_log = get_logger(__name__)


@dataclass(slots=True)
class Tls:
    """The context that new connections use, and the files that it was read from."""

    context: ssl.SSLContext
    cert_file: str
    key_file: str

    @classmethod
    def of(cls, settings: ExtenderSettings) -> "Tls | None":
        """What the settings say; None for plain HTTP. Raises `SettingsError`."""
        cert_file, key_file = settings.tls_cert_file, settings.tls_key_file
        if cert_file is None and key_file is None:
            if settings.tls_client_ca_file is not None:
                raise SettingsError(
                    "extender.tls_client_ca_file: clients show certificates over HTTPS alone",
                    key="extender.tls_client_ca_file",
                    hint="set extender.tls_cert_file and extender.tls_key_file, too",
                )
            return None
        if cert_file is None or key_file is None:
            missing = "tls_cert_file" if cert_file is None else "tls_key_file"
            raise SettingsError(
                f"extender.{missing} is missing",
                key=f"extender.{missing}",
                hint="HTTPS needs a certificate and its key",
            )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _read("tls_cert_file", f"{cert_file}, {key_file}", context, cert_file, key_file)
        if settings.tls_client_ca_file is not None:
            try:
                context.load_verify_locations(settings.tls_client_ca_file)
            except (OSError, ssl.SSLError) as error:
                raise _of_no_use(
                    "tls_client_ca_file", settings.tls_client_ca_file, error
                ) from error
            # Who shows none is asked about by the handlers: a kubelet's probes have none.
            context.verify_mode = ssl.CERT_OPTIONAL
        return cls(context, cert_file, key_file)

    async def keep_read(self, clock: Clock) -> NoReturn:
        """Read the certificate again whenever its files change, until cancelled. What was being
        written may have the time of what is written: where it is of no use it is tried again."""
        in_use = told = self._changed_at()
        while True:
            await clock.sleep(LOOK_EVERY_SECONDS)
            now = self._changed_at()
            if now == in_use:
                continue
            if (error := self.read_again()) is None:
                in_use = now
            elif now != told:
                told = now
                _log.warning("certificate not read; the old one is in use", reason=str(error))

    def read_again(self) -> Exception | None:
        """Use what the files hold now for connections to come. What is wrong with them, if they are
        of no use: then what was in use stays."""
        try:
            # A context that a certificate and a key of different pairs were given shows neither.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            return error
        _log.info("certificate read again", file=self.cert_file)
        return None

    def _changed_at(self) -> tuple[float | None, ...]:
        return tuple(_modified(Path(name)) for name in (self.cert_file, self.key_file))


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def _read(key: str, what: str, context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    try:
        # A key with a password would make it wait for a terminal.
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise _of_no_use(key, what, error) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def _of_no_use(key: str, file: str, error: Exception) -> SettingsError:
    said = error.strerror if isinstance(error, FileNotFoundError) else str(error)
    return SettingsError(
        f"extender.{key}: {file}: {said}",
        key=f"extender.{key}",
        hint="name PEM files that can be read, the key that of the certificate",
    )
