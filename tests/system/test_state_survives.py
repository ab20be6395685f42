"""State survives: whatever is done to workers, commits and broker, results and checkpoints are
those of an undisturbed run over the same windows log, and no sample is missing in it.

Every test runs real workers on a real broker under load. The seeded bugs at the end show that the
comparison can fail: each is one known mistake in one function of the product.
"""

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from pipeline.local.local_kafka import LocalKafka
from tests.system import oracle
from tests.system.harness import (
    SESSION_SECONDS,
    Feed,
    Logs,
    Stage,
    Worker,
    children,
    copy_windows,
    feed,
    gather,
    make_stage,
    newest_marker,
    spread_windows,
    start_supervised,
    starved_seconds,
    until,
)
from tests.system.load import Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RESTART_SECONDS = 10
# More in `make nightly`.
KILL_SEEDS = int(os.environ.get("KILL_SEEDS", "4"))
TAKEOVER_SECONDS = SESSION_SECONDS + 15


@dataclass
class Run:
    """What a scenario leaves behind. `hurt` are the moments after which results must be fresh
    before long, unless the next came first; `starved` how long the worker then waited for a
    processor that others had, which is not its delay."""

    stage: Stage
    feed: Feed
    logs: Logs = field(default_factory=dict)
    hurt: list[float] = field(default_factory=list)
    starved: list[float] = field(default_factory=list)

    async def gather(self) -> None:
        self.logs = await gather(self.stage, self.feed.samples, ignore=self.feed.load.departing)

    def problems(self) -> list[str]:
        return oracle.problems(
            self.logs, self.feed.samples, self.feed.load.departing, self.stage.settings
        )

    def late(self, seconds: float) -> list[str]:
        """Moments after which no fresh result came within `seconds`, though nothing else did."""
        found = []
        following = [*self.hurt[1:], float("inf")]
        for moment, next_, starved in zip(self.hurt, following, self.starved, strict=True):
            limit = seconds + starved
            took = oracle.fresh_after(self.logs, moment)
            if next_ - moment > limit and (took is None or took > limit):
                found.append(f"fresh results {took} s after {moment}, {starved} s of them starved")
        return found


