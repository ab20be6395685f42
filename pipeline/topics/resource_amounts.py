"""Amounts of CPU and memory in records, and the parser of Kubernetes quantities.

`Usage` has measured floats, `Resources` the integers of requests, limits and allocatable,
`ByResource` any other number by resource.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

import msgspec

from pipeline.errors import InvalidRecordError

_SUFFIX: dict[str, Decimal] = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m", ""), -3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
}
_LARGEST = Decimal(2**63 - 1)
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}(?![a-zA-Z]))?)([a-zA-Z]{0,2})\Z"
)


Scalars = dict[str, int]
"""Amounts of resources other than cpu and memory, in whole units (`kubernetes.io/batch-cpu` is in
millicores)."""


LARGEST_AMOUNT: Final = 2**53
"""The largest amount of a node or pod: below it float64 and all readers of JSON are exact."""
LARGEST_POD_AMOUNT: Final = 2**48
"""The largest amount of a pod in sums over pods, 256 TiB: no node has so many pods (2**15) that
their sum exceeds int64, whatever limits a tenant states."""
LARGEST_QUANTITY: Final = 2**63 - 1
"""The largest quantity; the API server accepts larger ones and takes them for this."""
MID: Final = ("kubernetes.io/mid-cpu", "kubernetes.io/mid-memory")
BATCH: Final = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
"""Resource names of cpu (millicores) and memory (bytes) in Nodes and pods."""
RATES: Final = {
    "springtide.io/network-receive": "network_receive_bytes_per_second",
    "springtide.io/network-transmit": "network_transmit_bytes_per_second",
    "springtide.io/disk-read": "disk_read_bytes_per_second",
    "springtide.io/disk-write": "disk_write_bytes_per_second",
}
"""Columns of samples with measured rates, in bytes per second, by their resource name in Nodes and
pods."""
MEASURED: Final = ("cpu", "memory", *RATES)
"""Resources with measured usage; rates have only that of the last window."""
MAX_GAUGES: Final = 8
"""Gauges of one sample."""
# Names of extended resources, in the lengths that the API server allows.
_GAUGE_NAME = re.compile(
    "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def is_gauge(name: str) -> bool:
    """Whether a statistic of a sample is a *gauge*: a number of the node under the name of an
    extended resource, whose meaning and unit only its writer and the Node's capacity know.

    >>> is_gauge("example.com/conntrack"), is_gauge("conntrack"), is_gauge([*RATES][0])
    (True, False, False)
    """
    return name not in RATES and _GAUGE_NAME.fullmatch(name) is not None


def gauge_problems(names: Collection[str]) -> Iterator[str]:
    """Yield why these names cannot be the gauges of a sample."""
    for name in names:
        if name in RATES:
            yield f"{name} is the resource of the statistic {RATES[name]}"
        elif not is_gauge(name):
            yield f"{name!r:.100} is not a domain and a name, such as example.com/conntrack"
    if len(names) > MAX_GAUGES:
        yield f"{len(names)} names are more than {MAX_GAUGES}"


def first_gauges(names: Iterable[str]) -> tuple[str, ...]:
    """The gauges among these names, in their order and at most `MAX_GAUGES`."""
    return tuple(sorted(filter(is_gauge, names))[:MAX_GAUGES])


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Measured or predicted usage; None is unknown, never 0.

    cpu_cores: CPU in cores.
    memory_bytes: Memory in bytes.
    """

    cpu_cores: float | None = None
    memory_bytes: float | None = None


class ByResource(msgspec.Struct, frozen=True, kw_only=True):
    """A number by resource, in the unit of the name of the field that has it; None is unknown.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: float | None = None
    memory: float | None = None


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Amounts of requests, limits or allocatable; None if the resource is not stated.

    cpu_millicores: CPU in millicores.
    memory_bytes: Memory in bytes.
    """

    cpu_millicores: int | None = None
    memory_bytes: int | None = None


def by_name(amounts: Resources, scalars: Mapping[str, int] | None) -> dict[str, int]:
    """Amounts by Kubernetes' names of resources."""
    named = dict(scalars or {})
    if amounts.cpu_millicores is not None:
        named["cpu"] = amounts.cpu_millicores
    if amounts.memory_bytes is not None:
        named["memory"] = amounts.memory_bytes
    return named


def parse_quantity(text: str | int | float) -> Decimal:
    """The exact value of a Kubernetes quantity such as `500m`, `2Gi` or `1e3`, at most
    `LARGEST_QUANTITY`, at least its negative.

    >>> parse_quantity("1.5Gi")
    Decimal('1610612736.0')

    Raises `InvalidRecordError` for another text.
    """
    match = _QUANTITY.match(str(text))
    if match is None or match[2] not in _SUFFIX:
        raise InvalidRecordError(f"{str(text)[:80]!r} is not a Kubernetes quantity")
    value = Decimal(match[1]) * _SUFFIX[match[2]]
    return min(max(value, -_LARGEST), _LARGEST)


@lru_cache(maxsize=4096)  # a million pods have few distinct quantities
def millicores(text: str | int | float) -> int:
    """A CPU quantity in millicores, rounded up as Kubernetes does, at most `LARGEST_QUANTITY`.

    >>> millicores("0.5"), millicores("1500m"), millicores(2)
    (500, 1500, 2000)
    """
    amount = int((parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING))
    return min(max(amount, -LARGEST_QUANTITY), LARGEST_QUANTITY)


@lru_cache(maxsize=4096)
def whole_bytes(text: str | int | float) -> int:
    """A memory quantity in bytes, rounded up.

    >>> whole_bytes("64Mi")
    67108864
    """
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))
