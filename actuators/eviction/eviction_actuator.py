"""The evictor of one leader: read eviction plans, execute each valid one once.

Plans that make room for a pending pod come first (`plan_execution`); a pod gets a few at most, each
after the previous one had time to help, also if several extenders plan (`plan_limits`). The pods of
plans that relieve nodes wait for their turn (`relief`), and so do those of PodMigrationJobs
(`migration_jobs`). All evictions share one set of limits (`eviction_gate`), which a new leader
rebuilds from the actions of former ones.
"""

import asyncio
from functools import partial
from typing import Final

from actuators.action_log import Actions
from actuators.action_spans import action_span
from actuators.eviction.broker_clock import BrokerClock
from actuators.eviction.departures import watch_departures
from actuators.eviction.descheduler_policy import read_policy
from actuators.eviction.eviction_gate import EvictionGate
from actuators.eviction.eviction_records import ObservedActions
from actuators.eviction.former_actions import read_former_actions
from actuators.eviction.log_marks import emptied_partitions, keep_marks, mark
from actuators.eviction.migration_jobs import MigrationJobs
from actuators.eviction.outcome_log import OutcomeLog
from actuators.eviction.plan_limits import LOOK_BACK_SECONDS
from actuators.eviction.plan_worker import PlanWorker
from actuators.eviction.received_plans import ReceivedPlan, receive
from actuators.rate_limit import RateLimit
from pipeline import tracing
from pipeline.clock import Clock
from pipeline.errors import InvalidRecordError, KafkaError, RecordError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import ConsumerRecord, open_follower, topic_partitions
from pipeline.kafka.refused_records import refuse
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.eviction.migration_policy import MigrationPolicy
from pipeline.settings import Settings
from pipeline.tasks import run_all
from pipeline.times import parse_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.eviction_plans import (
    LONGEST_VALID_SECONDS,
    EvictionPlanRecord,
    excess,
)
from pipeline.topics.nodes import check_node_name
from pipeline.topics.registry import EVICTION_PLANS

log = get_logger(__name__)

LOST = counter("evictor_lost_actions", "Actions that could not be written to springtide.actions.")
_WAITING: Final = 100
"""Plans that were read and not begun; the reader waits while there are so many."""
_TRACED_PLANS: Final = 1000
_STEP_SECONDS: Final = 0.5
_POLICY_SECONDS: Final = 10.0


