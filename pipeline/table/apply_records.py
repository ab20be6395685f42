"""Apply records of the topics to the table.

An invalid record raises before anything is changed, so that the feed can skip it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, KeyMismatchError
from pipeline.spans import context_in
from pipeline.table import limits
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.table.state_table import Table
from pipeline.table.usage_history import UsagePoint
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.heartbeats import WATCHER, HeartbeatRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.node_views import ViewHead
from pipeline.topics.nodes import SOURCE_HEADER, check_node_name
from pipeline.topics.pods import CountedPod, split_pod_key
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODE_VIEWS, PODS, RESOURCES, Topic
from pipeline.topics.result_header import position_of
from pipeline.topics.windows import decode_window

Headers = Sequence[tuple[str, bytes | None]]
"""Headers as Kafka has them: a value may be null."""

RecordT = TypeVar("RecordT", TableNode, NodeStateRecord, OfferedResources, ViewHead, UsagePoint)


def apply(
    table: Table,
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
) -> bool:
    """Apply one record of `topic`; False if the table has a newer one. Raises `RecordError` if it
    is invalid."""
    if topic is PODS:
        return _apply_pod(table, key, value)
    if topic is HEARTBEATS:
        return _apply_heartbeat(table, key, value)
    node = node_of(key)
    if topic is NODE_VIEWS:
        return _apply_view(table, node, value, headers)
    if value is None and topic is NODE_STATE:
        return table.drop_state(node, position_of(headers))
    if value is None and topic is RESOURCES:
        return table.drop_resources(node, position_of(headers))
    if value is None:
        table.drop_node(node)
        return True
    if topic is RESOURCES:
        return table.put_resources(_record(OfferedResources, node, value))
    if topic is NODE_STATE:
        return table.put_state(_record(NodeStateRecord, node, value))
    record = _record(TableNode, node, value)
    is_watched = (SOURCE_HEADER, WATCHER.encode()) in headers
    if record.is_watched != is_watched:
        record = msgspec.structs.replace(record, is_watched=is_watched)
    return table.put_node(record)


def apply_point(
    table: Table,
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
    *,
    now: Callable[[], float] | None = None,
) -> bool:
    """Apply a node state to the history alone; False if the history has a newer one. `now` is the
    clock of the process: a state from the future would keep out all until then."""
    node = node_of(key)
    if value is None:
        return table.history.drop(node, position_of(headers))
    point = _record(UsagePoint, node, value)
    try:
        end_seconds = parse_time(point.as_of)
    except ValueError as error:
        raise InvalidRecordError(f"as_of is not readable: {error}") from error
    if now is not None and end_seconds - now() > limits.FUTURE_SECONDS:
        raise InvalidRecordError(f"as_of {point.as_of} is in the future of this process's clock")
    position = point.generation, point.offset
    return table.history.put(node, end_seconds, point.usage, position, point.peaks_by_rank)


def apply_pod_points(
    table: Table,
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
) -> bool:
    """Apply a window to the history of pods alone; False if the history has a newer one."""
    if value is None:
        raise InvalidRecordError("a window has no tombstone")
    window = decode_window(value)
    if window.header.node != node_of(key):
        raise KeyMismatchError(f"payload is about {window.header.node}, key about {key!r:.100}")
    return table.pod_history.put(window)


def _apply_pod(table: Table, key: bytes | None, value: bytes | None) -> bool:
    if not key:
        raise InvalidRecordError("record has no key")
    node, uid = split_pod_key(key)
    if value is None:
        table.drop_pod(node, uid)
        return True
    pod = decode_json(CountedPod, value)
    if (pod.node, pod.uid) != (node, uid):
        raise KeyMismatchError(f"payload is about {pod.node}/{pod.uid:.80}, key about {key[:80]!r}")
    return table.put_pod(pod)


def _apply_heartbeat(table: Table, key: bytes | None, value: bytes | None) -> bool:
    source = (key or b"").decode(errors="replace")
    if value is None:
        return False  # proves neither that the watcher lives nor that another source took over
    record = decode_json(HeartbeatRecord, value)
    if record.source != source:
        raise KeyMismatchError(f"payload is about {record.source[:80]!r}, key {source[:80]!r}")
    table.heartbeats.take(None if record.at is None else parse_time(record.at))
    return True


def _apply_view(table: Table, node: str, value: bytes | None, headers: Headers) -> bool:
    if value is None:
        table.views.drop(node)
        return True
    generation = _record(ViewHead, node, value).generation
    return table.views.put(node, generation, value, context_in(headers))


def node_of(key: bytes | None) -> str:
    """The node that a key names. Raises `RecordError` if it names none."""
    if not key:
        raise InvalidRecordError("record has no key")
    try:
        node = key.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"key {key[:80]!r} is not UTF-8") from error
    check_node_name(node)
    return node


def _record(kind: type[RecordT], node: str, value: bytes) -> RecordT:
    record = decode_json(kind, value)
    if record.node != node:
        raise KeyMismatchError(f"payload is about {record.node[:80]!r}, key about {node[:80]!r}")
    return record
