"""PodMigrationJobs with a simulated cluster: those of users are carried out, evictions reported."""

from collections import Counter
from random import Random

import msgspec
import pytest

from actuators.eviction.eviction_gate import Mode
from actuators.eviction.migration_job_objects import CREATED_BY, JobObject, report_name
from actuators.eviction.migration_job_reports import MOST_REPORTS
from pipeline.errors import ApiUnavailableError
from pipeline.kube.list_watch import Changed
from pipeline.processors.eviction.migration_job import Reservation
from pipeline.processors.eviction.migration_job_object import ObjectReference
from pipeline.processors.eviction.migration_limits import Candidate
from pipeline.processors.eviction.migration_policy import MigrationPolicy
from tests.actuators.job_world import BARE, World
from tests.actuators.simulated_cluster import SimulatedPod, random_failure, violations

# -- jobs of users


async def test_a_job_evicts_its_pod_and_ends_when_the_pod_is_gone() -> None:
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    world.ask("job", pod)
    await world.run(5.0)
    assert world.evicted == [pod.uid]
    assert world.phase("job") == "Running Evicting"
    assert world.cluster.jobs["job"]["spec"]["podRef"]["uid"] == pod.uid
    await world.run(40.0)
    assert world.phase("job") == "Succeeded None"
    (condition,) = world.status("job")["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Eviction", "True", "EvictComplete",
    )  # fmt: skip
    assert world.outcomes == ["intended", "done"]
    assert world.log[0].strategy == "PodMigrationJob"
    assert world.cluster.events == [
        f"Descheduled {pod.name}", "Evicting job", "EvictComplete job", "Complete job",
    ]  # fmt: skip
    assert [*world.cluster.jobs] == ["job"], "the job itself reports its eviction"


async def test_a_job_waits_for_the_limits_of_all_evictions() -> None:
    world = World()
    pods = world.cluster.add_deployment("web", 3, ["n"])
    await world.relieve(pods[0])
    await world.run(3.0)
    world.ask("job", pods[1])
    await world.run(10.0)
    assert world.evicted == [pods[0].uid]
    assert world.phase("job") == "Pending MaxMigratingPerWorkload"
    await world.run(300.0)
    assert world.evicted == [pods[0].uid]
    assert world.phase("job") == "Failed Timeout"
    assert "Deployment/d/web loses at most 1 pods" in world.status("job")["message"]


async def test_protected_pods_stay_and_the_job_says_why() -> None:
    world = World()
    world.ask("job", world.cluster.add_pod("n"))
    world.ask("single", world.cluster.add_deployment("one", 1, ["n"])[0])
    world.ask("absent", None)
    await world.run()
    assert world.evicted == []
    assert world.phase("job") == "Failed ForbiddenMigratePod"
    assert world.status("job")["message"].startswith("BarePod: ")
    assert world.status("single")["message"].startswith("ExpectedReplicas: ")
    assert world.phase("absent") == "Failed MissingPod"


@pytest.mark.parametrize("mode", ["ReservationFirst", None])
async def test_a_reservation_is_not_made_and_the_pod_is_not_evicted(mode: str | None) -> None:
    world = World(policy=BARE)
    world.ask("job", world.cluster.add_pod("n"), mode=mode)
    await world.run()
    assert world.evicted == []
    assert world.phase("job") == "Failed FailedCreateReservation"
    assert "EvictDirectly" in world.status("job")["message"]


