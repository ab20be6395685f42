"""Checks of `springtide doctor`: does a watcher write here, and do the nodes report usage."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pipeline.cli.doctor_check import Check
from pipeline.errors import RecordError, SpringtideError
from pipeline.kafka.newest import Found, appended, newest
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.heartbeats import HEARTBEAT_SECONDS, HeartbeatRecord
from pipeline.topics.registry import HEARTBEATS, NODE_STATE, NODES, SAMPLES

_KAFKA_SECONDS: Final = 30.0
_DEAD_SECONDS: Final = 60.0
# Usage of three missed windows is old, and a start takes its time.
_SILENT_WINDOWS: Final = 3
_START_SECONDS: Final = 60.0
_MOST_DELETED_NODES: Final = 5
# A window may have up to five minutes.
_SAMPLE_SECONDS: Final = 330.0


class _State(msgspec.Struct):
    as_of: str
    window_seconds: float


_states: Final = msgspec.json.Decoder(_State)


def watcher_writes(kafka: KafkaSettings, source: str, *, may_just_start: bool) -> bool:
    """Whether a watcher sends heartbeats to these topics: the last one is young, or another comes.
    One that `may_just_start` gets the time for its first. Raises `SpringtideError` or
    `TimeoutError` if they cannot be read."""
    last = _heartbeat(kafka, source)
    if last is not None and _is_young(last):
        return True
    if last is None and not may_just_start:
        return False
    # The clock of the watcher may be wrong, and it may be reading its lists.
    time.sleep(HEARTBEAT_SECONDS + 1.0)
    next_one = _heartbeat(kafka, source)
    return next_one is not None and (last is None or next_one.offset > last.offset)


def _heartbeat(kafka: KafkaSettings, source: str) -> Found | None:
    return asyncio.run(asyncio.wait_for(newest(kafka, HEARTBEATS, source), _KAFKA_SECONDS))


def _is_young(heartbeat: Found) -> bool:
    try:
        at = decode_json(HeartbeatRecord, heartbeat.value).at
    except RecordError:
        return False
    return at is not None and bool(abs(time.time() - parse_time(at)) < _DEAD_SECONDS)


def check_usage(kafka: KafkaSettings, nodes: Iterable[str]) -> Check:
    """Check whether each of these nodes has fresh usage, and no other name has any."""
    try:
        fresh = asyncio.run(asyncio.wait_for(_fresh_nodes(kafka, time.time()), _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError) as error:
        return Check("usage", "unknown", f"cannot read springtide.node-state: {error}")
    known = set(nodes)
    silent, strangers = sorted(known - fresh), sorted(fresh - known)
    problems, todo = [], []
    if silent:
        problems.append(f"{len(silent)} of {len(known)} nodes have none: {_first(silent)}")
        todo.append("start springtide exporter on them, or springtide provider, "
                    "and springtide worker")  # fmt: skip
    if strangers:
        problems.append(f"no node has the name under which usage arrives: {_first(strangers)}")
        todo.append("give each exporter the name of its Node as exporter.node_name or NODE_NAME")
    if problems:
        return Check("usage", "warn", "; ".join(problems), "; ".join(todo))
    return Check("usage", "ok", f"{len(known)} nodes report usage")


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def check_deleted_nodes(kafka: KafkaSettings) -> Check | None:
    """Check that no node sends samples whose record was deleted: workers drop them. None if none
    does. Only the nodes that were deleted last are looked at."""
    try:
        names = asyncio.run(
            asyncio.wait_for(_deleted_nodes_that_send(kafka, time.time()), _KAFKA_SECONDS)
        )
    except (SpringtideError, TimeoutError) as error:
        return Check("samples", "unknown", f"cannot read springtide.samples: {error}")
    if not names:
        return None
    text = f"workers drop the samples of {', '.join(names)}: deleted on springtide.nodes"
    todo = "stop their exporters; if the nodes exist, add them to the cluster or worker.nodes_file"
    return Check("samples", "warn", text, todo)


async def _deleted_nodes_that_send(kafka: KafkaSettings, now: float) -> list[str]:
    deleted: dict[bytes, float] = {}
    async for record in all_records(kafka, NODES):
        deleted.pop(record.key, None)
        if record.value is None:
            deleted[record.key] = record.timestamp / 1000
    names = []
    for key in sorted(deleted, key=deleted.__getitem__)[-_MOST_DELETED_NODES:]:
        name = key.decode(errors="replace")
        # A node may send its last windows while it is deleted.
        since = max(now - _SAMPLE_SECONDS, deleted[key] + _DEAD_SECONDS)
        if since < now:
            async for _ in appended(kafka, SAMPLES, name, since, now):
                names.append(name)
                break
    return names


async def _fresh_nodes(kafka: KafkaSettings, now: float) -> set[str]:
    fresh: set[str] = set()
    async for record in all_records(kafka, NODE_STATE):
        node = record.key.decode(errors="replace")
        fresh.discard(node)
        if record.value is not None:
            try:
                state = _states.decode(record.value)
                age = now - parse_time(state.as_of)
            except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
                continue
            if age < _SILENT_WINDOWS * state.window_seconds + _START_SECONDS:
                fresh.add(node)
    return fresh
