"""`springtide.fleet`: what a pod of a workload used in the last days, keyed by
`workloads/<namespace>/<kind>/<name>`.

The worker of partition 0 writes it from the newest checkpoints. The join writes it into the window
of a node to which the workload comes, so that its first pod there is no stranger. Readers that do
not know it ignore it.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.times import parse_time
from pipeline.topics.codec import Record
from pipeline.topics.result_header import check_time
from pipeline.topics.workloads import Workload, workload_key

HISTORIES: Final = b"workloads/"
"""How keys of the histories of workloads begin."""
MOST_HOURS: Final = 168
"""Hours of a history."""
LONGEST_MS: Final = 7 * 86_400_000
"""How old a history may be for a pod to begin with it."""
HOUR_MS: Final = 3_600_000
LONGEST_NAME: Final = 253
"""Characters of a name in Kubernetes, and of those in records of pods."""
SCALE: Final = 255
"""The byte of an hour with the highest usage."""


class HistoryHours(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The highest usage of one pod in each hour.

    until: End of the last hour, RFC 3339, UTC.
    highest: The highest of all hours, in cores or bytes.
    hours: Each hour in 1/255 of `highest`, rounded up, a byte each in Base64, the oldest first.
    """

    until: str
    highest: Annotated[float, Meta(ge=0, le=1e15)]
    hours: Annotated[bytes, Meta(min_length=1, max_length=MOST_HOURS)]

    def __post_init__(self) -> None:
        check_time("until", self.until)
        if self.until_ms % HOUR_MS:
            raise ValueError("until must be a full hour")

    @property
    def until_ms(self) -> int:
        """`until` in milliseconds since 1970."""
        return round(1000 * parse_time(self.until))


_Name = Annotated[str, Meta(max_length=LONGEST_NAME)]


class WorkloadHistoryRecord(Record, frozen=True, kw_only=True):
    """What a pod of a workload used: of all its pods the one with the longest history.

    namespace: Namespace.
    kind: Kind of the workload: a Deployment, not its ReplicaSet.
    name: Name.
    cpu: Of CPU.
    memory: Of memory.
    """

    namespace: _Name
    kind: _Name
    name: _Name
    cpu: HistoryHours | None = None
    memory: HistoryHours | None = None

    def __post_init__(self) -> None:
        if self.cpu is None and self.memory is None:
            raise ValueError("a history has cpu or memory")

    @property
    def workload(self) -> Workload:
        """The workload that it is of."""
        return Workload(self.namespace, self.kind, self.name)

    @property
    def at_ms(self) -> int:
        """The end of its newest hour, milliseconds since 1970. Readers order records by it."""
        return max(own.until_ms for own in (self.cpu, self.memory) if own is not None)


def history_key(workload: Workload) -> bytes:
    """The key of the record of a workload."""
    return HISTORIES + workload_key(*workload)


def has_history_key(workload: Workload) -> bool:
    """Whether readers find this workload in the key of its record. Those of Kubernetes do, but the
    API server accepts any text as the name of an owner."""
    return all("/" not in part and len(part) <= LONGEST_NAME for part in workload)


def workload_of_key(key: bytes | None) -> Workload | None:
    """The workload whose history has this key; None if the key is of another kind. Raises
    `KeyMismatchError` if it is not a workload's."""
    if key is None or not key.startswith(HISTORIES):
        return None
    try:
        parts = key.removeprefix(HISTORIES).decode().split("/")
    except UnicodeDecodeError as error:
        raise KeyMismatchError("name of a workload is not UTF-8") from error
    if len(parts) != len(Workload._fields):
        raise KeyMismatchError(f"{key[:80]!r} is not the key of a workload's history")
    return Workload(*parts)


def check_history(
    record: WorkloadHistoryRecord, workload: Workload, appended_ms: int, ahead_seconds: float
) -> None:
    """Raise `KeyMismatchError` if a record is of another workload than its key, and
    `InvalidRecordError` if it has hours that end more than `ahead_seconds` after the broker
    received it: no later record could replace it."""
    if record.workload != workload:
        raise KeyMismatchError(f"a history of {record.workload} has the key of {workload}")
    ahead_ms = record.at_ms - appended_ms
    if ahead_ms > 1000 * ahead_seconds:
        raise InvalidRecordError(
            f"the history of {workload} is dated {ahead_ms / 1000:.3f} s after the broker received "
            f"it, more than the {ahead_seconds:g} s allowed"
        )
