"""Format ages, CPU, bytes and percents for people; unknown (None or NaN) is `-`, never 0.

CPU and bytes are quantities of Kubernetes, rounded. JSON has numbers, with the unit in the name.
"""

import math

UNKNOWN = "-"


def format_age(seconds: float | None) -> str:
    """The largest unit that leaves a whole number above 1, such as `119s`, `2m`, `2h` or `2d`.

    A negative age is `0s`.
    """
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"


def format_cpu(cores: float | None) -> str:
    """Millicores as `kubectl top` shows them, from 100 cores whole cores.

    >>> format_cpu(1.5), format_cpu(16.0), format_cpu(640.4)
    ('1500m', '16000m', '640')
    """
    if cores is None or math.isnan(cores):
        return UNKNOWN
    return f"{cores * 1000:z.0f}m" if abs(cores) < 99.9995 else f"{cores:z.0f}"


def format_bytes(amount: float | None) -> str:
    """Bytes in Mi, Gi, Ti or Pi, with three digits at most.

    >>> format_bytes(1.5 * 2**30)
    '1.5Gi'
    """
    if amount is None or math.isnan(amount):
        return UNKNOWN
    for unit in ("Mi", "Gi", "Ti", "Pi"):
        amount /= 1024 if unit != "Mi" else 1024**2
        if abs(amount) < 999.5 or unit == "Pi":
            break
    digits = 0 if unit == "Mi" or abs(amount) >= 99.95 else 1
    return f"{amount:z.{digits}f}{unit}" if abs(amount) < 1e6 else f"{amount:.3g}{unit}"


def format_percent(percent: float | None) -> str:
    """A whole percent."""
    if percent is None or math.isnan(percent):
        return UNKNOWN
    return f"{percent:z.0f}%" if percent < 1e5 else f"{percent:.2g}%"


def format_count(number: float | None) -> str:
    """A whole number."""
    return UNKNOWN if number is None or math.isnan(number) else f"{number:z.0f}"
