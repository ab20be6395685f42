"""`springtide.fleet`: the mean usage of node pools and workloads in one hour, keyed by `hour/<n>`.

The planner writes a record for each hour and reads them when it starts: changes of level are found
by comparison with the same hours of earlier days. The key is the hour's number since 1970 modulo
`KEYS`, so that the topic keeps a bounded number of hours.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pipeline.errors import KeyMismatchError
from pipeline.times import parse_time
from pipeline.topics.codec import Record
from pipeline.topics.result_header import check_time

_KEY: Final = b"hour/"
KEYS: Final = 200
"""More than the hours that are compared."""
HOUR_SECONDS: Final = 3600

Amount = Annotated[float, Meta(ge=0.0, le=1e15)]


class HourlyUsageRecord(Record, frozen=True, kw_only=True):
    """The mean usage of node pools and workloads in an hour.

    hour: Begin of the hour, RFC 3339, UTC.
    usage: Usage of cpu and memory by `pool/<name>`, as a share of allocatable, and by
      `workload/<kind>/<namespace>/<name>`, of a pod in cores and bytes; null is unknown. Pools and
      workloads that were not seen are missing.
    """

    hour: str
    usage: dict[str, tuple[Amount | None, Amount | None]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_time("hour", self.hour)

    @property
    def number(self) -> int:
        """The hour's number since 1970."""
        return int(parse_time(self.hour) // HOUR_SECONDS)


def hour_key(number: int) -> bytes:
    """The key of the record of an hour."""
    return _KEY + str(number % KEYS).encode()


def is_hour_key(key: bytes | None) -> bool:
    """Whether a record of the topic is about an hour."""
    return key is not None and key.startswith(_KEY)


def check_hour(record: HourlyUsageRecord, key: bytes | None) -> int:
    """The hour's number. Raises `KeyMismatchError` if the key is that of another hour."""
    number = record.number
    if key != hour_key(number):
        raise KeyMismatchError(f"usage of {record.hour:.40} has the key {key!r:.40}")
    return number
