"""The partitions of one worker: loaded when they are assigned, released when they are revoked.

A worker that is assigned a partition of `samples` owns the same partition of every other topic.
While it owns partitions, tasks write checkpoints and node views, follow nodes and pods, and look
for silent nodes. The shard of a revoked partition stays in memory until the next assignment: most
rebalances give a worker its partitions back, and such a shard only catches up with the log.
"""

import asyncio
import os
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, aclosing
from functools import partial
from itertools import product
from typing import Any

from pipeline.agents.apply_windows import LAST_END
from pipeline.agents.bank_settings import declared_risks, model_config
from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.cluster_state import ClusterStateTopics, follow
from pipeline.agents.consume import consume
from pipeline.agents.consumer_group import ConsumerGroup, RecordSource
from pipeline.agents.fleet_topic import FLEET_PARTITION, FleetTopic
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.koordlet_metrics import serve
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.partition_models import ModelRules
from pipeline.agents.recommendation_agent import (
    PUBLISHING_PARTITION,
    Places,
    publish_from_checkpoints,
    publish_repeatedly,
)
from pipeline.agents.recovery import Recovery
from pipeline.agents.refusals import refuse_records
from pipeline.agents.shard import Shard
from pipeline.agents.silent_nodes import expire_deleted_nodes, expire_silent_nodes
from pipeline.agents.truncated_logs import watch_ends
from pipeline.agents.view_agent import NodeViews, write_views
from pipeline.agents.window_handover import BEHIND, WindowHandover, feed_models, watch_log_ends
from pipeline.clock import Clock
from pipeline.errors import StateError
from pipeline.kafka.client import client_options
from pipeline.kafka.follow import TopicPartition
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import log_producer
from pipeline.logs import get_logger
from pipeline.metrics import gauge
from pipeline.processors.model.bank import Bank
from pipeline.settings import Settings
from pipeline.sources.object_files import run_file_source
from pipeline.tasks import cancel_tasks
from pipeline.topics.alerts import RULES, SEVERITIES
from pipeline.topics.registry import CHECKPOINTS, NODE_VIEWS, SAMPLES, WINDOWS

log = get_logger(__name__)

PARTITIONS = gauge("worker_partitions", "Partitions that this worker owns.")
OPEN_ALERTS = gauge(
    "worker_open_alerts", "Open alerts of hot nodes of this worker.", ["rule", "severity"]
)
NODES = gauge("worker_nodes", "Nodes with models in this worker.")
WORKLOADS = gauge("worker_workloads", "Models of workloads, one per node and workload.")
DECLARED_RISK = gauge(
    "worker_declared_risk_ratio",
    "Share of peaks of Prod that usage may exceed, as a predictor with this option declares.",
    ["predictor"],
)
DROPPED = gauge(
    "worker_dropped_workloads",
    "Models of workloads without pods, and of containers, that were dropped because their node had "
    "too many.",
)

_SHUTDOWN_SECONDS = 10.0
# Two file sources would remove each other's records: only the owner of this partition runs one.
_FILE_SOURCE_PARTITION = 0


