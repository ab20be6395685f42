"""The recommendation agent: publish the requests recommended for every workload.

Pods of a workload run on nodes of all partitions, so one worker, the owner of partition 0, adds up
the models in the newest checkpoints of all nodes. It has no state of its own: after a restart or a
rebalance the next owner computes the same from the same checkpoints. One partition at a time is in
memory. A node is loaded from the checkpoint that a worker would start from.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from pipeline.agents.checkpoint_selection import read_checkpoints
from pipeline.agents.consume import Readers
from pipeline.agents.ownership import Ownership
from pipeline.agents.refusals import ignore_records
from pipeline.clock import Clock
from pipeline.errors import CheckpointError
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.recommendation import WorkloadSums
from pipeline.processors.recommendation_records import recommendation_record
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import CHECKPOINTS, RECOMMENDATIONS
from pipeline.topics.workloads import workload_key

log = get_logger(__name__)

PUBLISHING_PARTITION: Final = 0
"""The owner of this partition publishes recommendations."""

RECOMMENDATIONS_PUBLISHED = gauge(
    "worker_recommendations", "Workloads with a recommendation, in the worker of partition 0."
)
LEFT_OUT = gauge(
    "worker_left_out_workloads",
    "Models of workloads without a recommendation, because their namespace has too many.",
)
FAILURES = counter("worker_recommendation_failures", "Publications of recommendations that failed.")


class Places(NamedTuple):
    """Where topics are: their prefix, the number of their partitions, and how to read them."""

    prefix: str
    partitions: int
    open_reader: Readers


class NewestModels(NamedTuple):
    """The sums of all models of workloads. `is_complete` is False if a partition had no complete
    round, or a checkpoint could not be read."""

    sums: WorkloadSums
    is_complete: bool


async def read_models(places: Places) -> NewestModels:
    """Add up the models of workloads in the newest checkpoints of all partitions."""
    sums, is_complete = WorkloadSums(), True
    topic = CHECKPOINTS.full_name(places.prefix)
    partitions = range(places.partitions)
    async with places.open_reader([(topic, partition) for partition in partitions]) as reader:
        for partition in partitions:
            content = await read_checkpoints(reader, topic, partition, 0, ignore_records)
            marker = content.marker()
            if marker is None or content.missing or marker.left_out or content.reset_nodes():
                is_complete = False
            for node, checkpoints in content.usable().items():
                if not _add(sums, node, [checkpoint.state for checkpoint in checkpoints]):
                    is_complete = False
                # Other tasks of the worker must not wait for a whole partition.
                await asyncio.sleep(0)
            for (node, _), state in content.departed.items():
                # A state of another release, which nobody can read, withdraws nothing.
                _add(sums, node, [state])
                await asyncio.sleep(0)
    return NewestModels(sums, is_complete)


def _add(sums: WorkloadSums, node: str, states: Iterable[bytes]) -> bool:
    """Add a node from its first intact state; return whether there is one."""
    for state in states:
        try:
            sums.add(node, state)
        except CheckpointError as error:
            log.warning("no recommendation counts this checkpoint", node=node, error=error.message)
        else:
            return True
    return False


class Recommendations:
    """Publishes what changed. `_published` are the newest values in the topic by partition and key:
    keys of others may be any bytes, in any partition."""

    def __init__(self, places: Places, output: Producer, ownership: Ownership) -> None:
        self._places = places
        self._output = output
        self._ownership = ownership
        self._topic = RECOMMENDATIONS.full_name(places.prefix)
        self._published: dict[tuple[int, bytes], bytes] | None = None

    async def publish(self) -> None:
        """Publish recommendations that changed, and tombstones of workloads without models.

        A workload that is missing because models could not be read keeps its recommendation.
        """
        if self._published is None:
            self._published = await read_recommendations(self._places)
        sums, is_complete = await read_models(self._places)
        newest = {}
        for number, recommendation in enumerate(sums.recommendations()):
            workload = recommendation.workload
            partition = partition_of(workload.namespace, self._places.partitions)
            newest[partition, workload_key(*workload)] = encode_json(
                recommendation_record(recommendation)
            )
            if number % 1000 == 0:
                await asyncio.sleep(0)
        RECOMMENDATIONS_PUBLISHED.set(len(newest))
        LEFT_OUT.set(sums.left_out)
        changed: dict[tuple[int, bytes], bytes | None] = {
            place: value for place, value in newest.items() if self._published.get(place) != value
        }
        if is_complete:
            changed |= dict.fromkeys(self._published.keys() - newest.keys())
        by_partition = defaultdict(list)
        for partition, key in sorted(changed):
            by_partition[partition].append(Keyed(key, changed[partition, key]))
        for partition, records in by_partition.items():
            if self._ownership.owned:
                await self._output.append(self._topic, partition, records)
        self._published = newest if is_complete else self._published | newest


async def read_recommendations(
    places: Places, is_wanted: Callable[[int], bool] | None = None
) -> dict[tuple[int, bytes], bytes]:
    """The newest values by partition and key; of wanted partitions, by default of all."""
    topic = RECOMMENDATIONS.full_name(places.prefix)
    values: dict[tuple[int, bytes], bytes] = {}
    partitions = [each for each in range(places.partitions) if is_wanted is None or is_wanted(each)]
    async with places.open_reader([(topic, partition) for partition in partitions]) as reader:
        for partition in partitions:
            first, end = await reader.bounds(topic, partition)
            async for records in reader.read(topic, partition, first, end):
                for record in records:
                    place = (partition, record.key or b"")
                    if record.value is None:
                        values.pop(place, None)
                    else:
                        values[place] = record.value
    return values


async def publish_recommendations(
    recommendations: Recommendations, interval_seconds: float, clock: Clock
) -> None:
    """Publish recommendations once per interval, until cancelled. A failure of any kind waits for
    the next interval: it must not stop the models of the worker."""
    while True:
        await clock.sleep(interval_seconds)
        began = clock.monotonic()
        try:
            await recommendations.publish()
        except Exception as error:
            FAILURES.inc()
            log.warning("recommendations were not published", error=repr(error))
        else:
            log.info("recommendations published", seconds=round(clock.monotonic() - began, 1))
