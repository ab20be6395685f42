"""Follow the policy of this node on the topic `nodes`, as far as it concerns measuring.

While the topic cannot be read, the last policy stays in force; before the first record the settings
apply. Every node has an exporter, so each fetches rarely and lets the broker wait long.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec

from node_exporter import exporter_metrics
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, KafkaError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import Backoff, Fetching, LostOffsetError, TopicPartition, open_follower
from pipeline.kafka.partition import partition_of
from pipeline.logs import get_logger
from pipeline.settings import HostApplication, KafkaSettings
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.registry import MAX_RECORD_BYTES, NODES

_FETCH_WAIT_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = (5.0, 60.0)

log = get_logger(__name__)


_HOST_APPS_MAX: Final = 64
_APP_FIELDS: Final = {field.encode_name for field in msgspec.structs.fields(HostApplication)}


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy of a node says about measuring it; None leaves the setting in force.

    `refused` has the reason for each host application of the policy that cannot be measured.
    """

    report_interval_seconds: float | None = None
    memory_collect_policy: MemoryCollectPolicy | None = None
    host_applications: tuple[HostApplication, ...] = ()
    refused: tuple[str, ...] = ()


class _Strategy(msgspec.Struct, frozen=True):
    report_interval_seconds: float | None = None
    memory_collect_policy: MemoryCollectPolicy | None = None


class StatedApplications(msgspec.Struct, frozen=True):
    """The host applications in the spec of a NodeSLO, as they are written."""

    host_applications: list[dict[str, Any]] | None = msgspec.field(
        name="hostApplications", default=None
    )


class _Node(Record, frozen=True, kw_only=True):
    """The fields of `NodeRecord` that the exporter reads."""

    node: str
    strategy: _Strategy | None = None
    slo: StatedApplications | None = None


def node_policy(value: bytes | None) -> NodePolicy:
    """The policy in the value of a node's record; the empty one for a tombstone.

    An invalid host application is refused alone, and so are those beyond `_HOST_APPS_MAX`. Raises
    `RecordError` if the record cannot be decoded.
    """
    if value is None:
        return NodePolicy()
    record = decode_json(_Node, value)
    strategy, slo = record.strategy or _Strategy(), record.slo or StatedApplications()
    applications, refused = host_applications(slo.host_applications or ())
    return NodePolicy(
        report_interval_seconds=strategy.report_interval_seconds,
        memory_collect_policy=strategy.memory_collect_policy,
        host_applications=applications,
        refused=refused,
    )


def host_applications(
    stated: Iterable[dict[str, Any]],
) -> tuple[tuple[HostApplication, ...], tuple[str, ...]]:
    """The valid ones of `hostApplications` of a policy, and why others are refused."""
    applications: dict[str, HostApplication] = {}
    refused = []
    for written in stated:
        try:
            application = _host_application(written)
        except msgspec.ValidationError as error:
            refused.append(f"{written.get('name')!r:.100}: {error}")
            continue
        if application.name in applications or len(applications) == _HOST_APPS_MAX:
            limit = f"at most {_HOST_APPS_MAX}, each name once"
            refused.append(f"{application.name!r:.100}: {limit}")
        else:
            applications[application.name] = application
    return tuple(applications.values()), tuple(refused)


def _host_application(stated: dict[str, Any]) -> HostApplication:
    """An entry of `hostApplications`, without fields that do not concern measuring."""
    return msgspec.convert(
        {name: value for name, value in stated.items() if name in _APP_FIELDS}, HostApplication
    )


async def follow(
    kafka: KafkaSettings, node: str, clock: Clock, apply: Callable[[NodePolicy], None]
) -> None:
    """Call `apply` with each policy of the node, until cancelled."""
    backoff = Backoff(*_BACKOFF_SECONDS)
    next_offset: int | None = None
    while True:
        try:
            async for end, values in _values(kafka, node, next_offset):
                next_offset = end
                backoff.reset()
                if values:
                    _apply(values[-1], apply)
        except LostOffsetError:
            next_offset = None  # the topic was recreated
        except KafkaError as error:
            exporter_metrics.ERRORS.labels("policy").inc()
            # The publisher of windows logs an unavailable broker.
            write = log.debug if isinstance(error, BrokerUnavailableError) else log.warning
            if backoff.is_first:
                write("cannot read the policy, the last one stays", why=error)
        await clock.sleep(backoff.pause())


def _apply(value: bytes | None, apply: Callable[[NodePolicy], None]) -> None:
    try:
        apply(node_policy(value))
    except RecordError as error:
        exporter_metrics.ERRORS.labels("policy").inc()
        log.warning("cannot decode the record of this node", why=error)


async def _values(
    kafka: KafkaSettings, node: str, start: int | None
) -> AsyncIterator[tuple[int, list[bytes | None]]]:
    """Yield (next offset, values of the node's records before it), until cancelled.

    The first pair covers the records from `start` (None: the first record) to the present end, each
    later pair newly appended records.
    """
    tp = TopicPartition(NODES.full_name(kafka.topic_prefix), partition_of(node, kafka.partitions))
    client, key = client_options(kafka), node.encode()
    values: list[bytes | None] = []
    async with open_follower(client, [tp]) as follower:
        ends = await follower.ends()
        starts = await follower.beginnings() if start is None else {tp: start}
        if starts[tp] > ends[tp]:
            raise LostOffsetError(f"{tp.topic} ends before offset {starts[tp]}")
        follower.read_from(starts, ends)
        async for records in follower.read_to_end():
            values += [record.value for record in records if record.key == key]
        end = follower.positions[tp]
    yield end, values
    # The broker waits for this many bytes: one response for many changes.
    wait = min(_FETCH_WAIT_SECONDS, kafka.request_timeout_seconds / 2)
    patient = Fetching(min_bytes=MAX_RECORD_BYTES, max_wait_ms=round(1000 * wait))
    async with open_follower(client, [tp], patient) as follower:
        follower.read_from({tp: end}, {})
        while True:
            records = await follower.poll(timeout_seconds=wait)
            own = [record.value for record in records if record.key == key]
            yield follower.positions[tp], own