class PartitionHolder:
    """The partitions that this worker owns; a `GroupMember`."""

    def __init__(self, group: ConsumerGroup, settings: Settings, clock: Clock) -> None:
        self._group = group
        self._settings = settings
        self._clock = clock
        self._client = client_options(settings.kafka)
        self._resources = AsyncExitStack()
        self.recovery: Recovery | None = None
        self._bank: Bank | None = None
        self._handover = WindowHandover(settings.worker.batch_size)
        self._feeding: asyncio.Task[None] | None = None
        self.shards: dict[int, Shard] = {}
        self.released: dict[int, Shard] = {}
        self._loading: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._ending: list[asyncio.Task[None]] = []
        self._views: dict[int, NodeViews] = {}
        # Another thread serves the metrics page: copy before iterating.
        PARTITIONS.set_function(lambda: len(self.shards))
        NODES.set_function(
            lambda: sum(len(s.model.bank.node_models) for s in list(self.shards.values()))
        )
        WORKLOADS.set_function(lambda: 0 if self._bank is None else len(self._bank.workloads))
        DROPPED.set_function(lambda: 0 if self._bank is None else self._bank.dropped_workloads)
        for predictor, risk in declared_risks(model_config(settings)).items():
            DECLARED_RISK.labels(predictor).set(risk)
        for (rule, name), (level, severity) in product(
            enumerate(RULES), enumerate(SEVERITIES, start=1)
        ):
            OPEN_ALERTS.labels(name, severity).set_function(partial(self._open_alerts, rule, level))
        serve(
            lambda: [shard.model.prod_amounts for shard in list(self.shards.values())],
            settings.worker.node_metrics,
        )

    def _open_alerts(self, rule: int, level: int) -> int:
        return 0 if self._bank is None else self._bank.open_alerts(rule, level)

    def trouble(self) -> str:
        """Why results of this worker are late: it waits for partitions, or loads them. Empty if it
        has caught up with the log of all its partitions."""
        loading = self._loading
        if loading is None:
            return "waiting for partitions"
        return "" if loading.done() else "loading partitions"

    def positions(self) -> Mapping[int, int]:
        """Return the position of each join, by partition."""
        return {partition: shard.join.next_offset for partition, shard in self.shards.items()}

    async def revoked(self) -> None:
        """Release all partitions; the next assignment names those that stay."""
        if self._loading is not None:
            self._loading.cancel()
            # It must have released its shards before the next load starts.
            self._ending.append(self._loading)
            self._loading = None
        for task in self.tasks:
            task.cancel()
        self._ending += self.tasks
        self.tasks.clear()
        self._release(self.shards)
        self.shards.clear()
        LAST_END.clear()
        BEHIND.clear()
        await self._handover.wake()

    async def assigned(self, partitions: AbstractSet[int]) -> None:
        """Load the assigned partitions."""
        generation = self._group.generation
        loading = self._loading = asyncio.create_task(self.load(partitions, generation))
        try:
            await loading
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            if self._loading is loading:
                # Only `revoked` may cancel it: the worker would go on without any partition.
                raise StateError(
                    f"loading of partitions {sorted(partitions)} was cancelled without a request"
                ) from error
            # A rebalance interrupted it and calls `assigned` again. The partition that was being
            # loaded is dropped.
            log.info("loading interrupted by a rebalance", partitions=sorted(partitions))

    async def shut_down(self) -> None:
        """Release all partitions, wait for results in progress, and close the producer."""
        await self.revoked()
        try:
            await asyncio.wait_for(self._idle(), _SHUTDOWN_SECONDS)
        except TimeoutError:
            log.error("results were not delivered in time, recovery will publish them",
                      seconds=_SHUTDOWN_SECONDS)  # fmt: skip
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
        await consume(source, samples, self._join_of, reader, batch_size=batch_size)

    def _join_of(self, partition: int) -> JoinCursor | None:
        shard = self.shards.get(partition)
        return None if shard is None else shard.join

    async def _idle(self) -> None:
        """Wait until no task or write of released partitions is in progress."""
        await cancel_tasks(*self._ending)
        self._ending.clear()
        for shard in self.released.values():
            await shard.join.idle()
            await shard.model.idle()

    async def load(self, partitions: AbstractSet[int], generation: int) -> None:
        """Load `partitions` for this generation of the group, and start their tasks."""
        # Writes of released partitions must be in the logs before these are read.
        await self._idle()
        recovery = await self._prepare()
        for partition in self.released.keys() - partitions:
            self.released.pop(partition).model.bank.clear()
        loaded: dict[int, Shard] = {}
        try:
            async with aclosing(recovery.load_all(partitions, self.released)) as loading:
                async for shard in loading:
                    loaded[shard.ownership.partition] = shard
        except BaseException:
            self._release(loaded)
            raise
        # aiokafka swallows cancellations while it closes, so check whether this task is current.
        revoked = self._loading is not asyncio.current_task()
        if revoked or generation != self._group.generation:
            log.info("loaded for an old generation", generation=generation)
            self._release(loaded)
            return
        self.shards |= loaded
        self.start_tasks(recovery, loaded)

    def _release(self, shards: Mapping[int, Shard]) -> None:
        """Give up these partitions; the next load reuses the shards that are assigned again."""
        for shard in shards.values():
            shard.ownership.owned = False
        self.released |= shards

    async def _prepare(self) -> Recovery:
        if self.recovery is None:
            kafka, model = self._settings.kafka, self._settings.model
            output = await self._resources.enter_async_context(log_producer(self._client))
            config = model_config(self._settings)
            self._bank = Bank(config)
            reader = partial(open_reader, self._client)
            windows = WINDOWS.full_name(kafka.topic_prefix)
            refuse = partial(refuse_records, output, kafka.topic_prefix)
            self._feeding = self._watched(feed_models(self._handover, windows, reader))
            self.recovery = Recovery(
                member=f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
                group=self._settings.worker_group,
                output=output,
                open_reader=reader,
                cluster_state_topics=ClusterStateTopics(kafka.topic_prefix, refuse),
                fleet=FleetTopic(
                    kafka.topic_prefix, refuse, self._settings.worker.future_tolerance_seconds
                ),
                join_rules=JoinRules(
                    prefix=kafka.topic_prefix,
                    partitions=kafka.partitions,
                    future_tolerance_seconds=self._settings.worker.future_tolerance_seconds,
                    strategy=config.strategy,
                ),
                model_rules=ModelRules(
                    prefix=kafka.topic_prefix,
                    statistic=model.training_statistic,
                    node_metrics=self._settings.worker.node_metrics > 0,
                ),
                bank=self._bank,
                handover=self._handover,
                clock=self._clock,
            )
        return self.recovery

    # -- tasks of owned partitions

    def start_tasks(self, recovery: Recovery, loaded: Mapping[int, Shard]) -> None:
        """Start the background tasks of partitions that were just loaded."""
        topic = CHECKPOINTS.full_name(self._settings.kafka.topic_prefix)
        worker, shards = self._settings.worker, list(loaded.values())
        interval = worker.checkpoint_interval_seconds
        for number, shard in enumerate(shards, start=1):
            rounds = CheckpointRounds(shard, recovery.output, topic, self._clock)
            self.run_task(rounds.run(interval, interval * number / len(shards)))
            present = set(shard.model.bank.nodes) - shard.model.retracted.keys()
            for node in sorted(shard.join.cluster_state.deleted_nodes.keys() & present):
                self.run_task(shard.join.retract(node, shard.model.bank.appended_ms(node) or 0))
        if shards:
            views = NODE_VIEWS.full_name(self._settings.kafka.topic_prefix)
            self._views = {
                partition: NodeViews(shard, recovery.output, views, self._clock)
                for partition, shard in loaded.items()
            }
            self.run_task(write_views(self._views.values(), self._clock))
            self.run_task(self._follow_cluster_state(recovery))
            self.run_task(self._watch_log_ends([shard.model for shard in shards]))
            self.run_task(self._watch_truncation(recovery, shards))
            self.run_task(expire_deleted_nodes(shards, self._clock))
            ends = partial(self._ends_of_samples, list(loaded))
            self.run_task(
                expire_silent_nodes(shards, worker.node_expiration_seconds, ends, self._clock)
            )
        if PUBLISHING_PARTITION in loaded:
            kafka = self._settings.kafka
            places = Places(
                kafka.topic_prefix, kafka.partitions, partial(open_reader, self._client)
            )
            ownership = loaded[PUBLISHING_PARTITION].ownership
            publish = partial(
                publish_from_checkpoints,
                places, recovery.output, ownership, recovery.fleet.histories,
            )  # fmt: skip
            self.run_task(
                publish_repeatedly(publish, worker.recommendation_interval_seconds, self._clock)
            )
        files = (worker.nodes_file, worker.pods_file)
        if _FILE_SOURCE_PARTITION in loaded and any(files):
            self.run_task(
                run_file_source(self._settings, *files, clock=self._clock, wait_for_files=True)
            )

    def run_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run until the partitions are revoked; a failure stops the worker."""
        self.tasks.append(self._watched(coroutine))

    def _watched(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._crash_on_failure)
        return task

    def _crash_on_failure(self, task: "asyncio.Task[None]") -> None:
        error: BaseException | None
        if not task.cancelled():
            error = task.exception()
        elif task is self._feeding or task in self.tasks:
            # A client raised the cancellation of its own tasks.
            error = StateError("a background task was cancelled without a request")
        else:
            error = None
        if error is not None:
            log.error("background task failed", error=repr(error))
            # The columns of all partitions are shared: none of them may be saved any more.
            for shard in self.shards.values():
                shard.ownership.owned = False
            self._group.crash(error)

    async def _watch_log_ends(self, models: Sequence[ModelCursor]) -> None:
        topic = WINDOWS.full_name(self._settings.kafka.topic_prefix)
        partitions = [(topic, model.ownership.partition) for model in models]
        async with open_reader(self._client, partitions) as reader:
            await watch_log_ends(self._handover, models, partial(reader.ends, topic), self._clock)

    async def _watch_truncation(self, recovery: Recovery, shards: Sequence[Shard]) -> None:
        prefix = self._settings.kafka.topic_prefix
        samples, windows = SAMPLES.full_name(prefix), WINDOWS.full_name(prefix)
        partitions = [shard.ownership.partition for shard in shards]
        assigned = [(topic, each) for topic in (samples, windows) for each in partitions]
        async with open_reader(self._client, assigned) as reader:

            async def read_ends() -> tuple[Mapping[int, int], Mapping[int, int]]:
                return await reader.ends(samples, partitions), await reader.ends(
                    windows, partitions
                )

            await watch_ends(shards, read_ends, recovery.save, self._clock)

    async def _ends_of_samples(self, partitions: Sequence[int]) -> Mapping[int, int]:
        topic = SAMPLES.full_name(self._settings.kafka.topic_prefix)
        async with open_reader(
            self._client, [(topic, partition) for partition in partitions]
        ) as reader:
            return await reader.ends(topic, partitions)

    async def _follow_cluster_state(self, recovery: Recovery) -> None:
        shards, fleet = dict(self.shards), recovery.fleet
        starts = {TopicPartition(fleet.name, FLEET_PARTITION): fleet.next_offset} | {
            TopicPartition(topic, partition): offset
            for partition, shard in shards.items()
            for topic, offset in shard.cluster_state_ends.items()
        }
        async for topic, record in follow(self._client, starts):
            if topic == fleet.name:
                await fleet.apply(record)
                continue
            shard = shards[record.partition]
            state = shard.join.cluster_state
            deleted = await recovery.cluster_state_topics.apply(state, topic, record)
            self._views[record.partition].touch(topic, record.key)
            shard.cluster_state_ends[topic] = record.offset + 1
            if deleted is not None:
                # Samples that were joined before the deletion was known are older than it.
                deleted_ms = max(record.appended_ms, shard.join.appended_ms)
                await shard.join.retract(deleted, deleted_ms)
