"""The cluster actuator: feed topics and lists to features, and execute their writes.

It decides nothing before it has read all topics to their present end and all lists. With a part of
the facts a feature would take nodes for deleted, and remove their offers. Nothing is stored: after
a restart, and when another process leads, everything is read and decided again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from actuators.action_log import Actions
from actuators.cluster.cooled_nodes import CooledNodes
from actuators.cluster.feature import Context, Feature, Follower, Watch
from actuators.cluster.node_metric_objects import NodeMetricObjects
from actuators.cluster.node_slo_objects import NodeSloObjects
from actuators.cluster.offer_writer import OfferWriter
from actuators.cluster.outage_events import OutageEvents
from actuators.cluster.usage_thresholds import UsageThresholds
from actuators.cluster.write_queue import WriteQueue
from actuators.rate_limit import RateLimit
from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import ForbiddenError, NotFoundError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kafka.refused_records import refuse
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Event, Page, follow
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.settings import Settings
from pipeline.tasks import run_all
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import check_readable, decode_json
from pipeline.topics.heartbeats import HeartbeatRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord, check_node_name
from pipeline.topics.registry import (
    HEARTBEATS,
    NODE_STATE,
    NODES,
    RESOURCES,
    WAKE_UPS,
    WINDOWS,
    Topic,
)
from pipeline.topics.wake_ups import WakeUpRecord
from pipeline.topics.windows import decode_window

log = get_logger(__name__)

LOST = counter("actuator_lost_actions", "Actions that could not be written to springtide.actions.")
READY = gauge("actuator_ready", "1 once all topics and Nodes have been read.")

FEATURES: Final[Sequence[type[Feature]]] = (
    OfferWriter,
    NodeMetricObjects,
    NodeSloObjects,
    CooledNodes,
    OutageEvents,
    UsageThresholds,
)

TOPICS: Final[Mapping[Topic, Callable[[bytes], Any]]] = {
    NODES: lambda value: decode_json(NodeRecord, value),
    RESOURCES: lambda value: decode_json(NodeResourcesRecord, value),
    NODE_STATE: lambda value: decode_json(NodeStateRecord, value),
    HEARTBEATS: lambda value: decode_json(HeartbeatRecord, value),
    WAKE_UPS: lambda value: decode_json(WakeUpRecord, value),
    WINDOWS: decode_window,
}
"""Topics that features may read, and how their values are decoded."""

_TICK_SECONDS: Final = 0.2
_SWEEP_SECONDS: Final = 5.0
_SUMMARY_SECONDS: Final = 60.0
_LEAST_PER_SECOND: Final = 20.0
# A NodeMetric is due every 60 s by default; an offer, a spec or a mark may change meanwhile.
_NODE_SECONDS: Final = 30.0


class _Metadata(msgspec.Struct):
    name: str


class _Deleted(msgspec.Struct):
    metadata: _Metadata


class ClusterActuator:
    """The actuator while its process holds the lease; a new one is made for each lease."""

    def __init__(self, api: Api, settings: Settings, clock: Clock, lease: Lease) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._actions = Actions(settings.kafka, LOST)
        self._limit = RateLimit(writes_per_second(settings, 0), clock)
        self.queue = WriteQueue(self._limit, clock, lambda: lease.is_held)
        context = Context(api, self.queue, clock, settings, self._report)
        self._node_uids, self._traces = context.node_uids, context.traces
        self.features = [feature(context) for feature in FEATURES]
        self.watches: dict[Watch, list[Follower]] = {}
        for feature in self.features:
            for watch, follower in feature.watches.items():
                self.watches.setdefault(watch, []).append(follower)
        self._action_counts = Counter[str]()
        self._topics_read = asyncio.Event()
        self._has_decided = False

    def trouble(self) -> str:
        """Why the actuator is not ready: it is still reading, or in mode observe still undoing what
        another mode wrote. Empty if it is ready."""
        if not self._has_decided:
            return "reading topics and Nodes"
        remaining = self.queue.unfinished if self._settings.actuator.mode == "observe" else 0
        return f"undoing what another mode wrote: {remaining} writes remain" if remaining else ""

    async def run(self) -> None:
        """Act, until cancelled or until another process holds the lease."""
        READY.set(0)
        lists_read = [asyncio.Event() for _ in self.watches]
        await run_all(
            [
                self._read(),
                self._decide_forever(lists_read),
                self.queue.run(),
                self._actions.run(),
                *map(self._follow, self.watches, lists_read),
            ]
        )

    # -- topics

    async def _read(self) -> None:
        wanted, kafka, now = self._topics(), self._settings.kafka, self._clock.now()
        topics = {topic.full_name(kafka.topic_prefix): topic for topic in wanted}
        since_ms = {
            full_name: round((now - seconds) * 1000)
            for full_name, topic in topics.items()
            if (seconds := wanted[topic]) is not None
        }
        partitions = topic_partitions(kafka, *topics.values())
        async with open_follower(client_options(kafka), partitions) as follower:
            await follower.begin(since_ms)
            while True:
                for record in await follower.poll():
                    self.learn(topics[record.topic], record)
                if follower.is_caught_up:
                    self._topics_read.set()

    def _topics(self) -> dict[Topic, float | None]:
        """The topics that features read, each with the longest past that one of them needs."""
        wanted: dict[Topic, float | None] = {}
        for feature in self.features:
            for topic, seconds in feature.topics.items() if feature.is_on else ():
                other = wanted.get(topic, 0.0)
                is_whole = seconds is None or other is None
                wanted[topic] = None if is_whole else max(float(seconds or 0), float(other or 0))
        return wanted

    def learn(self, topic: Topic, record: ConsumerRecord) -> None:
        """Hand a record to the features that read its topic; count and drop invalid ones."""
        try:
            check_readable(record.value)
            node, value = (record.key or b"").decode(), record.value
            check_node_name(node)  # features put it into paths of the API server
            decoded = None if value is None else TOPICS[topic](value)
            for feature in self.features:
                if feature.is_on and topic in feature.topics:
                    feature.learn(topic, node, decoded)
            if topic is RESOURCES:
                tracing.note(self._traces, node, record.headers)
        except (RecordError, UnicodeDecodeError) as error:
            refuse(record.topic, error, partition=record.partition, offset=record.offset)

    # -- the API server

    async def _follow(self, watch: Watch, is_read: asyncio.Event) -> None:
        """Deliver a list-watch to its followers. A collection that the server does not have, or
        that this client may not read, counts as read unless it is required: it cannot contain
        objects of ours."""
        try:
            events = follow(self._api, watch.path, only_metadata=watch.only_metadata)
            async for event in events:
                for follower in self.watches[watch]:
                    deliver(follower, event)
                if isinstance(event, Complete):
                    is_read.set()
        except (NotFoundError, ForbiddenError) as error:
            is_read.set()
            if watch.is_required and isinstance(error, NotFoundError):
                text = f"the API server does not serve {watch.path}: {error.message}"
                raise NotFoundError(text, hint="kubectl apply -f deploy/chart/crds") from error
            if watch.is_required:
                raise
            log.debug("not followed", path=watch.path, why=error.message)

    # -- decisions

    async def _decide_forever(self, lists_read: Sequence[asyncio.Event]) -> None:
        for is_read in (self._topics_read, *lists_read):
            await is_read.wait()
        READY.set(1)
        log.info("ready", mode=self._settings.actuator.mode)
        self.start()
        last_sweep_seconds, summed = float("-inf"), self._clock.monotonic()
        while True:
            everything = self._clock.monotonic() - last_sweep_seconds >= _SWEEP_SECONDS
            if everything:
                last_sweep_seconds = self._clock.monotonic()
            self.decide(everything=everything)
            self._has_decided = True
            if self._action_counts and self._clock.monotonic() - summed >= _SUMMARY_SECONDS:
                summed = self._clock.monotonic()
                self._log_summary()
            await self._clock.sleep(_TICK_SECONDS)

    def start(self) -> None:
        """Tell the features that all topics and lists have been read."""
        for feature in self.features:
            feature.start()

    def decide(self, *, everything: bool) -> None:
        """Queue the writes that are due; with `everything` look at every object again, and let the
        limit of writes follow the number of Nodes."""
        if everything:
            self._limit.per_second = writes_per_second(self._settings, len(self._node_uids))
        for feature in self.features:
            feature.decide(everything=everything)

    def _report(self, action: ActionRecord) -> None:
        self._action_counts[f"{action.action}s_{action.outcome}"] += 1
        self._actions.put(action)

    def _log_summary(self) -> None:
        counts = sorted(self._action_counts.items())
        actions = " ".join(f"{action}={count}" for action, count in counts)
        log.info("last minute", mode=self._settings.actuator.mode, actions=actions)
        self._action_counts = Counter()


def writes_per_second(settings: Settings, nodes: int) -> float:
    """The limit of all writes together in a cluster of so many Nodes."""
    fixed = settings.actuator.writes_per_second
    return max(_LEAST_PER_SECOND, nodes / _NODE_SECONDS) if fixed is None else fixed


def deliver(follower: Follower, event: Event) -> None:
    """Hand an event to a follower; count and drop invalid objects."""
    match event:
        case Began():
            follower.list_started()
        case Page(objects):
            for encoded in objects:
                _hand_over(follower, encoded)
        case Complete():
            follower.list_completed()
        case Changed(encoded, is_deleted):
            _hand_over(follower, encoded, is_deleted=is_deleted)
        case Alive():
            pass


def _hand_over(follower: Follower, encoded: msgspec.Raw, *, is_deleted: bool = False) -> None:
    try:
        if is_deleted:
            follower.deleted(msgspec.json.decode(encoded, type=_Deleted).metadata.name)
        else:
            follower.observed(encoded)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        refuse("objects", error, follower=type(follower).__name__)
