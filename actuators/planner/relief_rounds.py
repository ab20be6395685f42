"""Plan in rounds: when a node gets hot, and again after each descheduling interval.

A round plans for the most urgent of the hot nodes that are not in a cool-down, and once in each
interval for the nodes of the other strategies that the policy enables. If there are more nodes than
one round may take, the next round follows shortly with the others. Nothing is planned while
the data is doubtful: an old table would name pods that moved, and stale usage would move pods for
nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Final

from actuators.planner.hopeless_alerts import HopelessAlerts
from actuators.planner.hot_nodes import Alerts, open_alerts, pool_of, span_seconds, urgency
from actuators.planner.plan_outcomes import PlanOutcomes, ReadPods
from actuators.planner.planning_gate import PlanningGate
from actuators.planner.relief_policy import ReliefPolicy
from pipeline.clock import Clock
from pipeline.errors import KafkaError
from pipeline.extender.decisions import Decisions
from pipeline.extender.plan_documents import PlannedNode, ReliefPlan
from pipeline.extender.plan_records import CapCounts, plan_records
from pipeline.extender.relief_planning import AlertRelief, ReliefPlanning
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS, Rests
from pipeline.processors.descheduling.low_node_load import NAME as LOW_NODE_LOAD
from pipeline.processors.descheduling.move_memory import LOOK_BACK_SECONDS, MoveMemory
from pipeline.processors.descheduling.node_requests import NodeRequests
from pipeline.processors.descheduling.relief_alerts import ReliefAlerts
from pipeline.processors.descheduling.requested_relief import NAME as NODE_REQUESTS
from pipeline.processors.descheduling.reserved_cpus import NAME as NODE_RESERVATION
from pipeline.processors.eviction.known_replicas import KnownReplicas
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.table import FeedState, Table
from pipeline.table.node_pods import NodePods
from pipeline.times import time_or_none
from pipeline.topics.actions import ActionRecord
from pipeline.topics.alerts import RELIEF_RULES, AlertRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.pods import PodRecord

log = get_logger(__name__)

HOT = gauge("planner_hot_nodes", "Nodes with an open alert.")
RESTING = gauge("planner_resting_nodes", "Hot nodes in a cool-down, as of the last round.")
ROUNDS = counter("planner_rounds", "Rounds: planned, or failed (pods were not read, or plans not "
                 "written).", ["result"])  # fmt: skip
ROUND_SECONDS = gauge("planner_round_seconds", "Duration of the last round, with reading pods.")
PLANS = counter(
    "planner_plans", "Plans: published, dry (the policy is a dry run), or lost (not delivered).",
    ["result"],
)  # fmt: skip
PODS = counter("planner_planned_pods", "Pods of published plans.")

NODES_OF_A_ROUND: Final = 100
"""Hot nodes that one round plans for at most."""
FIRST_NODES: Final = 10
"""Nodes of the first round: the next one may have twice as many if it was fast. A new leader that
began with the most could lose its lease on a slow machine, again and again."""
SLOW_SECONDS: Final = 2.0
"""A round that computes for longer is followed by smaller ones: the lease is renewed in between."""
PAUSE_SECONDS: Final = 10.0
"""Between two rounds."""
LOOK_SECONDS: Final = 1.0
CLOCK_STEP_SECONDS: Final = 0.5
"""A wall clock that differs by more from one look to the next was set, and did not only drift."""
_DEFAULT_SPAN_SECONDS: Final = float(HotNodePolicy().span_seconds)

Published = EvictionPlanRecord | AlertRecord | ActionRecord
Publish = Callable[[Published], Awaitable[None]]
"""Writes a record to its topic and awaits its delivery. Raises `KafkaError`."""


class ReliefRounds:
    """The rounds of one leader. `state` is that of the feed of the table, `moves` that of the feed
    of plans and actions. `policy` may change at any time, None: it is not known yet. `alerts` are
    those that are open, `requests` those of nodes, `replicas` those of workloads. `may_publish` is
    asked before each record."""

    def __init__(
        self, table: Table, state: FeedState, moves: FeedState, decisions: Decisions,
        memory: MoveMemory, clock: Clock, read_pods: ReadPods, publish: Publish,
        may_publish: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.policy: ReliefPolicy | None = None
        self.alerts = ReliefAlerts(RELIEF_RULES)
        self.replicas = KnownReplicas()
        self.requests = NodeRequests(lambda node: table.snapshot(node).node is not None)
        self._table, self._decisions = table, decisions
        self._memory, self._clock = memory, clock
        self._read_pods, self._publish, self._may_publish = read_pods, publish, may_publish
        self._span_seconds = partial(span_seconds, table)
        self._gate = PlanningGate(table, state, moves, decisions, memory, clock)
        self._hopeless = HopelessAlerts(self.alerts, table, publish, may_publish)
        self._outcomes = PlanOutcomes(
            table, memory, read_pods, publish, may_publish, self._span_seconds
        )
        # In this interval: hot nodes, and those of other strategies, of which there may be more.
        self._tried: set[str] = set()
        self._tried_others: set[str] = set()
        self._has_more = False
        self._urgent: set[tuple[str, str]] = set()
        self._dry_at: dict[tuple[str, str], float] = {}  # last dry plan by strategy and node
        self._interval_began = self._last_round = float("-inf")
        self._nodes_of_a_round = FIRST_NODES
        self._clock_offset = clock.now() - clock.monotonic()

    async def run(self) -> None:
        """Plan until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(LOOK_SECONDS)

    def now(self) -> float:
        """The present time. What is remembered keeps its age if the clock was set since the last
        call."""
        now = self._clock.now()
        offset = now - self._clock.monotonic()
        if abs(offset - self._clock_offset) > CLOCK_STEP_SECONDS:
            self._memory.shift(offset - self._clock_offset)
            self.alerts.shift(offset - self._clock_offset)
            self.requests.shift(offset - self._clock_offset)
        self._clock_offset = offset
        return now

    async def step(self) -> None:
        """Start a round if one is due, and write changes of alerts."""
        now, monotonic = self.now(), self._clock.monotonic()
        hot = open_alerts(self._table)
        HOT.set(len(hot))
        blocked, policy = self._gate.reason_to_wait(self.policy, now), self.policy
        if policy is not None and blocked in ("", "outcome"):
            self._hopeless.note_paused(policy, hot, self._gate.paused(policy, now).pools, now)
        if policy is not None and blocked in ("", "policy", "outcome"):
            self._hopeless.close_ended(policy, hot, now)
        if policy is not None and not blocked and self._is_due(policy, hot, monotonic):
            await self._round(policy, hot, now)
            self._last_round = self._clock.monotonic()
            ROUND_SECONDS.set(self._last_round - monotonic)
        await self._hopeless.send(now)
        if blocked in ("", "policy", "outcome"):
            await self._outcomes.judge(now)

    def _is_due(self, policy: ReliefPolicy, hot: Alerts, monotonic: float) -> bool:
        # A node whose alert opens again is planned for at once.
        self._tried.intersection_update(hot)
        if monotonic >= self._interval_began + policy.interval_seconds:
            self._interval_began = monotonic
            self._tried.clear()
            self._tried_others.clear()
            self._has_more = bool(policy.others_on)
        # A node that asks for relief, or has just reserved CPUs of pods, is planned for at once.
        urgent = set(self._urgent_nodes(policy))
        if new := urgent - self._urgent:
            self._tried_others.difference_update(node for node, _ in new)
            self._has_more = True
        self._urgent = urgent
        has_hot = not policy.why_not and not hot.keys() <= self._tried
        return (has_hot or self._has_more) and monotonic >= self._last_round + PAUSE_SECONDS

    def _urgent_nodes(self, policy: ReliefPolicy) -> Iterator[tuple[str, str]]:
        """Yield nodes of which pods should leave although they are not hot, and why."""
        if NODE_RESERVATION in policy.others_on:
            yield from ((node, "") for node in self._table.taken_cpus())
        if NODE_REQUESTS in policy.others_on:
            for node, request in self.requests.open(self.now()).items():
                yield node, request.request_id

    # -- a round

    async def _round(self, policy: ReliefPolicy, hot: Alerts, now: float) -> None:
        self._memory.forget(now)
        rests = self._memory.rests(now)
        dry = self._in_dry_rest(policy, LOW_NODE_LOAD)
        ready = {node for node in hot if self._is_ready(node, rests, dry)}
        RESTING.set(len(hot) - len(ready))
        paused, waiting, size = self._gate.paused(policy, now), list[str](), self._nodes_of_a_round
        if not policy.why_not:
            may_wait = (node for node in ready if pool_of(self._table, node) not in paused.pools)
            waiting = sorted({*may_wait} - self._tried, key=lambda node: urgency(node, hot[node]))
        chosen = waiting[:size]
        if not (chosen or self._has_more) or self._counts(policy, now).are_used_up:
            return
        planning = self._planning(policy, paused.strategies, rests, chosen, now, set())
        dry = self._in_dry_rest(policy, *policy.others_on)
        others = [
            node for node in planning.others
            if node not in self._tried_others and self._is_ready(node, rests, dry)
        ]  # fmt: skip
        room = size - len(chosen)
        self._has_more, others = len(others) > room, others[:room]
        if not (chosen or others):
            return
        log.info("round", hot=len(hot), resting=len(hot) - len(ready), planned_for=len(chosen),
                 left=len(waiting) - len(chosen), of_other_strategies=len(others))  # fmt: skip
        try:
            pods = await self._read_pods(planning.hot.union(others), planning.span_seconds)
        except KafkaError as error:
            ROUNDS.labels("failed").inc()
            log.warning("pods are not read, trying again", why=error.message)
            return
        # Reading took time: what is planned must not rest on the table from before.
        now = self.now()
        if self._gate.reason_to_wait(self.policy, now) or self.policy != policy:
            return
        self._tried.update(chosen)
        self._tried_others.update(others)
        self.requests.note_turn(others)
        began, held_back = self._clock.monotonic(), set[str]()
        rests = self._memory.rests(now)
        planning = self._planning(policy, paused.strategies, rests, planning.hot, now, held_back)
        plan = planning.plan(*pods)
        _log_unmet_requests(plan)
        is_slow = self._clock.monotonic() - began > SLOW_SECONDS
        self._nodes_of_a_round = max(size // 2, 1) if is_slow else min(2 * size, NODES_OF_A_ROUND)
        if not await self._write(policy, hot, plan, pods, now):
            ROUNDS.labels("failed").inc()
            return
        self._hopeless.note_plan(plan, planning.hot, held_back, rests, now)
        ROUNDS.labels("planned").inc()

    def _is_ready(self, node: str, rests: Rests, dry: Collection[str]) -> bool:
        """Whether the node is in no cool-down."""
        return node not in dry and rests.of_node(node, self._span_seconds(node)) is None

    def _in_dry_rest(self, policy: ReliefPolicy, *names: str) -> set[str]:
        """The nodes that dry runs of these strategies planned for: they rest as those whose plans
        are observed. A strategy that is not dry is not held back."""
        since = self._clock.monotonic() - WORKLOAD_REST_SECONDS
        self._dry_at = {
            key: at for key, at in self._dry_at.items() if at > since and key[0] in policy.dry
        }
        if not policy.dry.issuperset(names):
            return set()
        return {node for strategy, node in self._dry_at if strategy in names}

    async def _write(
        self, policy: ReliefPolicy, hot: Alerts, plan: ReliefPlan, pods: NodePods, now: float
    ) -> bool:
        """Write the records of a plan; returns whether all were. None is written after the lease is
        lost, the policy has changed, or one is not delivered."""
        workloads = {pod.uid: _workload(pod) for pod in pods.records}
        plan_id = partial(self._plan_id, hot, now)
        counts, valid_seconds = self._counts(policy, now), policy.migration.limits.ttl_seconds
        for record in plan_records(plan, counts, plan_id, workloads, now, valid_seconds):
            if not self._may_publish():
                log.warning("another process may lead: the round ends")
                return False
            if self.policy != policy:
                log.info("the policy has changed: the round ends")
                return False
            if record.strategy in policy.dry:
                PLANS.labels("dry").inc()
                self._dry_at[record.strategy, record.node] = self._clock.monotonic()
                log.info("dry run: this plan is not published", id=record.id, why=record.why)
                continue
            # Before it is written: a plan that may have arrived is never made again.
            self._memory.take_plan(record, now)
            try:
                await self._publish(record)
            except KafkaError as error:
                PLANS.labels("lost").inc()
                log.warning("plan is not delivered", id=record.id, why=error.message)
                return False
            PLANS.labels("published").inc()
            PODS.inc(len(record.pods))
        return True

    def _planning(
        self, policy: ReliefPolicy, paused: Collection[str], rests: Rests, hot: Collection[str],
        now: float, held_back: set[str],
    ) -> ReliefPlanning:  # fmt: skip
        """The plan of these hot nodes and of the other strategies. Nodes with a pod, or a target,
        whose cool-down ends by itself are added to `held_back`."""

        def objection(pod: PodRecord) -> str | None:
            reason = rests.of_pod(pod.uid, _workload(pod))
            if reason is not None and not rests.is_unmovable(pod.uid):
                held_back.add(pod.node)
            return reason

        held_back.update(rests.resting_targets)
        span = max(map(self._span_seconds, self._table), default=_DEFAULT_SPAN_SECONDS)
        relief = AlertRelief(
            args=policy.args,
            pools=policy.pools,
            policy=policy.migration,
            hot=frozenset(hot),
            others=policy.others,
            paused=paused,
            asked=self.requests.open(now),
            objection=objection,
            state_of=self.replicas.state_of,
            incoming=rests.incoming(span),
            resting_targets=rests.resting_targets,
        )
        return ReliefPlanning(self._table, self._decisions, None, now, relief)

    def _counts(self, policy: ReliefPolicy, now: float) -> CapCounts:
        """The caps, with pods that were planned within the last interval."""
        planned = self._memory.planned_pods(now - policy.interval_seconds)
        return CapCounts(policy.caps, planned, policy.most_pods)

    def _plan_id(self, hot: Alerts, now: float, node: PlannedNode) -> str:
        if node.strategy != LOW_NODE_LOAD:
            hour = int(now // LOOK_BACK_SECONDS)
            return self._memory.next_id(f"{node.node}/{node.strategy}", hour)
        opened = min(alert.since for alert in hot[node.node])
        state = self._table.snapshot(node.node).state
        # Both times are by the clock of the node.
        as_of = None if state is None else time_or_none(state.as_of)
        seconds = (as_of or 0.0) - (time_or_none(opened) or 0.0)
        purpose = f"{node.node}/{node.strategy}/{opened}"
        return self._memory.next_id(purpose, int(max(seconds, 0.0) // LOOK_BACK_SECONDS))


def _log_unmet_requests(plan: ReliefPlan) -> None:
    """Log why no pod leaves a node that asks for relief: the first reason."""
    for item in plan.items:
        if item.strategy != NODE_REQUESTS or item.moves or not item.stays:
            continue
        first = item.stays[0]
        reasons = [first.reason, *(f"{each.node}: {each.reason}" for each in first.rejected[:1])]
        log.info("no pod leaves the node, although it asks for relief", per=item.node,
                 node=item.node, pods=len(item.stays),
                 why=": ".join([f"{first.namespace}/{first.name}", *reasons]))  # fmt: skip


def _workload(pod: PodRecord) -> str:
    return str(workload_of(pod) or "")
