"""The cluster actuator: topics and Nodes in, what is due out, by one leader.

Owes the rest: nothing is decided before all that lies on the topics, and all Nodes, are known.
"""

import asyncio
from collections import Counter
from typing import Final, Protocol

import msgspec

from actuators.action_log import Actions
from actuators.cluster.cooled_nodes import TOLD_SECONDS, Cooling
from actuators.cluster.custom_resources import NODE_SLO, Objects, Wanted
from actuators.cluster.node_metrics import NodeMetrics
from actuators.cluster.offer_writer import Offers
from actuators.cluster.write_queue import Budget, Writer
from pipeline.clock import Clock
from pipeline.errors import ForbiddenError, InvalidRecordError, NotFoundError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.kube.list_watch import Alive, Began, Changed, Complete, Event, Page, follow
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.placement.plugin_config import Placement
from pipeline.processors.policy.nodeslo_spec import slo_spec
from pipeline.settings import Settings
from pipeline.tasks import run_all
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import EVICTION_PLANS, NODE_STATE, NODES, RESOURCES, WINDOWS, Topic
from pipeline.topics.windows import decode_window

log = get_logger(__name__)

BAD = counter("actuator_bad_records", "Records that cannot be read.", ["topic"])
READY = gauge("actuator_ready", "1 once all topics and Nodes are known.")

_TICK_SECONDS: Final = 0.2
_SWEEP_SECONDS: Final = 5.0
_SUMMARY_SECONDS: Final = 60.0
# Of windows what an average is made of; one over a longer time fills up from here.
_HISTORY_SECONDS: Final = 600.0


class _Named(msgspec.Struct):
    name: str


class _Gone(msgspec.Struct):
    metadata: _Named


