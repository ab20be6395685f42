"""Checks of `springtide doctor`: does a watcher write here, and do the nodes report usage."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from pipeline.cli.doctor_check import Check
from pipeline.errors import RecordError, SpringtideError
from pipeline.kafka.newest import Found, newest
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.heartbeats import HEARTBEAT_SECONDS, HeartbeatRecord
from pipeline.topics.registry import HEARTBEATS, NODE_STATE

_KAFKA_SECONDS: Final = 30.0
_DEAD_SECONDS: Final = 60.0
# Usage of three missed windows is old, and a start takes its time.
_SILENT_WINDOWS: Final = 3
_START_SECONDS: Final = 60.0


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
    """Check whether each of these nodes has fresh usage."""
    try:
        fresh = asyncio.run(asyncio.wait_for(_fresh_nodes(kafka, time.time()), _KAFKA_SECONDS))
    except (SpringtideError, TimeoutError) as error:
        return Check("usage", "unknown", f"cannot read springtide.node-state: {error}")
    known = set(nodes)
    silent = sorted(known - fresh)
    if not silent:
        return Check("usage", "ok", f"{len(known)} nodes report usage")
    names = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
    todo = "start springtide exporter on them, or springtide provider, and springtide worker"
    return Check("usage", "warn", f"{len(silent)} of {len(known)} nodes have none: {names}", todo)


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
