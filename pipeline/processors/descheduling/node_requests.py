"""The last request for relief of each node, from `springtide.eviction-requests`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.errors import InvalidRecordError, UnknownNodeError
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.times import parse_time
from pipeline.topics.eviction_plans import LONGEST_NAME, LONGEST_VALID_SECONDS
from pipeline.topics.eviction_requests import MOST_PODS, EvictionRequestRecord

_LARGEST_AMOUNT: Final = 1 << 48
_MOST_TEXT: Final = 200


class NodeRequest(NamedTuple):
    """What should leave a node: usage in millicores and bytes of pods of these classes, or the pods
    of these UIDs. `why` is for people. It ends at a Unix time."""

    request_id: str
    cpu_millicores: int
    memory_bytes: int
    classes: frozenset[str]
    why: str
    until: float
    pods: tuple[str, ...] = ()


class NodeRequests:
    """The last request of each node. Requests of nodes that are not known are refused: made-up
    names keep no node out. Times are Unix times of the reader's clock."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._requests: dict[str, NodeRequest] = {}

    def take(self, record: EvictionRequestRecord, now: float, appended_at: float | None) -> bool:
        """Take a record, which the broker appended at this time; False if it has ended. Raises
        `InvalidRecordError` or `UnknownNodeError`."""
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
        if len(record.pods) > MOST_PODS or any(len(uid) > LONGEST_NAME for uid in record.pods):
            raise InvalidRecordError(
                f"more than {MOST_PODS} pods, or a UID of more than {LONGEST_NAME} characters"
            )
        if unknown := {*record.classes} - {*CLASSES}:
            raise InvalidRecordError(f"unknown classes: {sorted(unknown)!r:.100}")
        # By the broker's clock: that of the node may be wrong.
        began = now if appended_at is None else min(appended_at, now)
        until = began + min(valid_until - made_at, LONGEST_VALID_SECONDS)
        if until <= now or not any(amounts):
            return self._requests.pop(record.node, None) is not None
        if not self._is_known(record.node):
            raise UnknownNodeError(f"there is no node {record.node!r:.80}")
        why = f"{record.requester:.50}: {record.why}"[:_MOST_TEXT]
        self._requests[record.node] = NodeRequest(
            record.id, *amounts, frozenset(record.classes), why, until, record.pods
        )
        return True

    def open(self, now: float) -> Mapping[str, NodeRequest]:
        """The requests that have not ended, by node: those first that wait for the longest. A node
        that asks again keeps its place."""
        for node in [node for node, request in self._requests.items() if request.until <= now]:
            del self._requests[node]
        return self._requests

    def note_turn(self, nodes: Iterable[str]) -> None:
        """Let these nodes wait for the others before their next turn."""
        for node in nodes:
            if node in self._requests:
                self._requests[node] = self._requests.pop(node)

    def shift(self, seconds: float) -> None:
        """The reader's clock was set by so many seconds."""
        self._requests = {
            node: request._replace(until=request.until + seconds)
            for node, request in self._requests.items()
        }
