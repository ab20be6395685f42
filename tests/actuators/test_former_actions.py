"""A new leader takes what it does not know about former evictions for the worst."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from actuators.eviction import eviction_actuator, log_marks
from actuators.eviction.departures import look_at_all_pods
from actuators.eviction.eviction_actuator import Evictor
from actuators.eviction.former_actions import read_actions
from actuators.eviction.log_marks import EVERY_SECONDS, MARK, keep_marks
from pipeline.clock import ManualClock
from pipeline.errors import ApiUnavailableError, BrokerUnavailableError, ForbiddenError
from pipeline.kafka.follow import ConsumerRecord, Follower, Positions, TopicPartition
from pipeline.kube.api_client import Api
from pipeline.kube.lease import Lease
from pipeline.processors.descheduling.move_memory import MoveMemory
from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.migration_policy import (
    MigrationLimits,
    MigrationPolicy,
    ObjectLimiter,
)
from pipeline.settings import Settings
from pipeline.tasks import cancel_tasks
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord
from pipeline.topics.codec import encode_json
from tests.actuators.simulated_cluster import STOP
from tests.actuators.test_relief import BARE, World
from tests.actuators.test_repeated_calls import BATCH, room_for, waiting_pod
from tests.processes import until

HOUR = 3600.0


def record(value: bytes | None, age: float, partition: int = 0, key: str = "n") -> ConsumerRecord:
    at = round((ManualClock().now() - age) * 1000)
    return cast(ConsumerRecord, SimpleNamespace(
        topic="springtide.actions", partition=partition, offset=0, key=key.encode(), value=value,
        timestamp=at, headers=(),
    ))  # fmt: skip


def evicted(age: float = 0.0, **changes: Any) -> ActionRecord:
    values: dict[str, Any] = {
        "actuator": "evictor", "outcome": "intended", "before": {"d/a": "a"}, "plan": "p",
    } | changes  # fmt: skip
    return ActionRecord(
        node="n", at=format_time(ManualClock().now() - age), action="evict", why="", **values
    )  # fmt: skip


Partition = tuple[int, list[ConsumerRecord | None]]


class Log:
    """A follower of partitions, each with its first offset and the records from there on; None was
    deleted by compaction, which keeps offsets and the begin of a log."""

    def __init__(self, *partitions: Partition) -> None:
        self._partitions = {
            TopicPartition("springtide.actions", number): partition
            for number, partition in enumerate(partitions)
        }
        self.assigned = [*self._partitions]
        self._starts: Mapping[TopicPartition, int] = {}

    async def ends(self) -> Positions:
        return {tp: first + len(records) for tp, (first, records) in self._partitions.items()}

    async def beginnings(self) -> Positions:
        return {tp: first for tp, (first, _) in self._partitions.items()}

    async def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> Positions:
        def offset(tp: TopicPartition, first: int, records: list[ConsumerRecord | None]) -> int:
            late = (
                number
                for number, record in enumerate(records)
                if record is not None and record.timestamp >= times_ms[tp]
            )
            return first + next(late, len(records))

        return {tp: offset(tp, *partition) for tp, partition in self._partitions.items()}

    def read_from(self, starts: Mapping[TopicPartition, int], ends: object) -> None:
        self._starts = starts

    async def read_to_end(self) -> AsyncIterator[list[ConsumerRecord]]:
        for tp, (first, records) in self._partitions.items():
            yield [
                cast(ConsumerRecord, SimpleNamespace(
                    **vars(each) | {"partition": tp.partition, "offset": offset}
                ))
                for offset, each in enumerate(records, first)
                if each is not None and offset >= self._starts[tp]
            ]  # fmt: skip


OTHER = encode_json(evicted(actuator="cluster"))


@pytest.mark.parametrize(
    ("partitions", "known_seconds"),
    [
        ([(0, [])], HOUR),  # nothing was ever written
        ([(0, [record(OTHER, 60)])], HOUR),
        ([(7, [record(OTHER, 4000), record(OTHER, 60)])], HOUR),  # reaches back
        ([(7, [record(OTHER, 4000)])], HOUR),
        ([(7, [record(OTHER, 1000), record(OTHER, 60)])], 1000),  # cut
        ([(7, [])], 0),  # all was deleted, nobody knows when
        ([(0, []), (7, [record(OTHER, 900)]), (3, [record(OTHER, 1800)])], 900),
        ([(7, [record(None, -50)])], 0),  # the evictor's clock is behind
        # Compaction deletes records of any time, and keeps the first offset.
        ([(0, [record(OTHER, 4000), None, record(OTHER, 900), record(OTHER, 60)])], 900),
        ([(0, [record(OTHER, 3000), record(OTHER, 900), None, record(OTHER, 60)])], 60),
        ([(0, [None, record(OTHER, 4000), record(OTHER, 60)])], HOUR),
        ([(0, [None, record(OTHER, 600)])], 600),
    ],
)  # fmt: skip
async def test_a_log_that_was_cut_is_known_from_its_first_record_on(
    partitions: list[Partition], known_seconds: float
) -> None:
    clock = ManualClock(monotonic=500.0)
    log = cast(Follower, Log(*partitions))
    assert await read_actions(log, clock, HOUR, lambda *_: None) == 500.0 - known_seconds


async def test_a_log_that_was_cut_is_known_to_the_second_if_any_time_is_needed() -> None:
    log = cast(Follower, Log((7, [record(OTHER, 1000)])))
    clock = ManualClock(now=ManualClock().now() + 123.0, monotonic=500.0)
    known_since = await read_actions(log, clock, 1e17, lambda *_: None)
    assert known_since == 500.0 - 1123.0


async def test_marks_tell_the_next_leader_how_far_back_a_partition_reaches() -> None:
    """It marks those that retention has emptied at once, and all of them every day."""
    clock, written, failures = ManualClock(), list[tuple[float, int]](), [1]

    async def emptied() -> list[int]:
        return [1, 2]

    async def write(action: ActionRecord, partition: int) -> None:
        if failures and partition == 2:
            failures.pop()
            raise BrokerUnavailableError("no broker")
        written.append((clock.monotonic(), partition))
        marks.append(action)

    marks: list[ActionRecord] = []
    marking = asyncio.create_task(keep_marks(4, clock, emptied, write))
    await clock.advance(100.0)
    assert written == [(0.0, 1), (60.0, 2)]
    await clock.advance(EVERY_SECONDS)
    assert written[2:] == [(60.0 + EVERY_SECONDS, number) for number in range(4)]
    await cancel_tasks(marking)
    # The next leader, 20 minutes later: no eviction is learnt from a mark.
    log, history = cast(Follower, Log((7, [record(encode_json(marks[0]), 1200)]))), World()
    known_since = await read_actions(log, ManualClock(), HOUR, history.worker.learn)
    assert known_since == -1200.0
    assert len(history.gate.history) == 0
    memory = MoveMemory()
    assert not memory.take_action(marks[0], clock.now())


async def test_only_partitions_that_lost_all_of_their_records_are_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions: list[Partition] = [
        (0, []), (7, []), (7, [record(OTHER, 60)]),
    ]  # fmt: skip

    @asynccontextmanager
    async def follower(*_: Any) -> AsyncIterator[Log]:
        yield Log(*partitions)

    monkeypatch.setattr(log_marks, "open_follower", follower)
    assert await log_marks.emptied_partitions(Settings().kafka) == [1]


async def test_actions_are_as_young_as_broker_or_writer_say() -> None:
    world = World()
    ages = {"behind": (9000.0, 100.0), "late": (100.0, 50.0), "ahead": (-900.0, 100.0)}
    records = [
        record(encode_json(evicted(of_writer, outcome="done", before={f"d/{uid}": uid})), of_broker)
        for uid, (of_writer, of_broker) in ages.items()
    ]
    invalid = [record(b'"evictor"', 5), record(encode_json(evicted(before={"a": "", "b": ""})), 5)]
    await read_actions(
        cast(Follower, Log((0, records + invalid))), world.clock, HOUR, world.worker.learn
    )
    times = {e.pod.uid: e.at for e in world.gate.history.leaving}
    assert times == {"behind": -100.0, "late": -50.0, "ahead": 0.0}


async def test_limits_in_time_wait_until_the_unknown_time_has_passed() -> None:
    """Of 30 replicas three may leave in five minutes, one at a time: the bucket may be empty."""
    world = World()
    pod, *_ = world.cluster.add_deployment("web", 30, ["n"])
    await world.worker.begin(world.clock.monotonic() - 20.0)
    await world.run(world.plan(pod, seconds=70.0), seconds=71.0)
    assert (world.evicted, world.log[-1].outcome) == ([], "refused")
    assert "evictions are known for" in world.last_error
    await world.run(world.plan(pod, seconds=70.0), seconds=70.0)
    assert world.evicted == [pod.uid]


async def test_caps_of_a_cycle_and_the_pause_of_a_pod_wait_too() -> None:
    limits = MigrationLimits(cycle_total=1, cycle_seconds=60.0)
    world = World(policy=MigrationPolicy(limits=limits, protections=BARE.protections))
    await world.worker.begin(world.clock.monotonic())
    bare, victim = (world.cluster.add_pod("n", labels=BATCH) for _ in range(2))
    await world.run(room_for(world, waiting_pod(world), victim), seconds=1.0)
    assert world.last_error.startswith("Early")
    await world.run(world.plan(bare, seconds=300.0), seconds=58.0)
    assert world.evicted == []
    await world.run(seconds=40.0)
    assert world.evicted == [bare.uid]


async def test_a_replacement_may_be_that_of_a_pod_whose_eviction_is_unknown() -> None:
    limits = MigrationLimits(
        max_unavailable_per_workload=9, workload_limiter=ObjectLimiter(duration_seconds=0.0)
    )
    world = World(policy=MigrationPolicy(limits=limits))
    pod, *others = world.cluster.add_deployment("web", 30, ["n"])
    for other in others[:3]:
        other.ready_at = float("inf")
    await world.worker.begin(world.clock.monotonic() - 280.0)
    await world.run(world.plan(pod, seconds=15.0), seconds=16.0)
    assert world.last_error.startswith("MaxMigratingPerWorkload: 3 pods")
    # After the TTL only unavailable pods count.
    await world.run(world.plan(pod, seconds=15.0), seconds=16.0)
    assert world.evicted == [pod.uid]


@pytest.mark.parametrize("readable", [True, False])
async def test_pods_that_are_being_deleted_count_as_leaving(readable: bool) -> None:
    """Without any action: springtide.actions was deleted and created again."""
    world = World(policy=BARE)
    former, *pods = (world.cluster.add_pod("n") for _ in range(4))
    hanging = world.cluster.add_pod("n", ends_after=9000.0)
    answer, failures = world.cluster.request, [] if readable else [ApiUnavailableError("busy")]

    async def request(method: str, path: str, **more: Any) -> bytes:
        if failures and path == "/api/v1/pods":
            raise failures.pop()
        return await answer(method, path, **more)

    world.cluster.request = request  # type: ignore[method-assign]
    world.cluster._delete(hanging)
    await world.clock.advance(500.0)
    world.cluster._delete(former)
    world.cluster.accepted.clear()
    beginning = asyncio.create_task(world.worker.begin())
    await world.clock.advance(5.0)
    await beginning
    assert [e.pod.uid for e in world.gate.history.leaving] == [former.uid]
    # Two pods may leave a node at the same time; how often pods leave does not depend on it.
    await world.run(world.plan(*pods), seconds=12.0)
    assert world.evicted == [pods[0].uid]
    assert world.gate.history.last_at is not None
    await world.run(seconds=7.0)
    assert len(world.evicted) == 2


async def test_pods_are_listed_page_by_page_and_the_newest_deletions_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, pages = World(), list[Any]()
    world.worker.learn(evicted(before={"d/gone": "gone"}))
    world.worker.learn(evicted(before={"d/there": "u2"}))
    pods = [world.cluster.add_pod("n") for _ in range(6)]
    for pod, seconds in ((pods[0], 5.0), (pods[2], 20.0), (pods[3], 30.0)):
        pod.killed_at = world.cluster.now() + seconds
    manifests = [world.cluster._manifest(pod) for pod in pods]
    manifests[0]["spec"]["containers"] = 7  # another pod need not be valid
    ended = world.cluster.add_pod("n")
    ended.killed_at = world.cluster.now() + 30.0
    manifests.append(world.cluster._manifest(ended))
    manifests[-1]["status"]["phase"] = "Succeeded"

    async def request(method: str, path: str, *, params: Any = None, **_: Any) -> bytes:
        pages.append(params)
        page = len(pages) - 1
        metadata = {"resourceVersion": "1", "continue": f"page {page + 1}" if page < 3 else ""}
        listed = {"kind": "PodList", "metadata": metadata}
        return msgspec.json.encode(listed | {"items": manifests[2 * page : 2 * page + 2]})

    world.cluster.request = request  # type: ignore[method-assign]
    monkeypatch.setattr("actuators.eviction.departures._MOST_DELETED", 1)
    assert await look_at_all_pods(world.gate)
    assert [page.get("continue") for page in pages] == [None, "page 1", "page 2", "page 3"]
    assert {e.pod.uid for e in world.gate.history.leaving} == {"u2", pods[3].uid}


async def test_without_the_right_to_list_pods_the_evictor_ends() -> None:
    world = World()
    world.cluster.failure = lambda: ForbiddenError("403")
    with pytest.raises(ForbiddenError):
        await world.worker.begin()


async def test_a_policy_that_looks_back_further_learns_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def policy(hours: float) -> MigrationPolicy:
        limiter = ObjectLimiter(duration_seconds=hours * HOUR)
        return MigrationPolicy(limits=MigrationLimits(workload_limiter=limiter))

    clock, asked = ManualClock(), list[float]()
    evictor = Evictor(cast(Api, None), Settings(), clock, cast(Lease, None))
    history = evictor._gate.history
    history.known_since = -HOUR
    policies = iter([*[policy(3.0)] * 3, policy(1.0), policy(2.0), *[policy(2.0)] * 9])

    async def read_policy(*_: Any) -> MigrationPolicy:
        return next(policies)

    async def read(_: Any, __: Any, seconds: float, learn: Any) -> float:
        asked.append(seconds)
        if len(asked) == 1:
            raise BrokerUnavailableError("no broker")
        learn(evicted(7000.0), clock.now() - 7000.0)
        return clock.monotonic() - seconds

    monkeypatch.setattr(eviction_actuator, "read_policy", read_policy)
    monkeypatch.setattr(eviction_actuator, "read_former_actions", read)
    following = asyncio.create_task(evictor._follow_policy())
    await clock.advance(15.0)
    assert (asked, history.known_since) == ([3 * HOUR], -HOUR)
    await clock.advance(10.0)
    assert history.known_since == 20.0 - 3 * HOUR
    # A pod that was evicted two hours ago is not looked for.
    assert (len(history), len(history.leaving)) == (1, 0)
    await clock.advance(70.0)
    assert asked == [3 * HOUR, 3 * HOUR, 2 * HOUR]
    await cancel_tasks(following)


async def test_an_evictor_is_ready_when_it_follows_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    evictor = Evictor(cast(Api, None), Settings(), clock, cast(Lease, None))
    log = SimpleNamespace(is_caught_up=False)

    async def nothing(*_: Any) -> list[Any]:
        await asyncio.sleep(0)
        return []

    log.begin = log.poll = nothing

    @asynccontextmanager
    async def follower(*_: Any) -> AsyncIterator[SimpleNamespace]:
        yield log

    monkeypatch.setattr(eviction_actuator, "open_follower", follower)
    reading = asyncio.create_task(evictor._read())
    for _ in range(9):
        await asyncio.sleep(0)
        assert evictor.trouble() != ""
    log.is_caught_up = True
    await until(lambda: not evictor.trouble())
    await cancel_tasks(reading)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_an_evictor_says_at_its_start_that_the_kill_switch_is_set(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.cluster.is_stopped = is_stopped
    lease = cast(Lease, SimpleNamespace(is_held=True))
    evictor = Evictor(cast(Api, world.cluster), Settings(), world.clock, lease)
    evictor._gate.stop_path = STOP

    async def learn() -> None:
        pass

    async def run(parts: list[Coroutine[Any, Any, Any]]) -> None:
        for part in parts:
            part.close()

    monkeypatch.setattr(evictor, "_learn_limits", learn)
    monkeypatch.setattr(eviction_actuator, "run_all", run)
    await evictor._lead()
    warnings = [(record.message, vars(record)["fields"]["why"]) for record in caplog.records]
    text = "no pod is evicted until this changes"
    assert warnings == ([(text, f"evictions are stopped by {STOP}")] if is_stopped else [])


@pytest.mark.parametrize("ahead_seconds", [0.0, 200.0, 7200.0, -200.0])
async def test_a_wall_clock_that_differs_from_the_brokers_lifts_no_limit(
    monkeypatch: pytest.MonkeyPatch, ahead_seconds: float
) -> None:
    """A former leader evicted a pod 30 s ago."""
    world = World()
    broker_now = world.clock.now()
    world.clock.jump(ahead_seconds)
    evictor = Evictor(cast(Api, world.cluster), Settings(), world.clock, cast(Lease, None))
    history, written = evictor._gate.history, list[ActionRecord]()

    async def write(action: ActionRecord) -> float:
        written.append(action)
        return broker_now + world.clock.monotonic()

    async def read(_: Any, clock: Any, seconds: float, learn: Any) -> float:
        log = Log((0, [record(encode_json(evicted(30.0, outcome="done")), 30.0)]))
        return await read_actions(cast(Follower, log), clock, seconds, learn)

    monkeypatch.setattr(evictor._actions, "write", write)
    monkeypatch.setattr(eviction_actuator, "read_former_actions", read)
    await evictor._learn_limits()
    assert [(action.action, action.node, action.plan) for action in written] == [(MARK, "", "")]
    assert (history.last_at, history.known_since) == (-30.0, -HOUR)


async def test_a_plan_is_as_old_as_its_record() -> None:
    evictor = Evictor(cast(Api, None), Settings(), ManualClock(), cast(Lease, None))
    world = World()
    plan = room_for(world, waiting_pod(world), world.cluster.add_pod("n"), valid_seconds=30.0)
    await evictor._take(record(encode_json(plan), age=20.0))
    assert evictor._plans.get_nowait().expires_at == 10.0


def test_what_is_forgotten_is_unknown() -> None:
    history, now = EvictionHistory(HOUR, 300.0), 0.0
    assert history.unknown_seconds(now) == 0.0
    history.forget(now)
    assert (history.known_since, history.unknown_seconds(now)) == (-HOUR, 0.0)
    history.keep(2 * HOUR, 300.0)
    assert history.unknown_seconds(now) == HOUR
    assert history.unknown_seconds(now + 5 * HOUR) == 0.0


async def test_a_long_ttl_does_not_make_replacements_unknown() -> None:
    limits = MigrationLimits(ttl_seconds=2 * HOUR, max_unavailable_per_workload=9)
    world = World(policy=MigrationPolicy(limits=limits))
    pod, *others = world.cluster.add_deployment("web", 30, ["n"])
    for other in others[:3]:
        other.ready_at = float("inf")
    world.gate.history.forget(world.clock.monotonic())
    await world.run(world.plan(pod))
    assert world.evicted == [pod.uid]
