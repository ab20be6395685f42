"""The planner of one leader: follow the state table, the policy, former moves and the history of
nodes; write plans and means of node pools, propose thresholds, and watch levels of usage."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from actuators.eviction.descheduler_policy import read_descheduling
from actuators.planner.level_watch import LevelWatch, log_reader, read_hours
from actuators.planner.pool_means_publisher import LOOK_SECONDS, PoolMeansPublisher
from actuators.planner.pool_outcomes_publisher import PoolOutcomesPublisher
from actuators.planner.pool_records import read_pools_on_topic
from actuators.planner.relief_policy import ReliefPolicy, relief_policy
from actuators.planner.relief_rounds import Published, ReliefRounds
from actuators.planner.threshold_proposals import PROPOSAL_SECONDS, PROPOSED, set_proposals
from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, InvalidRecordError, KafkaError
from pipeline.extender.decisions import Decisions, Rules
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Headers as KafkaHeaders
from pipeline.kafka.producer import Keyed, Producer
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.processors.descheduling.configured_strategies import strategies_off
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.descheduling.move_memory import LASTING_SECONDS, MoveMemory
from pipeline.processors.descheduling.node_requests import NodeRequests
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts, may_be_relief_alert
from pipeline.settings import Settings
from pipeline.spans import Span
from pipeline.table import NODE_AND_POD_TOPICS, Feed, Table
from pipeline.table.apply_records import Headers, apply, node_of
from pipeline.table.node_histories import HistoryStore
from pipeline.table.node_pods import NodePodReader, NodePods
from pipeline.table.strategy_inputs import MEASURED
from pipeline.tasks import cancel_tasks, run_all
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import FORGOTTEN_SECONDS, AlertRecord
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.eviction_requests import EvictionRequestRecord
from pipeline.topics.nodes import check_node_name
from pipeline.topics.pool_means import MEANS
from pipeline.topics.pool_outcomes import OUTCOMES
from pipeline.topics.registry import (
    ACTIONS,
    ALERTS,
    EVICTION_PLANS,
    EVICTION_REQUESTS,
    FLEET,
    NODE_STATE,
    PREDICTIONS,
    WORKLOADS,
    Topic,
)

log = get_logger(__name__)

_POLICY_SECONDS: Final = 10.0
_WORKLOADS_SECONDS: Final = 30.0
_DELIVERY_SECONDS: Final = 5.0
"""Shorter than the time between the end of a lease's renewal and the next leader."""


