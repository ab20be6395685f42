"""The recommendation agent: publish the requests recommended for every workload, and for pods that
come to other nodes what its pods used.

Pods of a workload run on nodes of all partitions, so one worker, the owner of partition 0, adds up
the models in the newest checkpoints of all nodes. It has no state of its own: after a restart or a
rebalance the next owner computes the same from the same checkpoints. One partition at a time is in
memory. A node is loaded from the checkpoint that a worker would start from.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.agents.checkpoint_selection import read_checkpoints
from pipeline.agents.consume import Readers
from pipeline.agents.fleet_topic import FLEET_PARTITION
from pipeline.agents.ownership import Ownership
from pipeline.agents.refusals import ignore_records
from pipeline.clock import Clock
from pipeline.errors import CheckpointError, SpringtideError
from pipeline.kafka.partition import partition_of
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, gauge
from pipeline.processors.calibrated.history_fold import WorkloadHistories, due_histories
from pipeline.processors.recommendation import WorkloadSums
from pipeline.processors.recommendation_records import recommendation_record
from pipeline.topics.codec import encode_json
from pipeline.topics.registry import CHECKPOINTS, FLEET, RECOMMENDATIONS
from pipeline.topics.workload_histories import WorkloadHistoryRecord, history_key
from pipeline.topics.workloads import Workload, workload_key

log = get_logger(__name__)

PUBLISHING_PARTITION: Final = 0
"""The owner of this partition publishes recommendations."""
FIRST_SECONDS: Final = 60.0
"""From the assignment to the first publication. Rebalances within an interval must not prevent all
publications, and some in a row not cause one each."""

_RECORDS_AT_ONCE: Final = 500

RECOMMENDATIONS_PUBLISHED = gauge(
    "worker_recommendations", "Workloads with a recommendation, in the worker of partition 0."
)
LEFT_OUT = gauge(
    "worker_left_out_workloads",
    "Models of workloads without a recommendation, because their namespace has too many.",
)
HISTORIES_PUBLISHED = counter(
    "worker_workload_histories",
    "Histories of workloads published or withdrawn, by the worker of partition 0.",
)
FAILURES = counter(
    "worker_recommendation_failures",
    "Publications of recommendations, or then of histories of workloads, that failed.",
)


class Places(NamedTuple):
    """Where topics are: their prefix, the number of their partitions, and how to read them."""

    prefix: str
    partitions: int
    open_reader: Readers


class NewestModels(NamedTuple):
    """The sums of all models of workloads, and the histories of their pods. `is_complete` is False
    if a partition had no complete round, or a checkpoint could not be read."""

    sums: WorkloadSums
    histories: WorkloadHistories
    is_complete: bool


async def read_models(places: Places) -> NewestModels:
    """Add up the models of workloads in the newest checkpoints of all partitions."""
    sums, histories, is_complete = WorkloadSums(), WorkloadHistories(), True
    topic = CHECKPOINTS.full_name(places.prefix)
    partitions = range(places.partitions)
    async with places.open_reader([(topic, partition) for partition in partitions]) as reader:
        for partition in partitions:
            content = await read_checkpoints(reader, topic, partition, 0, ignore_records)
            marker = content.marker()
            if marker is None or content.missing or marker.left_out or content.reset_nodes():
                is_complete = False
            for node, checkpoints in content.usable().items():
                states = [checkpoint.state for checkpoint in checkpoints]
                if not _add(sums, histories, node, states):
                    is_complete = False
                # Other tasks of the worker must not wait for a whole partition.
                await asyncio.sleep(0)
            for (node, _), state in content.departed.items():
                # A state of another release, which nobody can read, withdraws nothing.
                _add(sums, histories, node, [state])
                await asyncio.sleep(0)
    return NewestModels(sums, histories, is_complete)


def _add(
    sums: WorkloadSums, histories: WorkloadHistories, node: str, states: Iterable[bytes]
) -> bool:
    """Add a node from its first intact state; return whether there is one."""
    for state in states:
        try:
            sums.add(node, state)
        except CheckpointError as error:
            log.warning("no recommendation counts this checkpoint", node=node, error=error.message)
            continue
        try:
            histories.add(node, state)
        except CheckpointError as error:
            log.warning("no history counts this checkpoint", node=node, error=error.message)
        return True
    return False


async def publish_from_checkpoints(
    places: Places,
    output: Producer,
    ownership: Ownership,
    known_histories: Mapping[Workload, WorkloadHistoryRecord],
) -> None:
    """Publish recommendations, and what is due of histories where `known_histories` are published.
    A restart finds both on their topics."""
    models = await read_models(places)
    await _publish_recommendations(places, models, output, ownership)
    # Of all workloads of a fleet this takes a second.
    changed = await asyncio.to_thread(due_histories, dict(known_histories), models.histories)
    topic, records = FLEET.full_name(places.prefix), [*changed.items()]
    for first in range(0, len(records), _RECORDS_AT_ONCE):
        if not ownership.owned:
            return
        some = [
            Keyed(history_key(workload), None if record is None else encode_json(record))
            for workload, record in records[first : first + _RECORDS_AT_ONCE]
        ]
        await output.append(topic, FLEET_PARTITION, some)
        HISTORIES_PUBLISHED.inc(len(some))


async def _publish_recommendations(
    places: Places, models: NewestModels, output: Producer, ownership: Ownership
) -> None:
    """Publish recommendations that changed, and tombstones of workloads without models.

    A workload that is missing because models could not be read keeps its recommendation. Foreign
    records are removed: their keys may be any bytes, in any partition.
    """
    published = await read_recommendations(places)
    sums = models.sums
    newest = {}
    for number, recommendation in enumerate(sums.recommendations()):
        workload = recommendation.workload
        place = partition_of(workload.namespace, places.partitions), workload_key(*workload)
        newest[place] = encode_json(recommendation_record(recommendation))
        if number % 1000 == 0:
            await asyncio.sleep(0)
    RECOMMENDATIONS_PUBLISHED.set(len(newest))
    LEFT_OUT.set(sums.left_out)
    changed: dict[tuple[int, bytes], bytes | None] = {
        place: value for place, value in newest.items() if published.get(place) != value
    }
    if models.is_complete:
        changed |= dict.fromkeys(published.keys() - newest.keys())
    by_partition = defaultdict(list)
    for partition, key in sorted(changed):
        by_partition[partition].append(Keyed(key, changed[partition, key]))
    topic = RECOMMENDATIONS.full_name(places.prefix)
    for partition, records in by_partition.items():
        if ownership.owned:
            await output.append(topic, partition, records)


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


async def publish_repeatedly(
    publish: Callable[[], Awaitable[None]], interval_seconds: float, clock: Clock
) -> None:
    """Publish soon, and then once per interval, until cancelled.

    A failure of any kind waits for the next interval: it must not stop the models of the worker.
    """
    pause_seconds = min(interval_seconds, FIRST_SECONDS)
    while True:
        await clock.sleep(pause_seconds)
        pause_seconds, began = interval_seconds, clock.monotonic()
        try:
            await publish()
        except Exception as error:
            FAILURES.inc()
            # Errors of Kafka have a hint, others may have no text.
            reason = str(error) if isinstance(error, SpringtideError) else repr(error)
            log.warning("not all recommendations and histories were published", error=reason)
        else:
            log.info("recommendations published", seconds=round(clock.monotonic() - began, 1))
