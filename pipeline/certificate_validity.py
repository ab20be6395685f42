"""When certificates of this process become invalid, as metrics.

Files are read at each scrape: connections that are open keep their certificate, and the next one
uses the file. A chain is as valid as its weakest part: the dates are those of the certificate of
the file that is not valid yet, if there is one, else of the first to expire. CA certificates
are not looked at: a file of several may have expired ones beside their successors.

The two dates are read from DER here, because `ssl` shows them of connections and CA certificates
only, and exporters are installed without a library of X.509.
"""

import re
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pipeline.metrics import gauge

Use = Literal["server", "kafka", "kubernetes"]
"""What a certificate is for: HTTPS of this role, or as a client."""

NOT_BEFORE: Final = gauge(
    "certificate_not_before_timestamp_seconds",
    "Begin of the validity of a certificate of this process, by use: server (HTTPS), kafka or "
    "kubernetes (as a client).",
    ["use"],
)
NOT_AFTER: Final = gauge(
    "certificate_not_after_timestamp_seconds",
    "End of the validity of a certificate of this process, by use, see "
    "springtide_certificate_not_before_timestamp_seconds.",
    ["use"],
)

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", re.ASCII)
_MOST_BYTES: Final = 1 << 20
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_FIELDS_BEFORE_VALIDITY: Final = 3
"""Serial number, algorithm, issuer."""


class Validity(NamedTuple):
    """When a certificate is valid (Unix time)."""

    not_before: float
    not_after: float

    def expires_soon(self, now: float) -> bool:
        """Whether less than 7 days are left, and less than 20% of the lifetime: those that renew
        certificates, such as cert-manager and Strimzi, do so before. The rule of the alert
        SpringtideCertificateExpires."""
        left = self.not_after - now
        return left < 7 * 86_400 and left < 0.2 * (self.not_after - self.not_before)


def show_validity(use: Use, file: str | Path) -> None:
    """Show the validity of the certificate in a PEM file, also after it is renewed. While the file
    cannot be read, the last dates stay."""
    last = validity_in(Path(file), time.time())
    known = [Validity(float("nan"), float("nan")) if last is None else last]

    def date(position: int) -> float:
        if (newest := validity_in(Path(file), time.time())) is not None:
            known[0] = newest
        return known[0][position]

    NOT_BEFORE.labels(use).set_function(partial(date, 0))
    NOT_AFTER.labels(use).set_function(partial(date, 1))


def validity_in(file: Path, now: float) -> Validity | None:
    """The validity of the certificate in a PEM file that is last to become valid, if it is not
    valid at `now` (Unix time), else of the first to expire; None if the file has none or cannot be
    read."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode("ascii", "replace")
        found = [_validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    begins = max(found, key=lambda each: each.not_before, default=None)
    if begins is not None and begins.not_before > now:
        return begins
    return min(found, key=lambda each: each.not_after, default=None)


def _validity(der: bytes) -> Validity:
    """The validity in a certificate (RFC 5280, 4.1). Raises ValueError, IndexError or StopIteration
    if it is malformed."""
    certificate = next(_elements(der))[1]
    fields = _elements(next(_elements(certificate))[1])
    tag, _ = next(fields)
    # The version may be absent; then this was the serial number.
    for _ in range(_FIELDS_BEFORE_VALIDITY - (tag != _VERSION)):
        next(fields)
    tag, dates = next(fields)
    if tag != _SEQUENCE:
        raise ValueError("the validity is no sequence")
    begin, end = (_time(tag, value) for tag, value in _elements(dates))
    return Validity(begin, end)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of the elements of DER in a row."""
    at = 0
    while at < len(data):
        tag, length, begin = data[at], data[at + 1], at + 2
        if length > 0x7F:
            size = length & 0x7F
            length = int.from_bytes(data[begin : begin + size])
            begin += size
        at = begin + length
        if at > len(data):
            raise ValueError("an element is longer than its data")
        yield tag, data[begin:at]


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # of 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"no time has the tag {tag}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