class Planner:
    """The planner while its process holds the lease."""

    def __init__(
        self, api: Api, settings: Settings, rules: Rules, clock: Clock, lease: Lease
    ) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._client = client_options(settings.kafka)
        self._producer = Producer(self._client)
        self._reader = NodePodReader(settings.kafka)
        self._memory = MoveMemory()
        # The newest states of nodes that are traced: a plan rests on them.
        self._traces: dict[str, tracing.Received] = {}
        table = Table(counting=rules.counting)
        self._counted = (*MEASURED, *rules.counting.resources)
        self._off: dict[str, str] = {}
        self._feed = Feed(
            table, client=self._client, prefix=settings.kafka.topic_prefix, clock=clock,
            topics=NODE_AND_POD_TOPICS, apply_record=self._apply,
        )  # fmt: skip
        # Plans, actions and alerts of the last hours, also of former leaders.
        self._moves = Feed(
            Table(), client=self._client, prefix=settings.kafka.topic_prefix, clock=clock,
            topics=(EVICTION_REQUESTS, EVICTION_PLANS, ACTIONS, ALERTS), name="memory of moves",
            take_record=self._take, recent_seconds=max(LASTING_SECONDS, FORGOTTEN_SECONDS),
        )  # fmt: skip
        self._workloads = Feed(
            Table(), client=self._client, prefix=settings.kafka.topic_prefix, clock=clock,
            topics=(WORKLOADS,), name="replicas of workloads",
            take_record=lambda _, record: self._rounds.replicas.take(record.key, record.value),
        )  # fmt: skip
        self._store = HistoryStore()
        self._histories = Feed(
            Table(), client=self._client, prefix=settings.kafka.topic_prefix, clock=clock,
            topics=(PREDICTIONS,), name="history of nodes",
            take_record=lambda _, record: self._store.apply(
                record.key, record.value, record.headers
            ),
        )  # fmt: skip
        self._means = PoolMeansPublisher(table, clock, self._publish_fleet, lambda: lease.is_held)
        self._outcomes = PoolOutcomesPublisher(
            table, self._store, clock, self._publish_fleet, lambda: lease.is_held
        )
        self._levels = LevelWatch(
            clock, lambda: read_hours(settings.kafka, clock.now()), log_reader(settings.kafka),
            self._publish_fleet, self._publish, lambda: lease.is_held,
        )  # fmt: skip
        self._rounds = ReliefRounds(
            table, self._feed.state, self._moves.state, Decisions(table, rules), self._memory,
            clock, self._read_pods, self._publish, lambda: lease.is_held,
        )  # fmt: skip

    async def run(self) -> None:
        """Plan until cancelled or until another process holds the lease."""
        async with self._producer:
            await run_all([
                self._feed.run(), self._follow_moves(), self._follow_policy(), self._plan(),
                self._follow_means(), self._follow_outcomes(), self._workloads.run(),
                self._histories.run(), self._propose_thresholds(), self._watch_levels(),
            ])  # fmt: skip

    def trouble(self) -> str:
        """Why nothing can be planned: a feed has not caught up, or is away; empty if all is well.
        Doubtful data and the policy only block plans."""
        for feed in (self._feed, self._moves):
            state = feed.state
            if not (state.caught_up and state.connected):
                return f"{feed.name}: {state.message}"
        return ""

    async def _follow_moves(self) -> None:
        # Requests of nodes that the table does not have are refused.
        await self._feed.wait_caught_up()
        await self._moves.run()

    async def _plan(self) -> None:
        await self._moves.wait_caught_up()
        await self._await_workloads()
        log.info("ready", remembered_plans=len(self._memory))
        await self._rounds.run()

    async def _await_workloads(self) -> None:
        """Wait for replicas until they cannot be read, or that takes long: without them a plan may
        name a pod that the evictor refuses, which does no harm."""
        feed = self._workloads
        events = [asyncio.ensure_future(e) for e in (feed.wait_caught_up(), feed.wait_failure())]
        try:
            await asyncio.wait(
                events, timeout=_WORKLOADS_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await cancel_tasks(*events)

    async def _follow_means(self) -> None:
        await self._feed.wait_caught_up()
        self._means.on_topic = await self._pools_on_topic(MEANS)
        await self._means.run()

    async def _follow_outcomes(self) -> None:
        await self._feed.wait_caught_up()
        await self._histories.wait_caught_up()
        self._outcomes.on_topic = await self._pools_on_topic(OUTCOMES)
        await self._outcomes.run()

    async def _pools_on_topic(self, kind: bytes) -> set[str]:
        while True:
            try:
                return await read_pools_on_topic(self._settings.kafka, kind)
            except KafkaError as error:
                log.warning("records of pools are not read, trying again", why=error.message)
                await self._clock.sleep(LOOK_SECONDS)

    async def _watch_levels(self) -> None:
        # An alert that a former leader opened is not opened again.
        await self._moves.wait_caught_up()
        await self._levels.run()

    async def _propose_thresholds(self) -> None:
        await self._feed.wait_caught_up()
        await self._histories.wait_caught_up()
        try:
            while True:
                now, expiration_seconds = self._clock.now(), self._means.expiration_seconds
                set_proposals(self._feed.table, self._store, now, expiration_seconds)
                await self._clock.sleep(PROPOSAL_SECONDS)
        finally:
            PROPOSED.clear()

    async def _follow_policy(self) -> None:
        """Put the descheduler configuration in force; the last one stays if it cannot be read."""
        kubernetes = self._settings.kubernetes
        namespace, name = kubernetes.config_namespace, kubernetes.descheduler_config_name
        while True:
            descheduling = await read_descheduling(self._api, namespace, name)
            if descheduling is not None:
                self._take_policy(descheduling)
            await self._clock.sleep(_POLICY_SECONDS)

    def _take_policy(self, descheduling: Descheduling) -> None:
        policy = relief_policy(descheduling)
        off = _off(descheduling, policy, self._counted)
        if policy == self._rounds.policy and off == self._off:
            return
        self._rounds.policy, self._off = policy, off
        self._means.expiration_seconds = float(policy.args.usage_expiration_seconds)
        log.info("policy is in force", strategies=policy.strategies, dry=sorted(policy.dry),
                 off=off)  # fmt: skip

    def _apply(
        self, table: Table, topic: Topic, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bool:
        is_newer = apply(table, topic, key, value, headers)
        if is_newer and topic is NODE_STATE:
            tracing.note(self._traces, node_of(key), headers)
        return is_newer

    def _take(self, topic: Topic, record: ConsumerRecord) -> bool:
        appended_at = record.timestamp / 1000
        rounds, now = self._rounds, self._rounds.now()
        if topic is EVICTION_REQUESTS:
            return take_request(rounds.requests, record.key, record.value, now, appended_at)
        if topic is ALERTS and take_record(
            self._memory, self._levels.alerts, topic, record.key, record.value, now, appended_at
        ):
            return True
        return take_record(
            self._memory, rounds.alerts, topic, record.key, record.value, now, appended_at
        )

    async def _read_pods(self, nodes: Collection[str], span_seconds: float) -> NodePods:
        return await self._reader.read(nodes, span_seconds, self._clock.now())

    async def _publish(self, record: Published) -> None:
        kafka = self._settings.kafka
        if isinstance(record, AlertRecord):
            declared, key = ALERTS, record.node or record.workload or record.pool
        else:
            is_plan = isinstance(record, EvictionPlanRecord)
            declared, key = (EVICTION_PLANS if is_plan else ACTIONS), record.node
        place = partition_of(key, kafka.partitions)
        span = plan_span(record, self._traces) if isinstance(record, EvictionPlanRecord) else None
        context, headers = (span.context, span.context.headers) if span else (None, [])
        with tracing.logged(context):
            await self._deliver(declared, place, Keyed(key.encode(), encode_json(record)), headers)
            if isinstance(record, EvictionPlanRecord):
                log.info("plan", id=record.id, pods=len(record.pods), why=record.why)
        if span is not None:
            tracing.record(span._replace(ended=tracing.now()))

    async def _publish_fleet(self, record: Keyed) -> None:
        await self._deliver(FLEET, 0, record)

    async def _deliver(
        self, declared: Topic, partition: int, record: Keyed, headers: KafkaHeaders = ()
    ) -> None:
        topic = declared.full_name(self._settings.kafka.topic_prefix)
        try:
            async with asyncio.timeout(_DELIVERY_SECONDS):
                await self._producer.deliver(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    headers=list(headers),
                )
        except TimeoutError as error:
            text = f"{topic}: no delivery within {_DELIVERY_SECONDS:g} s"
            raise BrokerUnavailableError(text) from error


def _off(
    descheduling: Descheduling, policy: ReliefPolicy, counted: Collection[str]
) -> dict[str, str]:
    """Why strategies move nothing, by name."""
    low = {LOW_NODE_LOAD: policy.why_not} if policy.why_not else {}
    return low | strategies_off(descheduling, counted)


def plan_span(plan: EvictionPlanRecord, traces: Mapping[str, tracing.Received]) -> Span | None:
    """The span of a plan, from the state of the hot node on which it rests; linked to the states of
    the targets. None if the state of the hot node is not traced."""
    if (cause := traces.get(plan.node)) is None:
        return None
    targets = {pod.target for pod in plan.pods}
    return Span(
        "plan",
        cause.context.child("plan", plan.id),
        cause.context,
        cause.at,
        cause.at,
        {
            "k8s.node.name": plan.node,
            "springtide.plan": plan.id,
            "springtide.strategy": plan.strategy,
            "springtide.why": plan.why,
            "springtide.pods": [f"{pod.namespace}/{pod.name}" for pod in plan.pods],
        },
        [traces[target].context for target in sorted(targets) if target in traces],
    )


def take_record(
    memory: MoveMemory, alerts: ReliefAlerts, topic: Topic, key: bytes | None,
    value: bytes | None, now: float, appended_at: float | None = None,
) -> bool:  # fmt: skip
    """Take a record of plans, actions or alerts; False if it says nothing that the planner
    remembers. `appended_at` is the broker's time. Raises `RecordError` if it is invalid."""
    if value is None:
        return False
    if topic is ACTIONS:
        # Most actions are of the cluster actuator.
        if not (b'"evictor"' in value or b'"planner"' in value):
            return False
        return memory.take_action(decode_json(ActionRecord, value), now, appended_at)
    if topic is ALERTS:
        return may_be_relief_alert(value) and alerts.take(decode_json(AlertRecord, value), now)
    plan = decode_json(EvictionPlanRecord, value)
    _check_key(plan.node, key)
    return memory.take_plan(plan, now, appended_at)


def take_request(
    requests: NodeRequests, key: bytes | None, value: bytes | None, now: float,
    appended_at: float | None = None,
) -> bool:  # fmt: skip
    """Take a request for relief; False if it has ended. Raises `RecordError` if it is invalid."""
    if value is None:
        return False
    request = decode_json(EvictionRequestRecord, value)
    _check_key(request.node, key)
    return requests.take(request, now, appended_at)


def _check_key(node: str, key: bytes | None) -> None:
    check_node_name(node)
    if node.encode() != key:
        raise InvalidRecordError(f"node {node!r:.80} differs from key {(key or b'')[:80]!r}")