class Actuator:
    """What one leader knows; made anew for each turn. `placement` is what the extender runs."""

    def __init__(
        self, api: Api, settings: Settings, placement: Placement, clock: Clock, lease: Lease
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._actions = Actions(settings.kafka)
        budget = Budget(settings.actuator.writes_per_second, clock)
        self._writer = Writer(budget, clock, lambda: lease.is_held)
        actuator, policy = settings.actuator, settings.model.memory_collect_policy
        self._offers = Offers(api, actuator.mode, self._writer, clock, self._tell)
        acts = actuator.mode == "act"
        uid_of = self._offers.uid_of
        self._metrics = NodeMetrics(api, self._writer, uid_of, policy)
        self._reports = acts and actuator.node_metrics
        self._rules = Objects(api, NODE_SLO, self._writer, uid_of)
        self._writes_rules = acts and actuator.node_slos
        self._cooling = Cooling(api, self._writer, placement, clock) if acts else None
        self._done = Counter[str]()
        self._topics_known = asyncio.Event()
        self._nodes_known = asyncio.Event()
        self._objects_known = {
            objects.kind.kind: asyncio.Event() for objects in (self._metrics.objects, self._rules)
        }

    async def run(self) -> None:
        """Act, until cancelled, or until the lease is another's."""
        READY.set(0)
        work = [
            self._read(), self._decide(), self._writer.run(), self._actions.run(),
            self._watch_nodes(), self._watch_objects(self._metrics.objects, self._reports),
            self._watch_objects(self._rules, self._writes_rules),
        ]  # fmt: skip
        await run_all(work)

    async def _read(self) -> None:
        topics = [NODES, RESOURCES]
        topics += [NODE_STATE, EVICTION_PLANS] if self._cooling else []
        topics += [WINDOWS] if self._reports else []
        now, kafka = self._clock.now(), self._settings.kafka
        names = {topic.full_name(kafka.topic_prefix): topic for topic in topics}
        since_ms = {
            WINDOWS.full_name(kafka.topic_prefix): round((now - _HISTORY_SECONDS) * 1000),
            EVICTION_PLANS.full_name(kafka.topic_prefix): round((now - TOLD_SECONDS) * 1000),
        }
        partitions = topic_partitions(kafka, *topics)
        async with open_follower(client_options(kafka), partitions) as follower:
            await follower.begin(since_ms)
            while True:
                for record in await follower.poll():
                    self._take(names[record.topic], record)
                if follower.is_caught_up:
                    self._topics_known.set()

    def _take(self, topic: Topic, record: ConsumerRecord) -> None:
        """Learn from a record; an unreadable record is counted and skipped."""
        try:
            self._learn(topic, (record.key or b"").decode(), record.value)
        except (RecordError, UnicodeDecodeError) as error:
            BAD.labels(topic.name).inc()
            log.warning("record cannot be read", topic=topic.name, partition=record.partition,
                        offset=record.offset, why=str(error))  # fmt: skip

    def _learn(self, topic: Topic, name: str, value: bytes | None) -> None:
        if topic is NODES:
            record = None if value is None else decode_json(NodeRecord, value)
            self._offers.learn_node(name, record)
            if self._cooling:
                self._cooling.learn_node(name, record)
            if self._reports:
                self._metrics.learn_node(name, record)
            if self._writes_rules:
                self._rules.want(name, _rules(record))
        elif topic is RESOURCES:
            found = None if value is None else decode_json(NodeResourcesRecord, value)
            self._offers.learn_resources(name, found)
        elif topic is NODE_STATE:
            state = None if value is None else decode_json(NodeStateRecord, value)
            self._metrics.learn_state(name, state)
            if self._cooling:
                self._cooling.learn_state(name, state)
        elif topic is EVICTION_PLANS:
            if self._cooling and value is not None:
                self._cooling.learn_plan(decode_json(EvictionPlanRecord, value))
        elif value is not None:
            self._metrics.learn_window(decode_window(value))

    async def _watch_nodes(self) -> None:
        async for event in follow(self._api, "/api/v1/nodes"):
            if _apply(self._offers, event):
                self._nodes_known.set()

    async def _watch_objects(self, objects: Objects, is_on: bool) -> None:
        known = self._objects_known.setdefault(objects.kind.kind, asyncio.Event())
        try:
            async for event in follow(self._api, objects.kind.path, only_metadata=True):
                if _apply(objects, event):
                    known.set()
        except (NotFoundError, ForbiddenError) as error:
            # Nothing of ours can be there; who wants them is told.
            known.set()
            if is_on and isinstance(error, NotFoundError):
                text = f"there is no custom resource {objects.kind.kind}: {error.message}"
                raise NotFoundError(text, hint="kubectl apply -f deploy/crds") from error
            if is_on:
                raise
            log.debug("no custom resources", kind=objects.kind.kind, why=error.message)

    async def _decide(self) -> None:
        await self._topics_known.wait()
        await self._nodes_known.wait()
        for known in self._objects_known.values():
            await known.wait()
        READY.set(1)
        if self._cooling:
            self._cooling.is_on = True
        mode = self._settings.actuator.mode
        log.info("ready", mode=mode)
        if left_over := self._offers.left_over():
            log.warning("what another mode wrote is taken back", mode=mode, nodes=left_over)
        swept, summed = float("-inf"), self._clock.monotonic()
        while True:
            everything = self._clock.monotonic() - swept >= _SWEEP_SECONDS
            if everything:
                swept = self._clock.monotonic()
            self._put_what_is_due(everything=everything)
            if self._done and self._clock.monotonic() - summed >= _SUMMARY_SECONDS:
                summed = self._clock.monotonic()
                done = " ".join(f"{what}={count}" for what, count in sorted(self._done.items()))
                log.info("in the last minute", mode=mode, actions=done)
                self._done = Counter()
            await self._clock.sleep(_TICK_SECONDS)

    def _put_what_is_due(self, *, everything: bool) -> None:
        self._offers.decide(everything=everything)
        self._metrics.decide(everything=everything)
        self._rules.decide(everything=everything)
        if self._cooling:
            self._cooling.decide()

    # -- what was done

    def _tell(self, action: ActionRecord) -> None:
        self._done[f"{action.action}s_{action.outcome}"] += 1
        self._actions.tell(action)


def _rules(record: NodeRecord | None) -> Wanted | None:
    """What the NodeSLO of a node is to say. Raises `InvalidRecordError` for rules that are none."""
    try:
        spec = None if record is None else slo_spec(record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(f"slo breaks its schema: {error}") from error
    if record is None or spec is None:
        return None
    return Wanted(msgspec.to_builtins(spec), record.uid)


class _Follows(Protocol):
    """What takes the events of a list-watch."""

    def begin(self) -> None: ...
    def see(self, of: msgspec.Raw) -> None: ...
    def complete(self) -> None: ...
    def gone(self, name: str) -> None: ...


def _apply(follower: _Follows, event: Event) -> bool:
    """Hand an event on; whether a list is complete by it."""
    match event:
        case Began():
            follower.begin()
        case Page(objects):
            for of in objects:
                follower.see(of)
        case Complete():
            follower.complete()
            return True
        case Changed(of, is_gone):
            if is_gone:
                follower.gone(msgspec.json.decode(of, type=_Gone).metadata.name)
            else:
                follower.see(of)
        case Alive():
            pass
    return False
