"""Check the certificates of the settings: whether they are valid, and were renewed in time."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.certificate_validity import validity_in
from pipeline.cli.doctor_check import Check
from pipeline.errors import SpringtideError
from pipeline.kube.api_access import api_access
from pipeline.settings import Settings
from pipeline.times import format_time


def check_certificates(settings: Settings, now: float) -> Iterator[Check]:
    """A check of each certificate that the settings name, at `now` (Unix time)."""
    files = {
        "kafka.ssl_cert_file": settings.kafka.ssl_cert_file,
        "extender.tls_cert_file": settings.extender.tls_cert_file,
        "webhook.tls_cert_file": settings.webhook.tls_cert_file,
        "kubernetes.kubeconfig": _client_certificate(settings),
    }
    for key, file in files.items():
        if file is not None:
            yield check_certificate(key, Path(file), now)


def _client_certificate(settings: Settings) -> str | None:
    """The file of the client certificate for the API server; None if there is none, or no access,
    which other checks report."""
    try:
        return api_access(settings.kubernetes).cert_file
    except SpringtideError:
        return None


def check_certificate(key: str, file: Path, now: float) -> Check:
    """Check the certificate in the file that a setting names."""
    name, validity = "tls", validity_in(file, now)
    if validity is None:
        return Check(name, "fail", f"{key}: no certificate can be read from {file}",
                     "name a readable file in PEM format")  # fmt: skip
    if validity.not_before > now:
        begin = format_time(validity.not_before)
        return Check(name, "fail", f"{key}: {file} is not valid before {begin}",
                     "check the clock of this machine, and of who made it")  # fmt: skip
    end = format_time(validity.not_after)
    if validity.not_after <= now:
        return Check(name, "fail", f"{key}: {file} has expired at {end}", "renew it")
    if validity.expires_soon(now):
        todo = "renew it, or find out why it was not renewed"
        return Check(name, "warn", f"{key}: {file} expires at {end}", todo)
    return Check(name, "ok", f"{key}: {file} is valid until {end}")
