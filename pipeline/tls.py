"""A client's TLS context that uses renewed certificates without a restart."""

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from pipeline.errors import SettingsError
from pipeline.file_stamps import file_stamps
from pipeline.logs import get_logger

_log = get_logger(__name__)


class RenewedContext(ssl.SSLContext):
    """Calls `create` again before a connection if one of its `files` changed.

    While the new files are invalid, for instance half-written, the former context stays in use,
    and the log says so once. Connections that are open keep their certificates.
    """

    def __new__(cls, create: Callable[[], ssl.SSLContext], files: Iterable[str | Path]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, create: Callable[[], ssl.SSLContext], files: Iterable[str | Path]) -> None:
        self._create = create
        self._files = [Path(file) for file in files]
        self._in_use = self._refused = file_stamps(self._files)
        self._context = create()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._newest().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._newest().wrap_socket(*arguments, **options)

    def _newest(self) -> ssl.SSLContext:
        stamps = file_stamps(self._files)
        if stamps != self._in_use:
            try:
                self._context = self._create()
            except (OSError, ValueError, SettingsError) as error:  # ssl.SSLError is an OSError
                if stamps != self._refused:
                    _log.warning("certificate not reloaded, the old one stays", reason=str(error))
                self._refused = stamps
            else:
                self._in_use = stamps
                _log.info("certificate reloaded", files=", ".join(map(str, self._files)))
        return self._context


def https_context(key: str, ca_file: Path | None, *, verify: bool = True) -> RenewedContext:
    """A context that trusts the CA certificates in `ca_file`, else those of the system. Raises
    `SettingsError`, which names the setting `key`, for an invalid file."""

    def create() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:  # includes ssl.SSLError
            raise SettingsError(
                f"{key}: cannot use {ca_file}: {error.strerror or error}",
                key=key,
                hint="a readable file in PEM format",
            ) from error
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    return RenewedContext(create, [ca_file] if ca_file else [])
