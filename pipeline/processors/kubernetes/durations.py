"""Read and write durations as Go does: `5m0s`."""

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "μs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_PART: Final = re.compile(r"(\d{1,18}\.?\d{0,18}|\.\d{1,18})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
LONGEST_SECONDS: Final = 31_536_000


def go_seconds(text: str) -> Decimal | None:
    """Seconds of any duration that Go reads; None if it is invalid.

    >>> go_seconds("1m30s"), go_seconds("-.5s"), go_seconds("0"), go_seconds("1"), go_seconds("")
    (Decimal('90'), Decimal('-0.5'), Decimal('0'), None, None)
    """
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    parts = list(_PART.finditer(unsigned))
    if unsigned != "0" and (not parts or "".join(part[0] for part in parts) != unsigned):
        return None
    seconds = sum((Decimal(part[1]) * _UNITS[part[2]] for part in parts), Decimal(0))
    return -seconds if text.startswith("-") else seconds


def timestamp_seconds(text: str) -> Decimal | None:
    """`go_seconds` of a duration from a second to a year; None for any other.

    >>> timestamp_seconds("1h30m"), timestamp_seconds("1.5s"), timestamp_seconds("5")
    (Decimal('5400'), Decimal('1.5'), None)
    """
    seconds = go_seconds(text)
    return seconds if seconds is not None and 1 <= seconds <= LONGEST_SECONDS else None


def duration_text(seconds: Decimal) -> str:
    """A duration of a second or more as Go writes it, so that what Go stores is what we wrote.

    >>> duration_text(Decimal(300)), duration_text(Decimal(5400)), duration_text(Decimal("1.5"))
    ('5m0s', '1h30m0s', '1.5s')
    """
    hours, minutes = divmod(int(seconds) // 60, 60)
    text = f"{(seconds % 60).normalize():f}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
