"""The evictor of one leader: read eviction plans, execute each valid one once.

A pending pod gets a few plans at most, each after the previous one had time to help, also if
several extenders plan. Executed plans are remembered in memory only: a plan that is executed again
after a restart is harmless, because it names its pods by UID.
"""

import asyncio
from collections import OrderedDict
from typing import Final, TypeVar

from actuators.action_log import Actions
from actuators.cluster.write_queue import RateLimit
from actuators.eviction.plan_execution import PlanExecutor
from pipeline.clock import Clock
from pipeline.errors import InvalidRecordError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.placement.victim_selection import SETTLE_SECONDS
from pipeline.settings import Settings
from pipeline.tasks import run_all
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.nodes import check_node_name
from pipeline.topics.registry import EVICTION_PLANS

log = get_logger(__name__)

BAD = counter("evictor_bad_records", "Invalid plans.")
PLANS = counter(
    "evictor_plans",
    "Plans by outcome: observed, recommended, done, refused (a check failed), failed, late, "
    "repeated, too_many (for one pod), early (the pod was just given room).",
    ["outcome"],
)

PLANS_OF_A_POD: Final = 3
LONGEST_VALID_SECONDS: Final = 300.0

_LOOK_BACK_SECONDS: Final = 300.0
_REMEMBERED: Final = 10_000
_WAITING: Final = 1000

Value = TypeVar("Value")


class Evictor:
    """The evictor while its process holds the lease."""

    def __init__(self, api: Api, settings: Settings, clock: Clock, lease: Lease) -> None:
        evictor, kubernetes = settings.evictor, settings.kubernetes
        self._settings = settings
        self._clock = clock
        self._actions = Actions(settings.kafka)
        stop = f"/api/v1/namespaces/{kubernetes.namespace}/configmaps/{evictor.stop_config_map}"
        self._executor = PlanExecutor(
            api, evictor.mode, stop, RateLimit(evictor.evictions_per_minute / 60.0, clock), clock,
            self._actions.put, lambda: lease.is_held,
        )  # fmt: skip
        self._plans: asyncio.Queue[EvictionPlanRecord] = asyncio.Queue(_WAITING)
        self._executed: OrderedDict[str, None] = OrderedDict()
        self._plans_per_pod: OrderedDict[str, int] = OrderedDict()
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    async def run(self) -> None:
        """Execute plans, until cancelled or until another process holds the lease."""
        await run_all([self._read(), self._work(), self._actions.run()])

    async def _read(self) -> None:
        # A plan may be older than this lease and still be valid.
        since_ms = round((self._clock.now() - _LOOK_BACK_SECONDS) * 1000)
        kafka, is_ready = self._settings.kafka, False
        partitions = topic_partitions(kafka, EVICTION_PLANS)
        async with open_follower(client_options(kafka), partitions) as follower:
            await follower.begin({EVICTION_PLANS.full_name(kafka.topic_prefix): since_ms})
            while True:
                for record in await follower.poll():
                    await self._take(record)
                if follower.is_caught_up and not is_ready:
                    is_ready = True
                    log.info("ready", mode=self._settings.evictor.mode)

    async def _take(self, record: ConsumerRecord) -> None:
        try:
            plan = _decode_plan(record.key or b"", record.value)
        except (RecordError, UnicodeDecodeError) as error:
            BAD.inc()
            log.warning("invalid plan", partition=record.partition, offset=record.offset,
                        why=str(error))  # fmt: skip
        else:
            if plan is not None:
                await self._plans.put(plan)

    async def _work(self) -> None:
        while True:
            plan = await self._plans.get()
            outcome: str | None = self._skip_reason(plan)
            if outcome is None:
                outcome, made_room = await self._executor.execute(plan)
                if made_room and plan.waiting is not None:
                    settled_at = parse_time(plan.at) + SETTLE_SECONDS
                    _remember(self._settled_at, plan.waiting.uid, settled_at)
            PLANS.labels(outcome).inc()
            log.info("plan", id=plan.id, node=plan.node, outcome=outcome, why=plan.why)

    def _skip_reason(self, plan: EvictionPlanRecord) -> str | None:
        """Why a plan is not executed, None if it should be."""
        now, at, until = self._clock.now(), parse_time(plan.at), parse_time(plan.valid_until)
        if not (at - LONGEST_VALID_SECONDS <= now < min(until, at + LONGEST_VALID_SECONDS)):
            return "late"
        if plan.id in self._executed:
            return "repeated"
        _remember(self._executed, plan.id, None)
        uid = plan.waiting.uid if plan.waiting else ""
        count = self._plans_per_pod.get(uid, 0)
        if count >= PLANS_OF_A_POD:
            return "too_many"
        if at < self._settled_at.get(uid, 0.0):
            return "early"
        _remember(self._plans_per_pod, uid, count + 1)
        return None


def _decode_plan(key: bytes, value: bytes | None) -> EvictionPlanRecord | None:
    """The plan in a record, None for a tombstone. Raises RecordError if the plan is invalid."""
    if value is None:
        return None
    plan = decode_json(EvictionPlanRecord, value)
    check_node_name(plan.node)
    if plan.node != key.decode():
        raise InvalidRecordError(f"node {plan.node!r:.80} differs from key {key[:80]!r}")
    try:
        parse_time(plan.at), parse_time(plan.valid_until)
    except ValueError as error:
        raise InvalidRecordError(f"invalid time: {error}") from error
    return plan


def _remember(entries: "OrderedDict[str, Value]", key: str, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > _REMEMBERED:
        entries.popitem(last=False)
