"""Records of `springtide.resources`, as the model agent would publish them."""

import random
import time

from aiokafka import AIOKafkaProducer

from pipeline.kafka.partition import partition_of
from pipeline.settings import Settings
from pipeline.times import format_time
from pipeline.topics.codec import encode_json
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.registry import RESOURCES
from pipeline.topics.resource_amounts import Resources


class ResourceResults:
    """Publishes other amounts with each record. `last` has the newest amounts of each node, in the
    order of `read_amounts`."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._kafka = settings.kafka
        self._rng = random.Random(seed)
        self._offset = 0
        self.last: dict[str, list[int]] = {}

    async def publish(self, producer: AIOKafkaProducer, name: str) -> None:
        self._offset += 1
        mid, batch = (
            Resources(
                cpu_millicores=self._rng.randrange(100, 100_000),
                memory_bytes=self._rng.randrange(2**20, 2**36),
            )
            for _ in range(2)
        )
        record = NodeResourcesRecord(
            node=name, as_of=format_time(int(time.time())), generation=1, offset=self._offset,
            epoch=1, strategy=Overcommit(), predictor="percentile", mid=mid,
            mid_lower_bound=mid, batch=batch,
        )  # fmt: skip
        await producer.send_and_wait(
            RESOURCES.full_name(self._kafka.topic_prefix),
            key=name.encode(), value=encode_json(record),
            partition=partition_of(name, self._kafka.partitions),
        )  # fmt: skip
        amounts = (
            batch.cpu_millicores, batch.memory_bytes, mid.cpu_millicores, mid.memory_bytes,
        )  # fmt: skip
        self.last[name] = [amount or 0 for amount in amounts]
