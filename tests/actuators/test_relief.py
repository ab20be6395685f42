"""Plans that relieve nodes, with a simulated cluster: each pod stands alone and is judged."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction.departures import watch_departures
from actuators.eviction.eviction_gate import EvictionGate, Mode
from actuators.eviction.plan_worker import PlanWorker
from actuators.eviction.received_plans import receive
from actuators.eviction.relief import MOST_WAITING
from actuators.rate_limit import RateLimit
from pipeline.clock import ManualClock
from pipeline.errors import ApiUnavailableError, ForbiddenError, KubernetesError
from pipeline.kube.api_client import Api
from pipeline.processors.eviction.migration_limits import Candidate
from pipeline.processors.eviction.migration_policy import MigrationPolicy, Protections
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod
from tests.actuators.simulated_cluster import STOP, SimulatedCluster, SimulatedPod


class Log(list[ActionRecord]):
    """Actions in the order in which they were written."""

    def put(self, action: ActionRecord) -> None:
        self.append(action)

    async def write(self, action: ActionRecord) -> float | None:
        self.append(action)
        return None


class World:
    """An evictor of relief plans. Use it inside of a running loop."""

    def __init__(self, *, mode: Mode = "act", policy: MigrationPolicy | None = None) -> None:
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(self.clock, Random(1))
        self.log = Log()
        self.gate = EvictionGate(
            cast(Api, self.cluster), STOP, RateLimit(1.0, self.clock), self.clock, self.log,
            lambda: True, policy or MigrationPolicy(),
        )  # fmt: skip
        self.worker = PlanWorker(self.gate, mode)
        self._plans = 0

    async def run(self, *plans: EvictionPlanRecord, seconds: float = 10.0) -> list[str]:
        """Take up plans and work for a while; returns the outcomes of all actions until then."""

        async def work() -> None:
            for plan in plans:
                await self.start(plan)
            while True:
                await self.worker.step()
                await self.clock.sleep(0.5)

        tasks = [asyncio.create_task(work()), asyncio.create_task(watch_departures(self.gate))]
        await self.clock.advance(seconds)
        assert not [task.exception() for task in tasks if task.done()]
        await cancel_tasks(*tasks)
        return [action.outcome for action in self.log]

    async def start(self, plan: EvictionPlanRecord) -> None:
        await self.worker.start(receive(plan, self.clock))

    def plan(self, *pods: SimulatedPod, seconds: float = 60.0, **more: Any) -> EvictionPlanRecord:
        self._plans += 1
        now, node = self.clock.now(), pods[0].node
        values = {"id": f"p{self._plans}", "strategy": "LowNodeLoad"} | more
        return EvictionPlanRecord(
            node=node, at=format_time(now), valid_until=format_time(now + seconds),
            planner="planner", why="cpu 91% of 75%",
            pods=tuple(LeavingPod(uid=pod.uid, pod_class="batch") for pod in pods), **values,
        )  # fmt: skip

    @property
    def evicted(self) -> list[str]:
        return [eviction.pod.uid for eviction in self.cluster.accepted]

    @property
    def last_error(self) -> str:
        return self.log[-1].error


BARE = MigrationPolicy(protections=Protections(evict_all_bare_pods=True))


async def test_a_pod_is_evicted_recorded_and_reported_under_upstreams_names() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    assert await world.run(world.plan(pod)) == ["intended", "done"]
    assert world.evicted == [pod.uid]
    assert world.cluster.events == [f"Descheduled {pod.name}"]
    action = world.log[-1]
    assert (action.strategy, action.workload) == ("LowNodeLoad", "Deployment/d/web")
    assert action.before == {f"d/{pod.name}": pod.uid}


@pytest.mark.parametrize(
    ("mode", "outcome"), [("observe", "observed"), ("recommend", "recommended")]
)
async def test_other_modes_evict_no_pod(mode: Mode, outcome: str) -> None:
    world = World(mode=mode)
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    bare = world.cluster.add_pod("n")
    assert sorted(await world.run(world.plan(pod, bare))) == sorted([outcome, "refused"])
    assert world.evicted == []
    assert world.cluster.events == ([] if mode == "observe" else [f"WouldDeschedule {pod.name}"])


async def test_a_pod_that_must_stay_stops_no_other_pod_of_the_plan() -> None:
    world = World()
    pods = world.cluster.add_deployment("web", 3, ["n"])
    bare, single = world.cluster.add_pod("n"), world.cluster.add_deployment("one", 1, ["n"])[0]
    absent = SimulatedPod("absent", "absent", "d", "n")
    outcomes = await world.run(world.plan(bare, absent, single, pods[0]))
    assert sorted(outcomes) == ["done", "intended", "refused", "refused", "refused"]
    assert world.evicted == [pods[0].uid]
    reasons = {action.error.partition(":")[0] for action in world.log if action.error}
    assert reasons == {"BarePod", "Gone", "ExpectedReplicas"}


async def test_a_skipped_gate_evicts_and_is_named_in_the_action() -> None:
    world = World(policy=MigrationPolicy(skipped_gates=frozenset({"BarePods", "PVC"})))
    bare = world.cluster.add_pod("n")
    assert await world.run(world.plan(bare)) == ["intended", "done"]
    assert {action.skipped for action in world.log} == {("BarePods",)}


async def test_the_next_pod_of_a_workload_waits_for_the_replacement_of_the_last() -> None:
    world = World(policy=MigrationPolicy(skipped_gates=frozenset({"ExpectedReplicas"})))
    pods = world.cluster.add_deployment("web", 3, ["n"])
    plan = world.plan(*pods, seconds=600.0)
    await world.run(plan, seconds=14.0)
    assert len(world.evicted) == 1
    assert all(action.outcome in ("intended", "done") for action in world.log)


async def test_a_successor_of_the_same_name_is_not_evicted() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    plan = world.plan(pod)
    await world.start(plan)
    successor = world.cluster.pods.pop(pod.uid)
    successor.uid = "successor"
    world.cluster.pods["successor"] = successor
    assert await world.run() == ["refused"]
    assert world.last_error == "Gone: the pod was deleted"
    assert world.evicted == []


async def test_a_dry_policy_evicts_no_pod_and_stops_those_that_wait() -> None:
    world = World(policy=BARE)
    pods = [world.cluster.add_pod("n") for _ in range(2)]
    await world.start(world.plan(pods[0], seconds=15.0))
    world.gate.take_policy(MigrationPolicy(protections=BARE.protections, is_dry=True))
    outcomes = await world.run(world.plan(pods[1]), seconds=20.0)
    assert (outcomes, world.evicted) == (["observed", "refused"], [])


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_budget_that_allows_none_refuses_with_its_name(is_ready: bool) -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    pod.ready_at = 0.0 if is_ready else float("inf")
    world.cluster.budgets = [
        {"metadata": {"name": "b", "namespace": "d"}, "spec": {"selector": {}}, "status": {}}
    ]
    assert await world.run(world.plan(pod, seconds=30.0), seconds=35.0) == ["refused"]
    assert world.last_error == "Forbidden: the disruption budget d/b allows 0 evictions now, not 1"
    assert world.evicted == []


async def test_two_budgets_refuse_at_once() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    budget = {"metadata": {"name": "b", "namespace": "d"}, "spec": {"selector": {}}}
    world.cluster.budgets = [budget, budget]
    outcomes = await world.run(world.plan(pod), seconds=61.0)
    assert (outcomes, "2 budgets cover the pod" in world.last_error) == (["refused"], True)


async def test_the_kill_switch_stops_all_waiting_pods() -> None:
    world = World()
    pods = world.cluster.add_deployment("web", 30, ["n"])
    world.cluster.is_stopped = True
    outcomes = await world.run(world.plan(*pods[:3]), seconds=20.0)
    assert set(outcomes) == {"refused"}
    assert "evictions are stopped" in world.last_error
    assert world.evicted == []


async def test_a_plan_is_carried_out_once_and_a_pod_of_two_plans_once() -> None:
    world = World()
    pods = world.cluster.add_deployment("web", 30, ["n"])
    plan = world.plan(pods[0])
    outcomes = await world.run(plan, plan, world.plan(pods[0]))
    assert outcomes == ["refused", "intended", "done"]
    assert world.log[0].error.startswith("Repeated")
    assert world.evicted == [pods[0].uid]


async def test_an_expired_plan_says_what_its_pods_waited_for() -> None:
    world = World(policy=BARE)
    pods = [world.cluster.add_pod("n") for _ in range(4)]
    outcomes = await world.run(world.plan(*pods, seconds=15.0), seconds=16.0)
    assert sorted(outcomes) == ["done", "done", "intended", "intended", "refused", "refused"]
    assert world.last_error == "MaxMigratingPerNode: 2 pods are leaving from node n, the limit is 2"


async def test_cheap_pods_are_evicted_first() -> None:
    world = World(policy=BARE)
    dear = world.cluster.add_pod("n", labels={"koordinator.sh/priority-class": "koord-prod"})
    cheap = world.cluster.add_pod("n", labels={"koordinator.sh/priority-class": "koord-free"})
    await world.run(world.plan(dear, cheap))
    assert world.evicted == [cheap.uid, dear.uid]


def fails_at_the_call(world: World, error: KubernetesError) -> Callable[[], Exception | None]:
    """Fails the eviction itself: the second request after its record, which the kill switch
    precedes."""
    requests = 0

    def failure() -> Exception | None:
        nonlocal requests
        requests += any(action.outcome == "intended" for action in world.log)
        return error if requests == 2 else None

    return failure


@pytest.mark.parametrize("seed", range(4))
async def test_a_lost_answer_is_looked_up_and_not_repeated(seed: int) -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    # By the seed the server evicts the pod before the answer is lost, or does not.
    world.cluster.random = Random(seed)
    world.cluster.failure = fails_at_the_call(world, ApiUnavailableError("no answer"))
    assert await world.run(world.plan(pod), seconds=20.0) == ["intended", "done"]
    assert world.evicted == [pod.uid]


async def test_a_forbidden_call_is_not_repeated() -> None:
    world = World(policy=BARE)
    pod, error = world.cluster.add_pod("n"), ForbiddenError("403 no permission")
    error.status = 403
    world.cluster.failure = fails_at_the_call(world, error)
    assert await world.run(world.plan(pod), seconds=60.0) == ["intended", "failed"]
    assert "do not retry in a loop" in world.last_error
    assert (world.evicted, world.gate.history.is_leaving(pod.uid)) == ([], False)


async def test_a_refusal_after_a_lost_answer_is_no_refusal_because_the_pod_may_leave() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    is_lost = fails_at_the_call(world, ApiUnavailableError("no answer"))

    def failure() -> Exception | None:
        error = is_lost()
        world.cluster.is_stopped = world.cluster.is_stopped or error is not None
        return error

    world.cluster.failure = failure
    world.cluster.random = Random(1)  # the server does not evict it
    assert await world.run(world.plan(pod), seconds=40.0) == ["intended", "failed"]
    assert "evictions are stopped" in world.last_error
    assert world.gate.history.is_leaving(pod.uid)


async def test_soft_evictions_annotate_the_pod_and_evict_nothing() -> None:
    policy = MigrationPolicy(protections=BARE.protections, mode="SoftEviction")
    world = World(policy=policy)
    soft = world.cluster.add_pod("n")
    hard = world.cluster.add_pod("n", labels={"koordinator.sh/evict-policy": "Eviction"})
    await world.run(world.plan(soft, hard))
    assert world.evicted == [hard.uid]
    text = soft.changes["annotations"]["scheduling.koordinator.sh/soft-eviction"]
    assert "cpu 91% of 75%" in text
    assert soft.uid in text
    assert world.gate.history.is_leaving(soft.uid)
    outcomes = {uid: a.outcome for a in world.log for uid in a.before.values()}
    assert outcomes == {soft.uid: "marked", hard.uid: "done"}


SOFT = MigrationPolicy(protections=BARE.protections, mode="SoftEviction")


async def test_a_marked_pod_is_reported_as_evicted_when_its_agent_evicts_it() -> None:
    world = World(policy=SOFT)
    pod = world.cluster.add_pod("n")
    plan = world.plan(pod)
    assert await world.run(plan, seconds=30.0) == ["intended", "marked"]
    world.cluster._delete(pod)
    assert await world.run(seconds=30.0) == ["intended", "marked", "done"]
    last = world.log[-1]
    assert (last.plan, last.strategy, last.before) == (
        plan.id, "LowNodeLoad", {f"d/{pod.name}": pod.uid}
    )  # fmt: skip
    assert world.gate.marked == {}


async def test_a_marked_pod_that_nobody_evicts_is_reported_as_refused() -> None:
    world = World(policy=SOFT)
    await world.run(world.plan(world.cluster.add_pod("n")), seconds=320.0)
    assert [action.outcome for action in world.log] == ["intended", "marked", "refused"]
    assert world.last_error == "Stays: no agent evicted the pod in 300 s"
    assert (world.gate.marked, [*world.gate.history.leaving]) == ({}, [])


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_next_leader_reports_what_became_of_a_marked_pod(leaves: bool) -> None:
    former, world = World(policy=SOFT), World(policy=SOFT)
    pod = former.cluster.add_pod("n")
    await former.run(former.plan(pod))
    if not leaves:
        world.cluster.pods[pod.uid] = pod
    for action in former.log:
        world.worker.learn(action)
    await world.worker.begin()
    await world.run(seconds=400.0)
    assert [action.outcome for action in world.log] == ["done" if leaves else "refused"]


async def test_a_pod_that_is_gone_is_named_in_its_action() -> None:
    world = World()
    absent = LeavingPod(uid="u", pod_class="batch", namespace="d", name="a", workload="Job/d/j")
    plan = msgspec.structs.replace(world.plan(SimulatedPod("x", "x", "d", "n")), pods=(absent,) * 2)
    assert await world.run(plan) == ["refused"]
    (action,) = world.log
    assert (action.before, action.after) == ({"d/a": "u"}, {"d/a": None})
    assert action.workload == "Job/d/j"
    assert action.error == "Gone: no pod of the UID u is on the node"


async def test_pods_above_the_bound_of_waiting_ones_are_refused() -> None:
    world = World(policy=BARE)
    pods = [world.cluster.add_pod("n") for _ in range(MOST_WAITING + 1)]
    await world.start(world.plan(*pods))
    assert [action.error for action in world.log] == [f"Overload: {MOST_WAITING} pods wait"]


async def test_many_pods_that_wait_cost_no_other_pod_its_turn() -> None:
    world = World(policy=BARE)
    for _ in range(2):
        leaving = world.cluster.add_pod("full", grace=1e6)
        leaving.gone_at = leaving.killed_at = world.cluster.now() + 1e6
        world.gate.history.leaves(Candidate(leaving.uid, "full", "d", leaving.name), 0.0, 1e6)
    many = world.plan(*(world.cluster.add_pod("full") for _ in range(MOST_WAITING - 1)))
    # The last in the order of all.
    pod = world.cluster.add_pod("n", priority=8000)
    await world.run(many, world.plan(pod), seconds=15.0)
    assert world.evicted == [pod.uid]