async def test_an_implementation_of_reservations_decides_when_the_pod_leaves() -> None:
    world = World(policy=BARE)
    pod, reservation = world.cluster.add_pod("n"), Reservation("Pending")

    async def reserve(job: JobObject) -> Reservation:
        return reservation

    world.jobs.reserve = reserve
    world.ask("job", pod, mode="ReservationFirst")
    await world.run()
    assert (world.evicted, world.phase("job")) == ([], "Running None")
    reservation = Reservation("Available", node="m")
    await world.run(60.0)
    assert world.evicted == [pod.uid]
    assert world.phase("job") == "Running WaitForPodBindReservation"
    new = ObjectReference(namespace="d", name="new")
    reservation = Reservation("Succeeded", node="m", bound_pod=new, is_bound_pod_ready=True)
    await world.run(10.0)
    assert world.phase("job") == "Succeeded None"
    assert (world.status("job")["nodeName"], world.status("job")["podRef"]["name"]) == ("m", "new")


async def test_a_paused_job_does_nothing_until_it_is_resumed() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod, paused=True)
    await world.run()
    assert (world.evicted, world.cluster.writes) == ([], [])
    world.cluster.put("job", {"spec": {"paused": False}})
    await world.run()
    assert world.evicted == [pod.uid]


def hold(world: World) -> SimulatedPod:
    """Let a job wait for the turn of its pod, which two others of its node precede."""
    others = [world.cluster.add_pod("n", grace=100.0) for _ in range(2)]
    for pod in others:
        world.gate.history.leaves(
            Candidate(pod.uid, pod.node, "d", pod.name), world.clock.monotonic(), 100.0
        )
        pod.gone_at = pod.killed_at = world.cluster.now() + 20.0
    pod = world.cluster.add_pod("n")
    world.ask("job", pod)
    return pod


@pytest.mark.parametrize("how", ["deleted", "paused", "aborted", "another pod"])
async def test_an_abort_stops_a_job_that_waits(how: str) -> None:
    world = World(policy=BARE)
    pod = hold(world)
    await world.run(8.0)
    assert world.phase("job") == "Pending MaxMigratingPerNode"
    match how:
        case "deleted":
            world.cluster.remove("job")
        case "paused":
            world.cluster.put("job", {"spec": {"paused": True}})
        case "aborted":
            world.cluster.put("job", {"status": {"phase": "Aborted"}})
        case _:
            world.cluster.put("job", {"spec": {"podRef": {"name": "absent"}}})
    await world.run(60.0)
    assert pod.uid not in world.evicted
    assert len(world.worker.relief) == 0
    if how == "aborted":
        assert world.phase("job") == "Aborted MaxMigratingPerNode"


async def test_an_abort_that_the_watch_has_not_delivered_is_seen_before_the_call() -> None:
    world = World(policy=BARE)
    pod = hold(world)
    await world.run(8.0)
    world.cluster.tell = lambda job, is_deleted: None
    world.cluster.put("job", {"status": {"phase": "Aborted"}})
    await world.run(60.0)
    assert pod.uid not in world.evicted
    assert any("Withdrawn" in action.error for action in world.log)


async def test_a_held_job_is_carried_out_when_its_turn_comes() -> None:
    world = World(policy=BARE)
    pod = hold(world)
    await world.run(60.0)
    assert world.evicted == [pod.uid]


async def test_two_jobs_of_a_pod_evict_it_once() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("first", pod)
    world.ask("second", pod)
    await world.run(4.0)
    assert world.phase("second") == "Pending Duplicate"
    # A StatefulSet starts another pod of the name.
    await world.run(30.0)
    successor = world.cluster.add_pod("n")
    successor.name = pod.name
    await world.run(30.0)
    assert world.phase("first") == "Succeeded None"
    assert world.phase("second") == "Failed MissingPod"
    assert world.evicted == [pod.uid]


async def test_grace_period_and_policy_of_the_job_apply() -> None:
    world = World(policy=BARE)
    pods = [world.cluster.add_pod("n") for _ in range(2)]
    world.ask("short", pods[0], deleteOptions={"gracePeriodSeconds": 1})
    world.ask("soft", pods[1])
    world.cluster.put(
        "soft", {"metadata": {"labels": {"koordinator.sh/evict-policy": "SoftEviction"}}}
    )
    await world.run()
    assert world.evicted == [pods[0].uid]
    assert "scheduling.koordinator.sh/soft-eviction" in pods[1].changes["annotations"]
    assert {e.grace_seconds for e in world.gate.history.leaving} >= {1.0}