async def killed_again_and_again(
    broker: LocalKafka,
    directory: Path,
    seed: int,
    kills: int,
    *,
    bug: str = "none",
    partitions: int = 4,
    work_seconds: float = 2.5,
) -> Run:
    """kill -9 at random moments: of its start, of its recovery, of its work."""
    luck = random.Random(seed)
    stage = await make_stage(broker.bootstrap_servers, partitions)
    worker = Worker(stage, directory, instance="worker-0", bug=bug)
    async with feed(stage, Load(seed, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        worker.start()
        async with made.running():
            await worker.loaded()
            await asyncio.sleep(2)
            for _ in range(kills):
                if run.hurt:
                    run.starved.append(worker.starved_seconds())
                worker.kill()
                run.hurt.append(time.time())
                worker.start()
                if luck.random() < 0.6:
                    await worker.loaded()
                await asyncio.sleep(luck.uniform(0, work_seconds))
            await asyncio.sleep(max(0.0, run.hurt[-1] + RESTART_SECONDS - time.time()))
        run.starved.append(worker.starved_seconds())
        await run.gather()
        worker.kill()
        return run


@pytest.mark.parametrize("seed", range(KILL_SEEDS))
async def test_ten_kills_at_random_moments(broker: LocalKafka, tmp_path: Path, seed: int) -> None:
    run = await killed_again_and_again(broker, tmp_path, seed, kills=10, partitions=2 + seed % 3)
    assert run.problems() == []
    assert run.late(RESTART_SECONDS) == []


async def test_the_supervisor_brings_a_killed_worker_back(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await make_stage(broker.bootstrap_servers)
    async with feed(stage, Load(100, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        supervisor = start_supervised(stage, tmp_path)
        async with made.running():
            await supervisor.loaded()
            await asyncio.sleep(3)
            (worker,) = children(supervisor.pid)
            run.hurt.append(time.time())
            os.kill(worker, signal.SIGKILL)
            await asyncio.sleep(max(0.0, run.hurt[-1] + RESTART_SECONDS - time.time()))
        (again,) = children(supervisor.pid)
        run.starved.append(starved_seconds(again))
        await run.gather()
        assert run.problems() == []
        assert run.late(RESTART_SECONDS) == []
        assert supervisor.stop() == 0
        assert children(supervisor.pid) == []


async def test_a_fresh_worker_over_a_copy_of_the_log_gives_the_same(
    broker: LocalKafka, tmp_path: Path
) -> None:
    run = await killed_again_and_again(broker, tmp_path, seed=101, kills=3)
    assert run.problems() == []
    other = await make_stage(broker.bootstrap_servers)
    await copy_windows(run.logs, other)
    worker = Worker(other, tmp_path)
    worker.start()
    logs = await gather(other, [])
    assert worker.stop() == 0
    assert {at: len(records) for at, records in logs["windows"].items()} == {
        at: len(records) for at, records in run.logs["windows"].items()
    }
    for topic in ("predictions", "node-state"):
        assert oracle.newest(logs[topic]) == oracle.newest(run.logs[topic])
    assert oracle.newest_checkpoints(logs["checkpoints"]) == oracle.newest_checkpoints(
        run.logs["checkpoints"]
    )


async def test_twice_as_many_partitions_and_three_killed_workers_give_the_same(
    broker: LocalKafka, tmp_path: Path
) -> None:
    # Six partitions for three workers: the assignor gives none more than a third, rounded up, so
    # of four it may leave one of them without any.
    run = await killed_again_and_again(broker, tmp_path, seed=111, kills=2, partitions=3)
    assert run.problems() == []
    other = await make_stage(broker.bootstrap_servers, 2 * run.stage.partitions)
    await spread_windows(run.logs, other)
    workers = [Worker(other, tmp_path, instance=f"worker-{n}") for n in range(3)]
    for worker in workers:
        worker.start()
    await asyncio.gather(*(worker.loaded() for worker in workers))
    for worker in workers:
        worker.kill()
        worker.start()
    logs = await gather(other, [])
    assert [worker.stop() for worker in workers] == [0, 0, 0]
    for topic in ("predictions", "node-state"):
        spread, before = (oracle.newest_anywhere(found[topic]) for found in (logs, run.logs))
        assert len(before) > 8
        assert spread == before


async def test_a_paused_worker_wakes_up_after_another_took_over(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await make_stage(broker.bootstrap_servers)
    paused, other = Worker(stage, tmp_path), Worker(stage, tmp_path)
    async with feed(stage, Load(102, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        paused.start()
        async with made.running():
            await paused.loaded()
            other.start()
            await other.loaded()
            await asyncio.sleep(4)
            paused.signal(signal.SIGSTOP)
            run.hurt.append(time.time())
            await asyncio.sleep(TAKEOVER_SECONDS)
            paused.signal(signal.SIGCONT)
            await asyncio.sleep(10)
        run.starved.append(other.starved_seconds())
        await run.gather()
        assert run.problems() == []
        assert run.late(TAKEOVER_SECONDS) == []
        for worker in (paused, other):
            worker.kill()


async def test_a_second_worker_joins_and_leaves_under_load(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await make_stage(broker.bootstrap_servers)
    first, second = Worker(stage, tmp_path), Worker(stage, tmp_path)
    async with feed(stage, Load(103, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        first.start()
        async with made.running():
            await first.loaded()
            for _ in range(2):
                await asyncio.sleep(2)
                second.start()
                await second.loaded()
                await asyncio.sleep(4)
                assert second.stop() == 0
            await asyncio.sleep(5)
        await run.gather()
        assert run.problems() == []
        assert first.stop() == 0


async def commits_moved(broker: LocalKafka, directory: Path, bug: str = "none") -> Run:
    """Faust's commits set to the end of `samples` and back to its beginning."""
    stage = await make_stage(broker.bootstrap_servers)
    worker = Worker(stage, directory, bug=bug)
    async with feed(stage, Load(104, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        async with made.running():
            for where in ("end", "beginning", "end"):
                worker.start()
                await worker.loaded()
                await asyncio.sleep(4)
                assert worker.stop() == 0
                # What comes now lies beyond every commit of the worker's own.
                await asyncio.sleep(1)
                await set_commits(stage, where)
            worker.start()
            await worker.loaded()
            await asyncio.sleep(3)
        await run.gather()
        worker.kill()
        return run


async def set_commits(stage: Stage, where: str) -> None:
    """What an operator does with kafka-consumer-groups --reset-offsets."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stage.bootstrap, group_id=stage.prefix, enable_auto_commit=False
    )
    await consumer.start()
    try:
        tps = [
            TopicPartition(stage.topic("samples"), partition)
            for partition in range(stage.partitions)
        ]
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        offsets = {tp: ends[tp] if where == "end" else 0 for tp in tps}
        for attempt in range(30):
            try:
                await consumer.commit(offsets)
                return
            except KafkaError:
                # The group is not empty yet.
                if attempt == 29:
                    raise
                await asyncio.sleep(0.5)
    finally:
        await consumer.stop()


async def test_commits_decide_nothing(broker: LocalKafka, tmp_path: Path) -> None:
    run = await commits_moved(broker, tmp_path)
    assert run.problems() == []


async def test_the_broker_is_away_for_twenty_seconds(broker: LocalKafka, tmp_path: Path) -> None:
    stage = await make_stage(broker.bootstrap_servers)
    worker = Worker(stage, tmp_path)
    async with feed(stage, Load(105, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        worker.start()
        async with made.running():
            await worker.loaded()
            await asyncio.sleep(3)
            await asyncio.to_thread(broker.stop)
            try:
                await asyncio.sleep(20)
            finally:
                await asyncio.to_thread(broker.start)
            back = time.time()
            await asyncio.sleep(15)
        await run.gather()
        assert worker.is_running(), worker.tail()
        assert run.problems() == []
        fresh = oracle.fresh_after(run.logs, back)
        assert fresh is not None
        assert fresh < TAKEOVER_SECONDS
        worker.kill()


async def test_an_outage_longer_than_requests_wait_is_survived_under_a_supervisor(
    broker: LocalKafka, tmp_path: Path
) -> None:
    """Whether the worker rides it out or ends and is restarted is its own affair."""
    stage = await make_stage(broker.bootstrap_servers)
    async with feed(stage, Load(109, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        supervisor = start_supervised(
            stage, tmp_path,
            ["--request-timeout-seconds", "5", "--restart-backoff-max-seconds", "2"],
        )  # fmt: skip
        async with made.running():
            await supervisor.loaded()
            await asyncio.sleep(3)
            await asyncio.to_thread(broker.stop)
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.to_thread(broker.start)
            back = time.time()
            await asyncio.sleep(15)
        await run.gather()
        assert run.problems() == []
        fresh = oracle.fresh_after(run.logs, back)
        assert fresh is not None
        assert fresh < TAKEOVER_SECONDS
        assert supervisor.stop() == 0


async def test_a_failed_delivery_ends_the_worker_and_its_successor_loses_nothing(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await make_stage(broker.bootstrap_servers)
    failing = Worker(stage, tmp_path, instance="worker-0", bug="deliveries_fail")
    sound = Worker(stage, tmp_path, instance="worker-0")
    codes = []
    async with feed(stage, Load(110, nodes=16, pods=5)) as made:
        run = Run(stage, made)
        async with made.running():
            for _ in range(4):
                failing.start()
                assert await until(lambda: not failing.is_running(), 60), failing.tail()
                assert failing.process is not None
                codes.append(failing.process.returncode)
            sound.start()
            await sound.loaded()
        await run.gather()
        assert codes == [1] * 4
        assert run.problems() == []
        sound.kill()


# -- seeded bugs: each must be found


async def test_a_replay_left_out_is_found(broker: LocalKafka, tmp_path: Path) -> None:
    run = await killed_again_and_again(broker, tmp_path, seed=106, kills=3, bug="replay_left_out")
    assert any("checkpoint differs" in problem for problem in run.problems())


async def test_a_join_that_trusts_commits_is_found(broker: LocalKafka, tmp_path: Path) -> None:
    run = await commits_moved(broker, tmp_path, bug="join_trusts_commits")
    assert any("samples missing" in problem for problem in run.problems())


async def test_a_marker_written_too_early_is_found(broker: LocalKafka, tmp_path: Path) -> None:
    # One partition, so that a round is eight slices long and nearly every kill interrupts one.
    run = await killed_again_and_again(
        broker, tmp_path, seed=107, kills=5, bug="marker_too_early", partitions=1, work_seconds=6
    )
    assert any("checkpoint differs" in problem for problem in run.problems())


async def test_every_round_is_complete_at_the_end(broker: LocalKafka, tmp_path: Path) -> None:
    """What a marker says of its round is so, and older epochs are gone."""
    run = await killed_again_and_again(broker, tmp_path, seed=108, kills=2)
    assert run.problems() == []
    for records in run.logs["checkpoints"].values():
        marker = newest_marker(records)
        assert marker is not None
        live = {record.key: record.value for record in records}
        epochs = {
            key.rpartition(b"@")[2]
            for key, value in live.items()
            if value is not None and b"@claim@" not in key
        }
        assert epochs == {str(marker.epoch).encode()}
