"""Shares of the last-level cache and of memory bandwidth, in the words of the kernel's resctrl.

A *schemata* gives each cache a mask of its ways (`L3:0=f;1=f`) and a bandwidth (`MB:0=50;1=50`).
Ids of caches need not be dense. Rounding is Koordinator's.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from pipeline.errors import InvalidPolicyError, KernelFileError

Vendor = Literal["intel", "amd"]

_AMD_UNLIMITED: Final = 2048
_AMD_UNITS: Final = 160
"""25 GB/s in units of 1/8 GB/s, less a fifth: what a CPU can really use."""


class Schemata(NamedTuple):
    """Masks of cache ways and bandwidths by id of the cache."""

    l3: Mapping[int, int]
    mb: Mapping[int, int]

    def lines(self) -> Iterator[str]:
        """The lines that set it; none for what is empty."""
        if self.l3:
            yield "L3:" + ";".join(f"{id}={mask:x}" for id, mask in sorted(self.l3.items()))
        if self.mb:
            yield "MB:" + ";".join(f"{id}={amount}" for id, amount in sorted(self.mb.items()))


def parse_schemata(text: str) -> Schemata:
    """Read the file `schemata`; lines of other resources are ignored. Raises KernelFileError."""
    l3, mb = dict[int, int](), dict[int, int]()
    for line in text.splitlines():
        resource, _, shares = line.strip().partition(":")
        if resource not in ("L3", "MB"):
            continue
        target, base = (l3, 16) if resource == "L3" else (mb, 10)
        for share in filter(None, shares.split(";")):
            id, _, amount = share.partition("=")
            try:
                target[int(id)] = int(amount, base)
            except ValueError as error:
                raise KernelFileError(f"not a schemata: {line[:80]!r}", path="schemata") from error
    return Schemata(l3, mb)


def parse_mask(text: str) -> int:
    """Read `cbm_mask`: hexadecimal, the ways of the whole cache. Raises KernelFileError."""
    try:
        mask = int(text, 16)
    except ValueError as error:
        raise KernelFileError(f"not a mask: {text[:80]!r}", path="cbm_mask") from error
    if mask <= 0 or mask & (mask + 1):
        raise KernelFileError(
            f"{text[:80]!r} does not start at way 0, or has a hole", path="cbm_mask"
        )
    return mask


def way_mask(full_mask: int, start_percent: int, end_percent: int, min_ways: int = 1) -> int:
    """The ways in this range of the cache, both ends rounded up, at least `min_ways`.

    Raises InvalidPolicyError for a range that is empty or not within 0..100.
    """
    if not 0 <= start_percent < end_percent <= 100:
        raise InvalidPolicyError(f"{start_percent}..{end_percent} is not a range of the cache")
    ways = full_mask.bit_length()
    first, end = (-(-ways * percent // 100) for percent in (start_percent, end_percent))
    end = min(max(end, first + min_ways), ways)
    first = max(min(first, end - min_ways), 0)
    return (1 << end) - (1 << first)


def bandwidth(vendor: Vendor, percent: int | None) -> int | None:
    """The amount in a line `MB`; None, which changes nothing, for a percentage not in 1..100.

    Intel: percent, rounded up to tens. AMD: units of 1/8 GB/s.
    """
    if percent is None or not 1 <= percent <= 100:
        return None
    if vendor == "intel":
        return -(-percent // 10) * 10
    return _AMD_UNLIMITED if percent == 100 else _AMD_UNITS * percent // 100
