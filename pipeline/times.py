"""Convert times between UTC seconds since 1970 (in the program) and RFC 3339 (in records)."""

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})"
)


def format_time(seconds: float) -> str:
    """Format as RFC 3339 in UTC, with milliseconds unless the time is in whole seconds.

    >>> format_time(1_700_000_010), format_time(1_700_000_010.25)
    ('2023-11-14T22:13:30Z', '2023-11-14T22:13:30.250Z')
    """
    milliseconds = round(seconds * 1000)
    whole, rest = divmod(milliseconds, 1000)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:03d}Z" if rest else f"{text}Z"


def parse_time(text: str) -> float:
    """Parse an RFC 3339 time with a zone. Raises `ValueError` for other text.

    >>> parse_time("2023-11-14T22:13:30Z"), parse_time("2023-11-14T23:13:30.250+01:00")
    (1700000010.0, 1700000010.25)
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time with a zone: {text!r:.100}")
    return datetime.fromisoformat(text.upper()).timestamp()


def time_or_none(text: str | None) -> float | None:
    """Parse an RFC 3339 time; None if there is none, or an invalid one."""
    try:
        return None if text is None else parse_time(text)
    except ValueError:
        return None
