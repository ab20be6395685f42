"""Where a Prometheus is, and the credentials for it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pipeline.bearer_tokens import authorization, is_loopback
from pipeline.errors import UsageError
from pipeline.input_files import read_file


class PrometheusAccess(NamedTuple):
    """Where a Prometheus is, and the files with credentials. `basic_auth_file` has one line,
    `user:password`."""

    url: str
    token_file: Path | None = None
    basic_auth_file: Path | None = None
    ca_file: Path | None = None


def access_headers(access: PrometheusAccess) -> dict[str, str]:
    """The header with credentials. Raises `UsageError` for a file that is not readable or has none,
    and for credentials that would travel without encryption."""
    parts = urlsplit(access.url)
    has_credentials = access.token_file is not None or access.basic_auth_file is not None
    if has_credentials and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"the credentials for {access.url} would be readable on the network",
            hint="use https, or `kubectl port-forward` and http://localhost",
        )
    if access.basic_auth_file is None:
        try:
            return authorization(access.token_file)
        except ValueError as error:
            raise UsageError(
                f"{access.token_file}: {error}", hint="a file with a bearer token"
            ) from error
    text = read_file(access.basic_auth_file, 4096).decode(errors="replace").strip()
    if ":" not in text or "\n" in text:
        raise UsageError(
            f"{access.basic_auth_file} has no credentials", hint="one line, user:password"
        )
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
