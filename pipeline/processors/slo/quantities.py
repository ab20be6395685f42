"""Write amounts in the shortest form of Kubernetes quantities, as koordlet does.

A Go client that reads and writes the object leaves these texts unchanged.
"""

from collections.abc import Sequence
from typing import Final

_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def cpu_quantity(millicores: int) -> str:
    """Millicores as a quantity.

    >>> cpu_quantity(515), cpu_quantity(2000), cpu_quantity(0)
    ('515m', '2', '0')
    """
    return _shortest(millicores, 1000, _DECIMAL)


def memory_quantity(size: int) -> str:
    """Bytes as a quantity; below 1024 in thousands, as Go writes them.

    >>> memory_quantity(5862330450), memory_quantity(5849563136), memory_quantity(1000)
    ('5862330450', '5712464Ki', '1k')
    """
    if size < 1024:
        return _shortest(size, 1000, _DECIMAL[1:])
    return _shortest(size, 1024, _BINARY)


def _shortest(amount: int, base: int, suffixes: Sequence[str]) -> str:
    if amount == 0:
        return "0"
    place = 0
    while amount % base == 0 and place < len(suffixes) - 1:
        amount //= base
        place += 1
    return f"{amount}{suffixes[place]}"
