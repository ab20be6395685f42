"""The partitions of one worker: loaded when they are assigned, released when they are revoked.

A worker that is assigned a partition of `samples` owns the same partition of every other topic.
While it owns partitions, tasks write checkpoints and node views, follow nodes and pods, and look
for silent nodes.
"""

import asyncio
import os
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from aiokafka import TopicPartition

from pipeline.agents.bank_settings import model_config
from pipeline.agents.checkpoint_rounds import Rounds
from pipeline.agents.cluster_state import InventoryTopics, follow
from pipeline.agents.consume import consume
from pipeline.agents.consumer_group import ConsumerGroup, RecordSource
from pipeline.agents.join_agent import JoinCursor, JoinRules, refuse
from pipeline.agents.koordlet_metrics import watch
from pipeline.agents.learn_windows import LAST_END
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.partition_models import ModelRules
from pipeline.agents.recovery import Recovery
from pipeline.agents.shard import Shard
from pipeline.agents.silent_nodes import depart_silent
from pipeline.agents.view_agent import Views
from pipeline.agents.window_handover import BEHIND, Handover, feed_models, look_for_others
from pipeline.clock import Clock
from pipeline.errors import RecordError, StateError
from pipeline.kafka.client import client_options
from pipeline.kafka.partition_log import LogRecord, open_reader
from pipeline.kafka.producer import Output, open_output
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings
from pipeline.sources.object_files import run_file_source
from pipeline.tasks import cancel_tasks
from pipeline.topics.registry import CHECKPOINTS, NODE_VIEWS, SAMPLES, WINDOWS

log = get_logger(__name__)

PARTITIONS = gauge("worker_partitions", "Partitions in this worker's hands.")
NODES = gauge("worker_nodes", "Nodes with models in this worker.")

_SHUTDOWN_SECONDS = 10.0
# Two file sources would remove each other's records: the owner of this partition runs it.
_FILE_SOURCE_PARTITION = 0