@pytest.mark.parametrize("mode", ["observe", "recommend"])
async def test_other_modes_say_what_would_happen_and_write_no_job(mode: Mode) -> None:
    world = World(mode)
    pod, *_ = world.cluster.add_deployment("web", 3, ["n"])
    world.ask("job", pod)
    world.ask("reserve", pod, mode="ReservationFirst")
    world.ask("invalid", pod, ttl="soon")
    await world.run(60.0)
    assert (world.evicted, world.cluster.writes) == ([], [])
    texts = sorted((action.outcome, action.error.partition(":")[0]) for action in world.log)
    ended = ("observed", "would end as Failed")
    assert texts == sorted([("observed" if mode == "observe" else "recommended", ""), ended, ended])


async def test_a_dry_policy_writes_nothing_and_its_end_lets_jobs_act() -> None:
    dry = MigrationPolicy(protections=BARE.protections, is_dry=True)
    world = World(policy=dry)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod)
    await world.run()
    assert (world.outcomes, world.cluster.writes) == (["observed"], [])
    world.gate.take_policy(BARE)
    await world.run(60.0)
    assert world.evicted == [pod.uid]


async def test_jobs_of_another_descheduler_are_left_alone() -> None:
    world = World(policy=BARE)
    world.ask("job", world.cluster.add_pod("n"))
    world.cluster.put("job", {"metadata": {"annotations": {CREATED_BY: "another"}}})
    await world.run(3600.0)
    assert (world.evicted, world.cluster.writes) == ([], [])


async def test_old_jobs_are_deleted_as_upstream_does() -> None:
    world = World()
    world.ask("job", None)
    world.ask("unlimited", None, ttl=None, paused=True)
    await world.run(660.0)
    assert world.cluster.deleted == ["job"]
    await world.run(1200.0)
    assert world.cluster.deleted == ["job", "unlimited"]


async def test_a_conflict_writes_nothing_over_the_change_of_another() -> None:
    world = World()
    world.ask("job", None)
    tell = world.cluster.tell
    world.cluster.tell = lambda job, is_deleted: None
    job = world.cluster.put("job", {"status": {"phase": "Aborted"}})
    await world.run()
    assert world.status("job") == {"phase": "Aborted"}
    tell(job, False)
    world.cluster.tell = tell
    await world.run()
    assert world.status("job") == {"phase": "Aborted"}


# -- restart and failover


@pytest.mark.parametrize("seconds", [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 6.0, 25.0])
async def test_a_restart_at_any_moment_evicts_once_and_ends_the_job(seconds: float) -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod)
    await world.run(seconds)
    world.start()
    await world.run(60.0)
    assert world.evicted == [pod.uid]
    assert world.phase("job") == "Succeeded None"


async def test_a_crash_between_record_and_call_never_evicts_later() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod)
    world.log.hangs = True
    await world.run()
    assert world.outcomes == ["intended"]
    world.log.hangs = False
    world.start()
    await world.run(310.0)
    assert world.evicted == []
    assert world.phase("job") == "Failed Timeout"


# -- reports of evictions by plans