class Evictor:
    """The evictor while its process holds the lease."""

    def __init__(self, api: Api, settings: Settings, clock: Clock, lease: Lease) -> None:
        evictor, kubernetes = settings.evictor, settings.kubernetes
        self._api = api
        self._settings = settings
        # All ages are by the broker's clock: it dates plans and the actions of former leaders.
        self._clock = clock = BrokerClock(clock)
        self._actions = Actions(settings.kafka, LOST)
        stop = f"/api/v1/namespaces/{kubernetes.namespace}/configmaps/{evictor.stop_config_map}"
        rate = RateLimit(evictor.evictions_per_minute / 60.0, clock)
        actions = ObservedActions(self._actions, self._note)
        self._outcomes = OutcomeLog(clock)
        self._gate = EvictionGate(api, stop, rate, clock, actions, lambda: lease.is_held)
        self._worker = PlanWorker(self._gate, evictor.mode)
        self._jobs = MigrationJobs(self._gate, self._worker.relief, evictor.mode)
        self._policy: MigrationPolicy | None = None
        self._plans: asyncio.Queue[ReceivedPlan] = asyncio.Queue(_WAITING)
        self._traces: dict[str, tracing.Received] = {}
        self._trouble = "reading the descheduler configuration"

    def trouble(self) -> str:
        """Why no plan can be executed yet; empty if plans are followed."""
        return self._trouble

    def _note(self, action: ActionRecord) -> None:
        with tracing.logged(tracing.cause(self._traces, action.plan)):
            self._outcomes.note(action)
            self._jobs.note(action)
        if action.outcome != "intended" and (cause := self._traces.get(action.plan)) is not None:
            tracing.record(action_span(action, cause, tracing.now()))

    async def run(self) -> None:
        """Execute plans, until cancelled or until another process holds the lease."""
        while not await self._read_policy():
            await self._clock.sleep(_POLICY_SECONDS)
        self._trouble = "reading the actions of former leaders"
        await run_all([self._actions.run(), self._lead()])

    async def _lead(self) -> None:
        await self._learn_limits()
        await self._warn_if_stopped()
        self._trouble = "catching up with plans"
        await run_all([
            self._read(), self._work(), self._follow_policy(), watch_departures(self._gate),
            self._keep_marks(), self._jobs.run(),
        ])  # fmt: skip

    async def _warn_if_stopped(self) -> None:
        """Log at the start that no pod will be evicted. Later each plan says so."""
        if (reason := await self._gate.stop_reason()) is not None:
            log.warning("no pod is evicted until this changes", why=reason)

    async def _keep_marks(self) -> None:
        kafka = self._settings.kafka
        emptied = partial(emptied_partitions, kafka)
        await keep_marks(kafka.partitions, self._clock, emptied, self._actions.write)

    async def _follow_policy(self) -> None:
        learned_seconds = self._gate.policy.limits.history_seconds
        while True:
            await self._clock.sleep(_POLICY_SECONDS)
            await self._read_policy()
            seconds = self._gate.policy.limits.history_seconds
            if seconds > learned_seconds:
                try:
                    await self._learn_more()
                except KafkaError as error:
                    log.warning("cannot read older actions", why=error.message)
                    continue
            learned_seconds = seconds

    async def _read_policy(self) -> bool:
        """Put the descheduler configuration in force; the last one stays if it cannot be read."""
        kubernetes = self._settings.kubernetes
        namespace, name = kubernetes.config_namespace, kubernetes.descheduler_config_name
        policy = await read_policy(self._api, namespace, name, self._policy)
        if policy is not None and policy != self._policy:
            self._policy = policy
            self._gate.take_policy(policy)
            log.info("policy of evictions is in force", is_dry=policy.is_dry)
        return policy is not None

    async def _learn_limits(self) -> None:
        """Learn from the actions of former leaders, and begin."""
        self._clock.set(await self._actions.write(mark(self._clock.now())))
        seconds = max(LOOK_BACK_SECONDS, self._gate.policy.limits.history_seconds)

        def learn(action: ActionRecord, appended_at: float) -> None:
            self._worker.learn(action, appended_at)
            self._jobs.learn(action)

        known_since = await read_former_actions(self._settings.kafka, self._clock, seconds, learn)
        await self._worker.begin(known_since)

    async def _learn_more(self) -> None:
        """Learn older evictions for a policy that needs them. Until then its limits wait."""
        seconds = self._gate.policy.limits.history_seconds
        older, learn = self._worker.older_history(seconds)
        older.known_since = await read_former_actions(
            self._settings.kafka, self._clock, seconds, learn
        )
        self._gate.history.extend(older)

    async def _read(self) -> None:
        # A plan may be older than this lease and still be valid.
        since_ms = round((self._clock.now() - LONGEST_VALID_SECONDS) * 1000)
        kafka, is_ready = self._settings.kafka, False
        partitions = topic_partitions(kafka, EVICTION_PLANS)
        async with open_follower(client_options(kafka), partitions) as follower:
            await follower.begin({EVICTION_PLANS.full_name(kafka.topic_prefix): since_ms})
            while True:
                for record in await follower.poll():
                    await self._take(record)
                if follower.is_caught_up and not is_ready:
                    is_ready, self._trouble = True, ""
                    log.info("ready", mode=self._settings.evictor.mode)

    async def _take(self, record: ConsumerRecord) -> None:
        try:
            plan = _decode_plan(record.key or b"", record.value)
        except (RecordError, UnicodeDecodeError) as error:
            refuse(record.topic, error, partition=record.partition, offset=record.offset)
            return
        if plan is None:
            return
        if (reason := excess(plan, len(record.value or b""))) is not None:
            refuse(record.topic, InvalidRecordError(reason), partition=record.partition,
                   offset=record.offset)  # fmt: skip
            action = self._gate.action(plan, None, "refused", f"TooLarge: {reason}")
            self._gate.actions.put(action)
            return
        tracing.note(self._traces, plan.id, record.headers)
        if len(self._traces) > _TRACED_PLANS:
            del self._traces[next(iter(self._traces))]
        # The broker stamps records as it appends them.
        await self._plans.put(receive(plan, self._clock, record.timestamp / 1000))

    async def _work(self) -> None:
        while True:
            while not self._plans.empty():
                received = self._plans.get_nowait()
                with tracing.logged(tracing.cause(self._traces, received.plan.id)):
                    await self._worker.start(received)
                await self._worker.step()
            await self._jobs.submit()
            await self._worker.step()
            await self._clock.sleep(_STEP_SECONDS)


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
