"""Three brokers: each is killed and restarted under load, leaders move, a worker loses a broker.

Nothing is lost, and results equal those of an undisturbed run over the same log.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.kafka.client import client_options
from pipeline.local.kafka_cluster import BROKERS, LocalCluster, local_cluster
from pipeline.local.local_kafka import LocalKafka
from pipeline.local.port_probe import free_port
from tests.broker import admin_client
from tests.forwarder import Forwarder, forwarder
from tests.processes import until
from tests.system import oracle
from tests.system.harness import (
    Feed,
    Stage,
    Worker,
    create_stage,
    feed,
    gather,
    wait_for_results,
)  # fmt: skip
from tests.system.load import Load

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def proxy_ports() -> list[int]:
    return [free_port() for _ in range(BROKERS)]


@pytest.fixture(scope="module")
def cluster(proxy_ports: list[int]) -> Iterator[LocalCluster]:
    with local_cluster(proxy_ports) as cluster:
        yield cluster


@pytest.fixture
async def proxies(cluster: LocalCluster, proxy_ports: list[int]) -> AsyncIterator[list[Forwarder]]:
    """A proxy before each broker; workers know only the addresses of these."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(forwarder(listening, proxied))
            for listening, proxied in zip(cluster.proxied_ports, proxy_ports, strict=True)
        ]


async def stage_of(cluster: LocalCluster) -> Stage:
    return await create_stage(cluster.bootstrap_servers, replicas=BROKERS)


async def have_leaders(stage: Stage, wanted: list[int]) -> bool:
    return await leaders(stage) == wanted


async def has_moved(stage: Stage, broker: int) -> bool:
    """Whether no partition is led by this broker."""
    return broker not in await leaders(stage)


async def problems_of(made: Feed) -> list[str]:
    """Wait for all results; describe what differs from an undisturbed run."""
    load, stage = made.load, made.stage
    logs = await gather(stage, made.samples, ignore=load.departing)
    return oracle.problems(logs, made.samples, load.departing, stage.settings)


async def leaders(stage: Stage) -> list[int]:
    """The leader of each partition of the log."""
    async with admin_client(client_options(stage.settings.kafka)) as admin:
        (topic,) = await admin.describe_topics([stage.topic("windows")])
    return [each["leader"] for each in sorted(topic["partitions"], key=lambda p: p["partition"])]


async def test_every_broker_is_ended_and_restarted_under_load(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Leaders move away from a broker that is killed or stopped, and back when it has returned."""
    stage = await stage_of(cluster)
    before = await leaders(stage)
    assert {*before} == {1, 2, 3}
    worker = Worker(stage, tmp_path, instance="worker-0")
    async with feed(stage, Load(201, nodes=16, pods=5)) as made:
        worker.start()
        async with made.running():
            await worker.loaded()
            ends = (LocalKafka.kill, LocalKafka.stop, LocalKafka.kill)
            for number, end in enumerate(ends, start=1):
                broker = cluster.brokers[number - 1]
                await asyncio.to_thread(end, broker)
                await wait_for_results(stage)
                await until(lambda number=number: has_moved(stage, number))
                await asyncio.to_thread(broker.start)
                # A broker gets its partitions back once a minute.
                await until(lambda: have_leaders(stage, before), 240)
        assert await problems_of(made) == []
    assert worker.is_running(), worker.tail()
    worker.kill()


async def test_a_worker_that_is_cut_off_from_one_broker_continues_when_it_returns(
    cluster: LocalCluster, proxies: list[Forwarder], tmp_path: Path
) -> None:
    """The brokers see each other and lead on, so the worker's partitions have no other leader."""
    stage = await stage_of(cluster)
    servers = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    worker = Worker(replace(stage, bootstrap=servers), tmp_path, instance="worker-0")
    async with feed(stage, Load(202, nodes=16, pods=5)) as made:
        worker.start()
        async with made.running():
            await worker.loaded()
            for proxy in proxies:
                target = proxy.target
                proxy.cut()
                await asyncio.sleep(3)
                proxy.target = target
                await wait_for_results(stage)
        assert await problems_of(made) == []
    worker.kill()
