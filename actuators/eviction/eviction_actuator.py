"""The evictor: plans in, evictions out, by one leader.

Owes the rest: a plan is carried out once, while it holds; no more than a few for one pod, and of
these each when the one before has had time to help, whoever has planned them.
"""

import asyncio
from collections import OrderedDict
from typing import Final, TypeVar

from actuators.action_log import Actions
from actuators.cluster.write_queue import Budget
from actuators.eviction.plan_execution import CarryingOut
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

BAD = counter("evictor_bad_records", "Plans that cannot be read.")
PLANS = counter(
    "evictor_plans",
    "Plans by what became of them: observed, recommended, done, refused (something speaks against "
    "it), failed, late, repeated, too_many (for one pod), early (room was just made for the pod).",
    ["outcome"],
)

PLANS_OF_A_POD: Final = 3
LONGEST_VALID_SECONDS: Final = 300.0

_LOOK_BACK_SECONDS: Final = 300.0
_REMEMBERED: Final = 10_000
_WAITING: Final = 1000

Value = TypeVar("Value")


class Evictor:
    """What one leader knows; made anew for each turn."""

    def __init__(self, api: Api, settings: Settings, clock: Clock, lease: Lease) -> None:
        evictor, kubernetes = settings.evictor, settings.kubernetes
        self._settings = settings
        self._clock = clock
        self._actions = Actions(settings.kafka)
        stop = f"/api/v1/namespaces/{kubernetes.namespace}/configmaps/{evictor.stop_config_map}"
        self._carrying_out = CarryingOut(
            api, evictor.mode, stop, Budget(evictor.evictions_per_minute / 60.0, clock), clock,
            self._actions.tell, lambda: lease.is_held,
        )  # fmt: skip
        self._plans: asyncio.Queue[EvictionPlanRecord] = asyncio.Queue(_WAITING)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._of_pods: OrderedDict[str, int] = OrderedDict()
        self._settled_at: OrderedDict[str, float] = OrderedDict()

    async def run(self) -> None:
        """Carry out plans, until cancelled, or until the lease is another's."""
        await run_all([self._read(), self._work(), self._actions.run()])

    async def _read(self) -> None:
        # A plan may be older than this turn and still hold.
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
            plan = _plan_of(record.key or b"", record.value)
        except (RecordError, UnicodeDecodeError) as error:
            BAD.inc()
            log.warning("plan cannot be read", partition=record.partition, offset=record.offset,
                        why=str(error))  # fmt: skip
        else:
            if plan is not None:
                await self._plans.put(plan)

    async def _work(self) -> None:
        while True:
            plan = await self._plans.get()
            outcome: str | None = self._passed_over(plan)
            if outcome is None:
                outcome, made_room = await self._carrying_out.carry_out(plan)
                if made_room and plan.waiting is not None:
                    settled_at = parse_time(plan.at) + SETTLE_SECONDS
                    _remember(self._settled_at, plan.waiting.uid, settled_at)
            PLANS.labels(outcome).inc()
            log.info("plan", id=plan.id, node=plan.node, outcome=outcome, why=plan.why)

    def _passed_over(self, plan: EvictionPlanRecord) -> str | None:
        """Why a plan is not even looked at; None if it is."""
        now, at, until = self._clock.now(), parse_time(plan.at), parse_time(plan.valid_until)
        if not (at - LONGEST_VALID_SECONDS <= now < min(until, at + LONGEST_VALID_SECONDS)):
            return "late"
        if plan.id in self._seen:
            return "repeated"
        _remember(self._seen, plan.id, None)
        uid = plan.waiting.uid if plan.waiting else ""
        count = self._of_pods.get(uid, 0)
        if count >= PLANS_OF_A_POD:
            return "too_many"
        if at < self._settled_at.get(uid, 0.0):
            return "early"
        _remember(self._of_pods, uid, count + 1)
        return None


def _plan_of(key: bytes, value: bytes | None) -> EvictionPlanRecord | None:
    """The plan in a record; None for a tombstone. Raises `RecordError` for an invalid plan."""
    if value is None:
        return None
    plan = decode_json(EvictionPlanRecord, value)
    check_node_name(plan.node)
    if plan.node != key.decode():
        raise InvalidRecordError(f"payload speaks of {plan.node!r:.80}, key of {key[:80]!r}")
    try:
        parse_time(plan.at), parse_time(plan.valid_until)
    except ValueError as error:
        raise InvalidRecordError(f"a time is not readable: {error}") from error
    return plan


def _remember(of: "OrderedDict[str, Value]", key: str, value: Value) -> None:
    of[key] = value
    of.move_to_end(key)
    while len(of) > _REMEMBERED:
        of.popitem(last=False)