async def test_an_eviction_by_a_plan_is_reported_and_its_job_removed_later() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    plan = await world.relieve(pod)
    await world.run(5.0)
    name = report_name(plan.id, pod.uid)
    job = world.cluster.jobs[name]
    assert job["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "springtide"}
    annotations = job["metadata"]["annotations"]
    assert annotations["koordinator.sh/evict-trigger"] == "LowNodeLoad"
    assert "cpu 91% of 75%" in annotations["koordinator.sh/evict-reason"]
    assert CREATED_BY in annotations, "a koord-descheduler leaves it alone"
    assert job["spec"] == {
        "mode": "EvictDirectly", "ttl": "5m0s",
        "podRef": {"kind": "Pod", "namespace": "d", "name": pod.name, "uid": pod.uid},
    }  # fmt: skip
    assert world.phase(name) == "Running Evicting"
    await world.run(30.0)
    assert world.phase(name) == "Succeeded None"
    assert world.cluster.deleted == []
    await world.run(600.0)
    assert world.cluster.deleted == [name]
    assert world.evicted == [pod.uid]


async def test_a_report_is_no_request_for_another_evictor() -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    await world.relieve(pod)
    await world.run(5.0)
    # The next evictor knows no action, and the pod was not evicted after all.
    pod.gone_at = pod.killed_at = None
    world.log.clear()
    world.start()
    await world.run(310.0)
    assert world.evicted == [pod.uid]
    (job,) = world.cluster.jobs.values()
    assert (job["status"]["phase"], job["status"]["reason"]) == ("Failed", "Timeout")


async def test_failures_of_jobs_neither_stop_nor_delay_an_eviction() -> None:
    world = World(policy=BARE)
    pods = [world.cluster.add_pod("n"), world.cluster.add_pod("m")]
    world.cluster.job_failure = ApiUnavailableError("503 overloaded")
    await world.relieve(pods[0])
    await world.relieve(pods[1])
    await world.run(5.0)
    assert world.evicted == [pods[0].uid, pods[1].uid]
    assert world.cluster.jobs == {}


async def test_reports_are_bounded() -> None:
    world = World(policy=BARE)
    labels = {"app.kubernetes.io/managed-by": "springtide"}
    for number in range(MOST_REPORTS):
        world.cluster.put(f"old-{number}", {
            "metadata": {"labels": labels}, "status": {"phase": "Succeeded"},
            "spec": {"podRef": {"namespace": "d", "name": "a"}, "ttl": "5m"},
        })  # fmt: skip
    pod = world.cluster.add_pod("n")
    await world.relieve(pod)
    await world.run(5.0)
    assert world.evicted == [pod.uid]
    assert len(world.cluster.jobs) == MOST_REPORTS


async def test_without_the_custom_resource_nothing_is_written() -> None:
    world = World(policy=BARE)
    world.jobs.watch.is_read = False
    await world.relieve(world.cluster.add_pod("n"))
    await world.run(5.0)
    assert len(world.evicted) == 1
    assert world.cluster.writes == []


async def test_invalid_objects_are_dropped() -> None:
    world = World()
    for text in ("{}", "[", '{"metadata": {"name": "x"}, "spec": {"podRef": 3}}'):
        raw = msgspec.Raw(text.encode())
        world.jobs.watch.deliver(Changed(raw, False))
    await world.run()
    assert (world.jobs.watch.jobs, world.log) == ({}, [])


@pytest.mark.parametrize("seed", range(6))
async def test_failures_and_restarts_evict_no_pod_twice_and_end_every_job(seed: int) -> None:
    random = Random(seed)
    world = World(policy=BARE)
    pods = [world.cluster.add_pod(f"n{number % 2}") for number in range(6)]
    for number, pod in enumerate(pods):
        world.ask(f"job-{number}", pod, ttl=random.choice(["1m", "3m", "5m"]))
        world.ask(f"again-{number}", pod)
    world.cluster.random = random
    world.cluster.failure = lambda: random_failure(random, often=0.1)
    for _ in range(8):
        await world.run(random.uniform(1.0, 20.0))
        world.start()
    await world.run(320.0)
    world.cluster.failure = lambda: None
    await world.run(60.0)
    assert max(Counter(world.evicted).values()) == 1
    limits = world.policy.limits
    assert violations(world.cluster.accepted, limits, 60.0, {}) == []
    phases = {job["status"]["phase"] for job in world.cluster.jobs.values()}
    assert phases <= {"Succeeded", "Failed"}
