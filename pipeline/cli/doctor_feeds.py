"""Checks of `springtide doctor`: does a watcher write here, and do the nodes report usage."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pipeline.cli.doctor_check import Check, unread
from pipeline.cli.safe_output import printable
from pipeline.errors import RecordError, SpringtideError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kafka.newest import Found, appended, newest
from pipeline.settings import KafkaSettings
from pipeline.sources.compacted_writer import all_records
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.heartbeats import HEARTBEAT_SECONDS, HeartbeatRecord
from pipeline.topics.registry import DEAD_LETTERS, HEARTBEATS, NODE_STATE, NODES, SAMPLES

_KAFKA_SECONDS: Final = 30.0
_DEAD_SECONDS: Final = 60.0
# Usage of three missed windows is old, and a start takes its time.
_SILENT_WINDOWS: Final = 3
_START_SECONDS: Final = 60.0
_MOST_DELETED_NODES: Final = 5
# A window may have up to five minutes.
_SAMPLE_SECONDS: Final = 330.0
_LETTER_SECONDS: Final = 3600.0
WHO_WRITES: Final = "find out who else writes the topic: runbook SpringtideDeadLetters"


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
        return unread("usage", "springtide.node-state", error)
    known = set(nodes)
    silent, strangers = sorted(known - fresh), sorted(fresh - known)
    problems, todo = [], []
    if silent:
        problems.append(f"{len(silent)} of {len(known)} nodes have none: {first_names(silent)}")
        todo.append("start springtide exporter on them, or springtide provider, "
                    "and springtide worker")  # fmt: skip
    if strangers:
        problems.append(f"no node has the name under which usage arrives: {first_names(strangers)}")
        todo.append("give each exporter the name of its Node as exporter.node_name or NODE_NAME")
    if problems:
        return Check("usage", "warn", "; ".join(problems), "; ".join(todo))
    return Check("usage", "ok", f"{len(known)} nodes report usage")


def first_names(names: Sequence[str]) -> str:
    """The first three of `names` for a sentence."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def check_deleted_nodes(kafka: KafkaSettings) -> Check | None:
    """Check that no node sends samples whose record was deleted: workers drop them. None if none
    does. Only the nodes that were deleted last are looked at."""
    try:
        names = asyncio.run(
            asyncio.wait_for(_deleted_nodes_that_send(kafka, time.time()), _KAFKA_SECONDS)
        )
    except (SpringtideError, TimeoutError) as error:
        return unread("samples", "springtide.samples", error)
    if not names:
        return None
    text = f"workers drop the samples of {', '.join(names)}: deleted on springtide.nodes"
    todo = "stop their exporters; if the nodes exist, add them to the cluster or worker.nodes_file"
    return Check("samples", "warn", text, todo)


def check_dead_letters(kafka: KafkaSettings) -> Check | None:
    """Check that no record was refused in the last hour; None if none was."""
    try:
        count, newest_letter = asyncio.run(
            asyncio.wait_for(_dead_letters(kafka, time.time() - _LETTER_SECONDS), _KAFKA_SECONDS)
        )
    except (SpringtideError, TimeoutError) as error:
        return unread("refused", "springtide.dead-letters", error)
    if newest_letter is None:
        return None
    # A header of others may have no value.
    headers = {
        name: (value or b"").decode(errors="replace") for name, value in newest_letter.headers
    }
    topic, reason = headers.get("topic") or "an unknown topic", headers.get("error", "")
    text = (
        f"workers and extenders refused {count:,} records in the last hour, lately of "
        f"{topic:.100}: {reason:.200}"
    )
    return Check("refused", "warn", printable(text), WHO_WRITES)


async def _dead_letters(kafka: KafkaSettings, since: float) -> tuple[int, ConsumerRecord | None]:
    """The number of dead letters since a time (Unix), and the newest of them."""
    partitions = topic_partitions(kafka, DEAD_LETTERS)
    async with open_follower(client_options(kafka), partitions) as follower:
        starts = await follower.offsets_at({tp: round(1000 * since) for tp in partitions})
        ends = await follower.ends()
        last = {tp: ends[tp] - 1 for tp in partitions if ends[tp] > starts[tp]}
        follower.read_from(last, {tp: ends[tp] for tp in last})
        letters = [letter async for some in follower.read_to_end() for letter in some]
    count = sum(ends[tp] - starts[tp] for tp in partitions)
    return count, max(letters, key=lambda letter: letter.timestamp, default=None)


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
