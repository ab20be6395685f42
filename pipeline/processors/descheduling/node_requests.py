"""The last request for relief of each node, from `springtide.eviction-requests`."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.times import parse_time
from pipeline.topics.eviction_plans import LONGEST_NAME, LONGEST_VALID_SECONDS
from pipeline.topics.eviction_requests import EvictionRequestRecord

MOST_REQUESTS: Final = 10_000
"""Requests that are open at once; further ones are refused."""
_LARGEST_AMOUNT: Final = 1 << 48
_MOST_TEXT: Final = 200


class NodeRequest(NamedTuple):
    """What should leave a node: usage in millicores and bytes of pods of these classes. `why` is
    for people. It ends at a Unix time."""

    request_id: str
    cpu_millicores: int
    memory_bytes: int
    classes: frozenset[str]
    why: str
    until: float


class NodeRequests:
    """The last request of each node. Times are Unix times of the reader's clock."""

    def __init__(self) -> None:
        self._requests: dict[str, NodeRequest] = {}

    def take(self, record: EvictionRequestRecord, now: float, appended_at: float | None) -> bool:
        """Take a record, which the broker appended at this time; False if it has ended. Raises
        `InvalidRecordError`."""
        try:
            made_at, valid_until = parse_time(record.at), parse_time(record.valid_until)
        except ValueError as error:
            raise InvalidRecordError(f"invalid time: {error}") from error
        amounts = record.cpu_millicores, record.memory_bytes
        if not all(0 <= amount <= _LARGEST_AMOUNT for amount in amounts):
            raise InvalidRecordError(f"{amounts} are no amounts of usage")
        if len(record.id) > LONGEST_NAME:
            raise InvalidRecordError(
                f"id has {len(record.id)} characters, more than {LONGEST_NAME}"
            )
        if unknown := {*record.classes} - {*CLASSES}:
            raise InvalidRecordError(f"unknown classes: {sorted(unknown)!r:.100}")
        # By the broker's clock: that of the node may be wrong.
        began = now if appended_at is None else min(appended_at, now)
        until = began + min(valid_until - made_at, LONGEST_VALID_SECONDS)
        if until <= now or not any(amounts):
            return self._requests.pop(record.node, None) is not None
        is_full = len(self._requests) >= MOST_REQUESTS and len(self.open(now)) >= MOST_REQUESTS
        if is_full and record.node not in self._requests:
            raise InvalidRecordError(f"{MOST_REQUESTS} requests are open")
        why = f"{record.requester:.50}: {record.why}"[:_MOST_TEXT]
        self._requests[record.node] = NodeRequest(
            record.id, *amounts, frozenset(record.classes), why, until
        )
        return True

    def open(self, now: float) -> Mapping[str, NodeRequest]:
        """The requests that have not ended, by node."""
        for node in [node for node, request in self._requests.items() if request.until <= now]:
            del self._requests[node]
        return self._requests

    def shift(self, seconds: float) -> None:
        """The reader's clock was set by so many seconds."""
        self._requests = {
            node: request._replace(until=request.until + seconds)
            for node, request in self._requests.items()
        }
