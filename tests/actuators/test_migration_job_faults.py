"""PodMigrationJobs on bad days: one job, or one failure, costs no other job its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction import migration_job_watch, relief
from actuators.eviction.migration_job_watch import MOST_BYTES, MOST_JOBS, JobWatch
from pipeline.clock import ManualClock
from pipeline.errors import ApiRefusedError, ApiUnavailableError, KafkaError, KubernetesError
from pipeline.kube.api_client import Api
from pipeline.kube.list_watch import Began, Changed, Complete, Event, Page
from pipeline.processors.eviction.evictability import EVICT
from pipeline.processors.eviction.migration_limits import Candidate
from pipeline.tasks import cancel_tasks
from pipeline.topics.actions import ActionRecord
from tests.actuators.job_world import BARE, World
from tests.actuators.simulated_cluster import STOP, SimulatedCluster, failed_with


def fill(world: World, node: str) -> None:
    """Let two pods hang in their deletion on a node, so that no other pod may leave it."""
    for _ in range(2):
        pod = world.cluster.add_pod(node, grace=1e6)
        pod.gone_at = pod.killed_at = world.cluster.now() + 1e6
        candidate = Candidate(pod.uid, node, "d", pod.name)
        world.gate.history.leaves(candidate, world.clock.monotonic(), 1e6)


# -- one job costs no other its turn


async def test_many_jobs_that_wait_cost_no_other_job_its_turn() -> None:
    world = World(policy=BARE)
    fill(world, "full")
    for number in range(150):
        world.ask(f"waits-{number:03}", world.cluster.add_pod("full"), ttl="1h")
    await world.run(30.0)
    pod = world.cluster.add_pod("n")
    world.ask("works", pod)
    await world.run(60.0)
    assert world.evicted == [pod.uid]
    assert world.phase("works") == "Succeeded None"
    assert {world.phase(f"waits-{n:03}") for n in range(150)} == {"Pending MaxMigratingPerNode"}


@pytest.mark.parametrize(
    "error",
    [ApiRefusedError("422 invalid"), failed_with(ApiUnavailableError("500 webhook"), 500)],
    ids=["422", "500"],
)
async def test_a_job_that_cannot_be_written_costs_no_other_job_its_turn(
    error: KubernetesError,
) -> None:
    world = World(policy=BARE)
    world.cluster.failing_jobs["broken"] = error
    world.ask("broken", world.cluster.add_pod("n"), ttl="1h")
    pods = [world.cluster.add_pod(f"n{number}") for number in range(3)]
    for number, pod in enumerate(pods):
        world.ask(f"job-{number}", pod)
    await world.run(90.0)
    assert {*world.evicted} == {pod.uid for pod in pods}
    assert {world.phase(f"job-{number}") for number in range(3)} == {"Succeeded None"}


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("d", "a/log"), ("d", ".."), ("..", "a"), ("d/x", "a"), ("d", "a b"), ("d", "A"),
     ("d", "a" * 300), ("n" * 64, "a"), ("d", "a%2Flog"), ("d", "a\n")],
)  # fmt: skip
async def test_a_name_that_no_pod_can_have_fails_its_job_without_a_request(
    namespace: str, name: str
) -> None:
    world = World()
    requests: list[str] = []
    answer = world.cluster.request

    async def request(method: str, path: str, **options: Any) -> bytes:
        requests.append(f"{method} {path}")
        return await answer(method, path, **options)

    world.cluster.request = request  # type: ignore[method-assign]
    world.ask("job", None, podRef={"namespace": namespace, "name": name})
    await world.run(5.0)
    assert world.phase("job") == "Failed InvalidPodRef"
    assert {text.split("/")[1] for text in requests} == {"apis"}, requests
    assert len(world.status("job")["message"]) < 500


async def test_a_job_that_is_being_deleted_evicts_no_pod() -> None:
    world = World(policy=BARE)
    world.ask("job", world.cluster.add_pod("n"))
    deleted_at = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["example/x"]}
    world.cluster.put("job", {"metadata": deleted_at})
    await world.run(7200.0)
    assert (world.evicted, world.cluster.writes) == ([], [])


# -- what passes fails no job


@pytest.mark.parametrize("how", ["kill switch", "lease", "unreadable switch"])
async def test_a_job_waits_while_evictions_are_stopped(how: str) -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod, ttl="10m")
    match how:
        case "kill switch":
            world.cluster.is_stopped = True
        case "lease":
            world.gate.may_evict = lambda: False
        case _:
            answer = world.cluster.request

            async def request(method: str, path: str, **options: Any) -> bytes:
                if path == STOP:
                    raise ApiUnavailableError("500 broken")
                return await answer(method, path, **options)

            world.cluster.request = request  # type: ignore[method-assign]
    await world.run(120.0)
    assert (world.evicted, world.phase("job")) == ([], "Pending Stopped")
    world.cluster.is_stopped, world.gate.may_evict = False, lambda: True
    vars(world.cluster).pop("request", None)
    await world.run(90.0)
    assert world.evicted == [pod.uid]
    assert world.phase("job") == "Succeeded None"


async def test_a_job_of_stopped_evictions_times_out_and_says_why() -> None:
    world = World(policy=BARE)
    world.cluster.is_stopped = True
    world.ask("job", world.cluster.add_pod("n"), ttl="1m")
    await world.run(120.0)
    assert world.evicted == []
    assert world.phase("job") == "Failed Timeout"
    assert "evictions are stopped by" in world.status("job")["message"]


async def test_a_job_waits_while_kafka_takes_no_record() -> None:
    world = World(policy=BARE)
    pod, write = world.cluster.add_pod("n"), world.log.write

    async def fails(action: ActionRecord) -> None:
        raise KafkaError("no broker")

    world.log.write = fails  # type: ignore[method-assign]
    world.ask("job", pod)
    await world.run(60.0)
    assert world.evicted == []
    assert world.phase("job").startswith("Pending ")
    world.log.write = write  # type: ignore[method-assign]
    await world.run(60.0)
    assert world.evicted == [pod.uid]


def calls_fail_until(world: World, end: float, error: Callable[[], KubernetesError]) -> None:
    """Let each call for an eviction fail until this time, without an effect."""
    answer = world.cluster._answer

    def fails(method: str, path: str, params: Any, body: Any) -> Any:
        is_call = path.endswith("/eviction") and "dryRun" not in body["deleteOptions"]
        if is_call and world.clock.monotonic() < end:
            raise error()
        return answer(method, path, params, body)

    world.cluster._answer = fails  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("status", "was_done"), [(503, False), (504, None), (None, None)], ids=["503", "504", "lost"]
)
async def test_a_job_waits_while_the_api_server_is_overloaded(
    status: int | None, was_done: bool | None
) -> None:
    world = World(policy=BARE)
    pod = world.cluster.add_pod("n")
    world.ask("job", pod)

    def busy() -> KubernetesError:
        error = ApiUnavailableError("overloaded", was_done=was_done)
        error.status = status
        return error

    calls_fail_until(world, world.clock.monotonic() + 60.0, busy)
    await world.run(60.0)
    assert world.evicted == []
    assert "Failed " not in world.phase("job")
    await world.run(180.0)
    assert world.evicted == [pod.uid]
    assert world.phase("job") == "Succeeded None"


async def test_a_job_of_many_days_waits_as_long_as_its_ttl() -> None:
    world = World(policy=BARE)
    world.cluster.is_stopped = True
    pod = world.cluster.add_pod("n")
    world.ask("job", pod, ttl="72h")
    await world.run(30.0)
    world.clock.suspend(90_000.0)
    await world.run(60.0)
    assert world.phase("job").startswith("Pending ")


# -- the annotation of a job


@pytest.mark.parametrize("has_annotation", [False, True])
async def test_the_annotation_of_a_job_lifts_the_limit_in_time_alone(has_annotation: bool) -> None:
    world = World()
    pods = world.cluster.add_deployment("web", 3, ["n", "m"])
    await world.relieve(pods[0])
    await world.run(60.0)
    world.ask("job", pods[1])
    if has_annotation:
        world.cluster.put("job", {"metadata": {"annotations": {EVICT: ""}}})
    await world.run(60.0)
    evicted = [pods[0].uid, *([pods[1].uid] if has_annotation else [])]
    assert world.evicted == evicted
    # The workload itself may still lose one pod at a time.
    assert all(eviction.unavailable <= 1 for eviction in world.cluster.accepted)


# -- jobs and plans share the executor


async def test_jobs_that_wait_leave_room_for_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "MOST_WAITING", 10)
    world = World(policy=BARE)
    fill(world, "full")
    for number in range(20):
        world.ask(f"waits-{number:02}", world.cluster.add_pod("full"), ttl="24h")
    await world.run(20.0)
    pod = world.cluster.add_pod("n")
    await world.relieve(pod)
    await world.run(10.0)
    assert world.evicted == [pod.uid]


async def test_jobs_that_wait_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "MOST_WAITING", 10)
    world = World(policy=BARE)
    fill(world, "full")
    for number in range(6):
        world.ask(f"a-{number}", world.cluster.add_pod("full"), ttl="24h")
    await world.run(20.0)
    pod = world.cluster.add_pod("n")
    world.ask("b", pod, ttl="1h")
    await world.run(400.0)
    assert world.evicted == [pod.uid]
    assert world.phase("b") == "Succeeded None"
    assert all(world.phase(f"a-{number}").startswith("Pending ") for number in range(6))


async def test_a_limit_fails_no_job_before_its_ttl() -> None:
    world = World(policy=BARE)
    fill(world, "full")
    pod = world.cluster.add_pod("full")
    world.ask("job", pod, ttl="72h")
    await world.run(30.0)
    world.clock.suspend(90_000.0)
    await world.run(60.0)
    assert world.phase("job") == "Pending MaxMigratingPerNode"
    for leaving in [*world.gate.history.leaving]:
        world.gate.history.left(leaving.pod.uid)
    await world.run(60.0)
    assert world.evicted == [pod.uid]


@pytest.mark.parametrize("ahead_seconds", [0.0, 3600.0, -3600.0, 20 * 86_400.0, -20 * 86_400.0])
async def test_a_job_is_as_old_as_the_api_server_says(ahead_seconds: float) -> None:
    """The broker, by whose clock plans are dated, may be hours ahead or behind."""
    world = World(policy=BARE)
    world.cluster.server_ahead_seconds = ahead_seconds
    world.cluster.is_stopped = True
    pod, other = world.cluster.add_pod("n"), world.cluster.add_pod("n")
    world.ask("job", pod, ttl="10m")
    world.ask("short", other, ttl="2m")
    await world.run(90.0)
    assert [world.phase(name) for name in ("job", "short")] == 2 * ["Pending Stopped"]
    await world.run(90.0)
    assert [world.phase(name) for name in ("job", "short")] == ["Pending Stopped", "Failed Timeout"]
    world.cluster.is_stopped = False
    await world.run(60.0)
    assert (world.evicted, world.cluster.deleted) == ([pod.uid], [])
    assert world.phase("job") == "Succeeded None"


# -- the watch


def encoded_job(number: int, pod: str = "a", text: str = "") -> msgspec.Raw:
    job = {
        "metadata": {"name": f"j{number}", "uid": f"u{number}", "resourceVersion": "1",
                     "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {"text": text}},
        "spec": {"podRef": {"namespace": "d", "name": pod}},
    }  # fmt: skip
    return msgspec.Raw(msgspec.json.encode(job))


async def test_jobs_beyond_the_bound_are_read_when_half_of_the_others_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migration_job_watch, "MOST_JOBS", 4)
    jobs, lists = dict.fromkeys(range(7)), 0

    async def follow(*_: Any, **__: Any) -> AsyncIterator[Event]:
        nonlocal lists
        lists += 1
        yield Began()
        yield Page([encoded_job(number) for number in jobs])
        yield Complete()
        for number in [*jobs][: 3 if lists == 1 else 0]:
            del jobs[number]
            yield Changed(encoded_job(number), True)
        await asyncio.Event().wait()

    monkeypatch.setattr(migration_job_watch, "follow", follow)
    watch = JobWatch(cast(Api, SimulatedCluster(ManualClock(), Random(1))))
    task = asyncio.create_task(watch.run())
    for _ in range(50):
        await asyncio.sleep(0)
    await cancel_tasks(task)
    # The first list has room for 0 to 3, of which two are deleted; the second is full again.
    assert (lists, sorted(watch.jobs)) == (2, ["j2", "j3", "j4", "j5"])


async def test_the_watch_remembers_no_name_of_a_job_that_is_gone() -> None:
    watch = World().jobs.watch
    for number in range(100, 200):
        watch.deliver(Changed(encoded_job(number), False))
        watch.deliver(Changed(encoded_job(number), True))
    assert (watch.jobs, watch._listed) == ({}, None)


def test_a_hundred_thousand_jobs_take_bounded_memory_and_each_finds_those_of_its_pod() -> None:
    watch = World().jobs.watch
    watch.deliver(Began())
    for first in range(0, 100_000, 500):
        page = (encoded_job(number, f"p{number // 2}") for number in range(first, first + 500))
        watch.deliver(Page([*page]))
        assert watch._listed is not None
        assert len(watch._listed) <= MOST_JOBS
    watch.deliver(Complete())
    assert len(watch.jobs) == MOST_JOBS
    # Not by a look at each of the others.
    names = {job.object.metadata.name for job in watch.of_pod(watch.jobs["j8"])}
    assert names == {"j8", "j9"}
    for number in range(MOST_JOBS):
        watch.deliver(Changed(encoded_job(number, f"p{number // 2}"), True))
    assert (watch.jobs, watch._by_pod, watch._bytes) == ({}, {}, 0)


def test_large_jobs_take_bounded_memory_however_they_grow() -> None:
    watch = World().jobs.watch
    megabyte = 2**20 * "x"
    for number in range(70):
        watch.deliver(Changed(encoded_job(number, text=megabyte), False))
    assert 60 <= len(watch.jobs) < 64
    for number in range(30):
        watch.deliver(Changed(encoded_job(number), False))
    assert watch._bytes < 35 * 2**20
    # One that grows beyond the bound is ignored, and no other one with it.
    for number in range(40):
        watch.deliver(Changed(encoded_job(1000 + number, text=megabyte), False))
    kept = len(watch.jobs)
    watch.deliver(Changed(encoded_job(3, text=megabyte), False))
    assert watch._bytes <= MOST_BYTES
    assert kept - len(watch.jobs) == ("j3" not in watch.jobs)


def test_a_job_that_is_changed_to_another_pod_is_found_with_this_one() -> None:
    watch = World().jobs.watch
    watch.deliver(Changed(encoded_job(1, "a"), False))
    watch.deliver(Changed(encoded_job(2, "b"), False))
    watch.deliver(Changed(encoded_job(2, "a"), False))
    of_pod = {job.object.metadata.name for job in watch.of_pod(watch.jobs["j1"])}
    assert of_pod == {"j1", "j2"}
    assert [*watch._by_pod] == [("d", "a")]