class PartitionHolder:
    """The partitions that this worker owns; a `GroupMember`."""

    def __init__(self, group: ConsumerGroup, settings: Settings, clock: Clock) -> None:
        self._group = group
        self._settings = settings
        self._clock = clock
        self._client = client_options(settings.kafka)
        self._resources = AsyncExitStack()
        self._recovery: Recovery | None = None
        self._handover = Handover(settings.worker.batch_size)
        self._feeding: asyncio.Task[None] | None = None
        self._shards: dict[int, Shard] = {}
        self._released: dict[int, Shard] = {}
        self._loading: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: list[asyncio.Task[None]] = []
        self._views: dict[int, Views] = {}
        self.joins: dict[int, JoinCursor] = {}
        self.models: dict[int, ModelCursor] = {}
        PARTITIONS.set_function(lambda: len(self._shards))
        NODES.set_function(lambda: sum(m.bank.num_nodes for m in list(self.models.values())))
        watch(lambda: [model.profile for model in list(self.models.values())])

    async def revoked(self) -> None:
        """Release all partitions; the next assignment names those that stay."""
        if self._loading is not None:
            self._loading.cancel()
            # What it loaded in vain must be put back before the next one begins.
            self._ending.append(self._loading)
            self._loading = None
        for task in self._tasks:
            task.cancel()
        self._ending += self._tasks
        self._tasks.clear()
        for shard in self._shards.values():
            shard.ownership.owned = False
        self._released |= self._shards
        for held in (self._shards, self.joins, self.models):
            held.clear()
        LAST_END.clear()
        BEHIND.clear()
        await self._handover.wake()

    async def assigned(self, partitions: AbstractSet[int]) -> None:
        """Load the assigned partitions."""
        generation = self._group.generation
        loading = self._loading = asyncio.create_task(self._load(partitions, generation))
        try:
            await loading
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            if self._loading is loading:
                # Only `revoked` may cancel it: the worker would go on without any partition.
                raise StateError(f"loading partitions {sorted(partitions)} was cut off") from error
            # A rebalance interrupted it and calls `assigned` again. The partition that was being
            # loaded is dropped.
            log.info("loading interrupted by a rebalance", partitions=sorted(partitions))

    async def shut_down(self) -> None:
        """Release all partitions, wait for results in progress, and close the producer."""
        await self.revoked()
        try:
            await asyncio.wait_for(self._idle(), _SHUTDOWN_SECONDS)
        except TimeoutError:
            log.error("not all that was in hand is delivered; the log has it, and recovery will "
                      "publish it", seconds=_SHUTDOWN_SECONDS)  # fmt: skip
        finally:
            feeding, self._feeding = self._feeding, None
            if feeding is not None:
                await cancel_tasks(feeding)
            await asyncio.wait_for(self._resources.aclose(), _SHUTDOWN_SECONDS)

    async def consume(self, source: RecordSource) -> None:
        """Join the samples of `source`."""
        samples = SAMPLES.full_name(self._settings.kafka.topic_prefix)
        reader = partial(open_reader, self._client)
        batch_size = self._settings.worker.batch_size
        await consume(source, samples, self.joins, reader, batch_size=batch_size)

    async def _idle(self) -> None:
        """Return when nothing of the partitions let go runs or is on its way any more."""
        await cancel_tasks(*self._ending)
        self._ending.clear()
        for shard in self._released.values():
            await shard.join.idle()
            await shard.model.idle()

    async def _load(self, partitions: AbstractSet[int], generation: int) -> None:
        # What they still have on the way must be in the logs before these are read.
        await self._idle()
        recovery = await self._prepare()
        for partition in self._released.keys() - partitions:
            self._released.pop(partition).model.bank.clear()
        loaded: dict[int, tuple[Shard, list[bytes]]] = {}
        try:
            async with aclosing(recovery.load_all(partitions, self._released)) as loading:
                async for shard, stale in loading:
                    loaded[shard.ownership.partition] = shard, stale
        except BaseException:
            self._keep_for_next(loaded)
            raise
        # aiokafka swallows cancellations while it closes: ask who we are, not whether we live.
        revoked = self._loading is not asyncio.current_task()
        if revoked or generation != self._group.generation:
            log.info("loaded for a generation that has passed", generation=generation)
            self._keep_for_next(loaded)
            return
        for partition, (shard, _) in loaded.items():
            self._shards[partition] = shard
            self.joins[partition] = shard.join
            self.models[partition] = shard.model
        self._start_tasks(recovery, loaded)

    def _keep_for_next(self, loaded: dict[int, tuple[Shard, list[bytes]]]) -> None:
        """What was loaded in vain has only to be caught up if it comes back with the next turn."""
        for partition, (shard, _) in loaded.items():
            shard.ownership.owned = False
            self._released[partition] = shard

    async def _prepare(self) -> Recovery:
        if self._recovery is None:
            kafka, model = self._settings.kafka, self._settings.model
            output = await self._resources.enter_async_context(open_output(self._client))
            config = model_config(self._settings)
            reader = partial(open_reader, self._client)
            windows = WINDOWS.full_name(kafka.topic_prefix)
            self._feeding = self._watched(feed_models(self._handover, windows, reader))
            self._recovery = Recovery(
                member=f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
                group=self._settings.worker.id,
                output=output,
                open_reader=reader,
                inventory=InventoryTopics(kafka.topic_prefix, partial(_refuse, output, kafka)),
                join_rules=JoinRules(
                    prefix=kafka.topic_prefix,
                    partitions=kafka.partitions,
                    future_tolerance_seconds=self._settings.worker.future_tolerance_seconds,
                    strategy=config.strategy,
                ),
                model_rules=ModelRules(
                    prefix=kafka.topic_prefix,
                    statistic=model.training_statistic,
                    memory_policy=model.memory_collect_policy,
                    node_metrics=self._settings.worker.node_metrics,
                ),
                bank=Bank(config),
                handover=self._handover,
                clock=self._clock,
            )
        return self._recovery

    # -- what runs while partitions are held

    def _start_tasks(
        self, recovery: Recovery, loaded: dict[int, tuple[Shard, list[bytes]]]
    ) -> None:
        topic = CHECKPOINTS.full_name(self._settings.kafka.topic_prefix)
        worker = self._settings.worker
        interval = worker.checkpoint_interval_seconds
        for place, (shard, stale) in enumerate(loaded.values(), start=1):
            rounds = Rounds(shard, recovery.output, topic, stale, self._clock)
            self._run(rounds.run(interval, interval * place / len(loaded)))
            for node in sorted(shard.join.inventory.departed.keys() & set(shard.model.bank.nodes)):
                self._run(shard.join.depart(node, round(self._clock.now() * 1000)))
        if loaded:
            views = NODE_VIEWS.full_name(self._settings.kafka.topic_prefix)
            self._views = {
                partition: Views(shard, recovery.output, views, self._clock)
                for partition, (shard, _) in loaded.items()
            }
            for of_shard in self._views.values():
                self._run(of_shard.run())
            self._run(self._follow_inventory(recovery))
            self._run(self._look_for_others([shard.model for shard, _ in loaded.values()]))
            shards = [shard for shard, _ in loaded.values()]
            ends = partial(self._ends_of_samples, [s.ownership.partition for s in shards])
            self._run(depart_silent(shards, worker.node_expiration_seconds, ends, self._clock))
        files = (worker.nodes_file, worker.pods_file)
        if _FILE_SOURCE_PARTITION in loaded and any(files):
            self._run(run_file_source(self._settings, *files, clock=self._clock, patient=True))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run until the partitions are let go; a failure ends the worker."""
        self._tasks.append(self._watched(coroutine))

    def _watched(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._end_on_failure)
        return task

    def _end_on_failure(self, task: "asyncio.Task[None]") -> None:
        error: BaseException | None
        if not task.cancelled():
            error = task.exception()
        elif task is self._feeding or task in self._tasks:
            # By a client that let a cancellation of its own escape: nobody asked for it.
            error = StateError("a background task was cut off")
        else:
            error = None
        if error is not None:
            log.error("background task failed", error=repr(error))
            self._group.crash(error)

    async def _look_for_others(self, models: Sequence[ModelCursor]) -> None:
        topic = WINDOWS.full_name(self._settings.kafka.topic_prefix)
        places = [(topic, model.ownership.partition) for model in models]
        async with open_reader(self._client, places) as reader:
            await look_for_others(self._handover, models, partial(reader.ends, topic), self._clock)

    async def _ends_of_samples(self, partitions: Sequence[int]) -> Mapping[int, int]:
        topic = SAMPLES.full_name(self._settings.kafka.topic_prefix)
        async with open_reader(self._client, [(topic, at) for at in partitions]) as reader:
            return await reader.ends(topic, partitions)

    async def _follow_inventory(self, recovery: Recovery) -> None:
        shards = dict(self._shards)
        starts = {
            TopicPartition(topic, partition): offset
            for partition, shard in shards.items()
            for topic, offset in shard.inventory_ends.items()
        }
        async for topic, record in follow(self._client, starts):
            shard = shards[record.partition]
            deleted = await recovery.inventory.apply(shard.join.inventory, topic, record)
            self._views[record.partition].touch(topic, record.key)
            shard.inventory_ends[topic] = record.offset + 1
            if deleted is not None:
                await shard.join.depart(deleted, record.appended_ms)


async def _refuse(
    output: Output, kafka: Any, topic: str, record: LogRecord, error: RecordError
) -> None:
    await refuse(output, kafka.topic_prefix, topic, record, error)
