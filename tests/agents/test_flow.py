"""What we took over from Faust's consumer is still what it is there: a pause and a long wait."""

from pathlib import Path
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP

from pipeline.agents.flow import WaitingConsumer
from pipeline.agents.worker import create_app
from pipeline.clock import ManualClock
from pipeline.settings import Settings

PARTITION = TP("springtide.windows", 3)


async def ignore(*_: Any) -> None:
    """A callback."""


@pytest.fixture
def consumer(tmp_path: Path) -> WaitingConsumer:
    app = create_app(Settings(), ManualClock(), tmp_path)
    made = app.transport.create_consumer(
        ignore, on_partitions_revoked=ignore, on_partitions_assigned=ignore
    )
    assert isinstance(made, WaitingConsumer)
    made._set_active_tps({PARTITION})
    return made


async def test_a_full_queue_pauses_no_partition(consumer: WaitingConsumer) -> None:
    consumer.on_buffer_full(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}
    Consumer.on_buffer_full(consumer, PARTITION)
    assert consumer._get_active_partitions() == set()
    Consumer.on_buffer_drop(consumer, PARTITION)
    consumer.on_buffer_drop(PARTITION)
    assert consumer._get_active_partitions() == {PARTITION}


@pytest.mark.filterwarnings("ignore:Setting .* is deprecated")
async def test_a_fetch_waits_in_the_broker_for_a_tenth_of_a_second(
    consumer: WaitingConsumer,
) -> None:
    ours = consumer._new_consumer_thread()
    theirs = AIOKafkaConsumerThread(consumer, loop=consumer.loop, beacon=consumer.beacon)
    clients = [each._create_worker_consumer(consumer.transport) for each in (ours, theirs)]
    try:
        assert [client._fetch_max_wait_ms for client in clients] == [100, 1500]
    finally:
        for client in clients:
            await client.stop()
