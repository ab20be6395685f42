"""A broker that lost the end of its logs: the worker continues at the new ends, and skips nothing.

The broker is killed, and the last records of both logs are cut from its files, as a disk without
its last writes has them.
"""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from pipeline.local.local_kafka import LocalKafka
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.windows import decode_window, sample_offset_of
from tests.processes import until
from tests.system.harness import Feed, Worker, create_stage, feed, gather
from tests.system.load import Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def cut(broker: LocalKafka, topic: str) -> None:
    """Remove the last quarter of the only segment of partition 0."""
    (segment,) = broker.data_dir.rglob(f"{topic}-0/*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size * 3 // 4)


async def test_new_samples_with_the_offsets_of_lost_ones_are_applied(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers, partitions=1)
    load, worker = Load(3, nodes=8, pods=2), Worker(stage, tmp_path)
    worker.start()
    await worker.loaded()
    async with feed(stage, load) as before:
        await before.advance(8)
        await gather(stage, before.samples)  # and a round of checkpoints covers them

    await asyncio.to_thread(broker.kill)
    for topic in ("samples", "windows"):
        cut(broker, stage.topic(topic))
    await asyncio.to_thread(broker.start)
    await until(lambda: not worker.is_running(), 180, worker.tail)
    assert worker.says("were truncated") or worker.says("after offset"), worker.tail()

    async with AIOKafkaProducer(bootstrap_servers=stage.bootstrap, acks="all") as producer:
        after = Feed(stage, load, producer, steps=before.steps)
        await after.advance(2)
        first_new = min(offset for _, offset, _ in after.samples)
        assert first_new < max(offset for _, offset, _ in before.samples)
        worker.start()
        await worker.loaded()
        await after.advance(2)
        logs = await gather(stage, after.samples)
    new = sorted(offset for _, offset, _ in after.samples)
    joined = [sample_offset_of(record.value or b"") for record in logs["windows"][0]]
    assert joined[-len(new) :] == new
    newest: dict[str, int] = defaultdict(int)
    for record in logs["windows"][0]:
        header = decode_window(record.value or b"").header
        newest[header.node] = max(newest[header.node], header.window_end_ms)
    states = [decode_json(NodeStateRecord, record.value or b"") for record in logs["node-state"][0]]
    as_of = {state.node: state.as_of for state in states}
    assert as_of == {node: format_time(end_ms / 1000) for node, end_ms in newest.items()}
    assert all(state.counters.lost > 0 for state in states[-load.nodes :])
    assert worker.stop() == 0
