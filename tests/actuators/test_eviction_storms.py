"""No storm of plans, failures and crashes exceeds a limit, and every limit is needed for that."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from actuators.eviction.departures import watch_departures
from actuators.eviction.eviction_gate import EvictionGate
from actuators.eviction.plan_worker import PlanWorker
from actuators.eviction.received_plans import receive
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import BrokerUnavailableError
from pipeline.kube.api_client import Api
from pipeline.processors.eviction import migration_limits
from pipeline.processors.eviction.migration_policy import (
    MigrationLimits,
    MigrationPolicy,
    ObjectLimiter,
    Protections,
)
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from tests.actuators.simulated_cluster import (
    STOP,
    CrashError,
    SimulatedCluster,
    random_failure,
    violations,
)

NODES = ("n1", "n2", "n3")
OFF = ObjectLimiter(duration_seconds=0.0)
BARE = Protections(evict_all_bare_pods=True)


class DurableLog:
    """The topic of actions, for the log of each evictor."""

    def __init__(self) -> None:
        self.actions: list[ActionRecord] = []


@dataclass
class ActionsOf:
    """Actions of one evictor: those that are not awaited may be lost, deliveries may fail."""

    durable: DurableLog
    random: Random
    loses: float

    def put(self, action: ActionRecord) -> None:
        if self.random.random() >= self.loses:
            self.durable.actions.append(action)

    async def write(self, action: ActionRecord) -> None:
        if self.random.random() < self.loses / 4:
            raise BrokerUnavailableError("no broker")
        self.durable.actions.append(action)


@dataclass
class Storm:
    """Evictors one after the other, or two that both believe to lead, on a stream of plans."""

    policy: MigrationPolicy
    seed: int
    per_minute: float = 120.0
    failures: float = 0.0
    plans: list[tuple[float, EvictionPlanRecord]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(self.clock, self.random)
        self.log = DurableLog()
        self.leader = 0
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def add_pods(self) -> None:
        self.cluster.add_deployment("web", 12, list(NODES))
        self.cluster.add_deployment("db", 5, list(NODES), namespace="e")
        for number in range(18):
            self.cluster.add_pod(NODES[number % 3], namespace="d" if number % 2 else "e")

    def add_plans(self, seconds: float, count: int) -> None:
        """Random plans, some of them repeated, in random order."""
        pods, start = [*self.cluster.pods.values()], self.clock.now()
        for number in range(count):
            node, at = self.random.choice(NODES), start + self.random.random() * seconds
            chosen = [p for p in pods if p.node == node and self.random.random() < 0.5]
            plan = EvictionPlanRecord(
                node=node, id=f"p{number}", at=format_time(at), planner="storm", why="",
                valid_until=format_time(at + self.random.choice((5, 60, 300))),
                pods=tuple(LeavingPod(uid=pod.uid, pod_class="batch") for pod in chosen),
            )  # fmt: skip
            for _ in range(self.random.choice((1, 1, 2))):
                self.plans.append((at + self.random.random() * 5 - 1, plan))
        self.plans.sort(key=lambda item: item[0])

    async def run(self, seconds: float, *, crashes: float = 0.0) -> None:
        self._start()
        for _ in range(round(seconds)):
            await self.clock.advance(1.0)
            crashed = self.tasks[self.leader].done()
            if crashed or self.random.random() < crashes:
                if not crashed and self.random.random() < 0.5:
                    await cancel_tasks(self.tasks[self.leader])
                # Else the former leader goes on, without the lease.
                self.leader += 1
                await self.clock.advance(5.0)
                self._start()
        await cancel_tasks(*self.tasks.values())

    def _start(self) -> None:
        self.tasks[self.leader] = asyncio.create_task(self._evictor(self.leader))

    async def _evictor(self, number: int) -> None:
        actions = ActionsOf(self.log, self.random, self.failures)
        rate = RateLimit(self.per_minute / 60.0, self.clock)
        gate = EvictionGate(
            cast(Api, self.cluster), STOP, rate, self.clock, actions,
            lambda: self.leader == number, self.policy,
        )  # fmt: skip
        worker = PlanWorker(gate, "act")
        for action in self.log.actions:
            worker.learn(action)
        departures: asyncio.Task[None] | None = None
        try:
            await worker.begin()
            departures = asyncio.create_task(watch_departures(gate))
            read = 0
            while True:
                while read < len(self.plans) and self.plans[read][0] <= self.clock.now():
                    await worker.start(receive(self.plans[read][1], self.clock))
                    read += 1
                await worker.step()
                await self.clock.sleep(0.5)
        except CrashError:
            return
        finally:
            if departures is not None:
                await cancel_tasks(departures)

    def problems(self) -> list[str]:
        accepted, replicas = self.cluster.accepted, self.cluster.replicas
        planned = {pod.uid for _, plan in self.plans for pod in plan.pods}
        strangers = ["not planned" for e in accepted if e.pod.uid not in planned]
        return strangers + violations(accepted, self.policy.limits, self.per_minute, replicas)


POLICIES = st.builds(
    MigrationLimits,
    max_migrating_globally=st.sampled_from((None, 1, 4)),
    max_migrating_per_node=st.sampled_from((None, 1, 2)),
    max_migrating_per_namespace=st.sampled_from((None, 1, 3)),
    max_migrating_per_workload=st.sampled_from((None, 1, "25%")),
    max_unavailable_per_workload=st.sampled_from((None, 2, "50%")),
    workload_limiter=st.sampled_from((OFF, ObjectLimiter(duration_seconds=120.0, burst=2))),
    namespace_limiter=st.sampled_from((OFF, ObjectLimiter(duration_seconds=60, max_migrating=3))),
    cycle_per_node=st.sampled_from((None, 1)),
    cycle_per_namespace=st.sampled_from((None, 2)),
    cycle_total=st.sampled_from((None, 3)),
)


@given(limits=POLICIES, seed=st.integers(0, 2**32), per_minute=st.sampled_from((20.0, 120.0)))
@settings(max_examples=25, phases=(Phase.generate,))  # to shrink an example takes minutes
def test_a_storm_of_plans_failures_and_leaders_exceeds_no_limit(
    limits: MigrationLimits, seed: int, per_minute: float
) -> None:
    policy = MigrationPolicy(limits=limits, protections=BARE)
    storm = Storm(policy, seed, per_minute, failures=0.1)
    storm.add_pods()
    storm.add_plans(100.0, 40)
    cluster = storm.cluster
    cluster.latency_seconds = 0.4

    def failure() -> Exception | None:
        if storm.random.random() < 0.002:
            return CrashError("killed")
        return random_failure(storm.random, often=0.1)

    cluster.failure = failure
    asyncio.run(storm.run(90.0, crashes=0.02))
    assert storm.problems() == []


SINGLE: dict[str, dict[str, Any]] = {
    "global": {"max_migrating_globally": 3},
    "node": {"max_migrating_per_node": 2},
    "namespace": {"max_migrating_per_namespace": 2},
    "workload": {"max_migrating_per_workload": 2},
    "unavailable": {"max_unavailable_per_workload": 2},
    "workload limiter": {
        "workload_limiter": ObjectLimiter(duration_seconds=120.0, max_migrating=4)
    },
    "namespace limiter": {
        "namespace_limiter": ObjectLimiter(duration_seconds=120.0, max_migrating=4)
    },
    "cycle of a node": {"cycle_per_node": 1},
    "cycle of a namespace": {"cycle_per_namespace": 1},
    "cycle": {"cycle_total": 2},
}
OPEN: dict[str, Any] = {
    "max_migrating_per_node": None, "workload_limiter": OFF, "max_migrating_per_workload": "100%",
    "max_unavailable_per_workload": "100%", "skip_check_expected_replicas": True,
    "cycle_seconds": 10.0,
}  # fmt: skip


def busy(limits: dict[str, Any], per_minute: float = 120.0) -> tuple[list[str], int]:
    """Evict every pod of a cluster under these limits alone; returns the exceeded limits."""
    policy = MigrationPolicy(limits=MigrationLimits(**(OPEN | limits)), protections=BARE)
    storm = Storm(policy, 7, per_minute)
    storm.add_pods()
    storm.add_plans(10.0, 20)
    asyncio.run(storm.run(60.0))
    return storm.problems(), len(storm.cluster.accepted)


@pytest.mark.parametrize("name", SINGLE)
def test_without_any_single_limit_the_monitor_finds_too_many_evictions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SINGLE.keys() == migration_limits.LIMITS.keys()
    problems, count = busy(SINGLE[name])
    assert problems == []
    assert count > 2
    monkeypatch.setitem(migration_limits.LIMITS, name, lambda *_: None)
    assert busy(SINGLE[name])[0] == [name]


def test_without_the_rate_the_monitor_finds_evictions_that_are_too_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert busy({}, 20.0)[0] == []
    monkeypatch.setattr(RateLimit, "seconds_until", lambda *_: 0.0)
    assert busy({}, 20.0)[0] == ["rate"]


@pytest.mark.parametrize("name", ["workload limiter", "namespace limiter", "node"])
def test_a_leader_that_forgets_its_predecessors_exceeds_the_limits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problems() -> list[str]:
        policy = MigrationPolicy(limits=MigrationLimits(**(OPEN | SINGLE[name])), protections=BARE)
        storm = Storm(policy, seed=3)
        storm.add_pods()
        storm.add_plans(60.0, 60)
        asyncio.run(storm.run(80.0, crashes=0.1))
        assert storm.leader > 2
        return storm.problems()

    assert problems() == []
    monkeypatch.setattr(PlanWorker, "learn", lambda *_: None)
    # Pods that are being deleted count, even if nothing is known about their evictions.
    assert problems() == ([] if name == "node" else [name])
    monkeypatch.setattr(PlanWorker, "begin", wait)
    assert name in problems()


async def wait(_: PlanWorker) -> None:
    """Begin without a look at the pods."""


@pytest.mark.parametrize("name", ["workload limiter", "namespace limiter", "cycle", "node"])
def test_a_leader_that_knows_what_it_does_not_know_exceeds_no_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = PlanWorker.begin
    monkeypatch.setattr(PlanWorker, "learn", lambda *_: None)
    monkeypatch.setattr(
        PlanWorker, "begin", lambda worker: begin(worker, worker._gate.clock.monotonic())
    )
    policy = MigrationPolicy(limits=MigrationLimits(**(OPEN | SINGLE[name])), protections=BARE)
    storm = Storm(policy, seed=3)
    storm.add_pods()
    storm.add_plans(200.0, 100)
    asyncio.run(storm.run(220.0, crashes=0.02))
    assert storm.problems() == []
    assert storm.leader > 1
    assert len(storm.cluster.accepted) > 3
