"""State = checkpoint + log: load a partition that was assigned.

1. *Claim*: append a record to the partition of `checkpoints`. Its offset is the worker's epoch.
2. *Select* the checkpoints of the highest epoch with a marker (`checkpoint_selection`).
3. *Replay* `windows` from the marker's offset to the current end, without publishing. The join
   resumes after the highest sample offset in the log.
4. *Publish* the newest report of each node again.

Commits are not used. Windows that retention removed are counted, and the models are marked.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from pipeline.agents.checkpoint_selection import (
    PartitionCheckpoints,
    read_checkpoints,
    replay_start,
    restore,
)
from pipeline.agents.cluster_state import ClusterState, ClusterStateTopics
from pipeline.agents.consume import Readers
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, NodeReport
from pipeline.agents.shard import Shard
from pipeline.agents.window_handover import WindowHandover
from pipeline.clock import Clock
from pipeline.errors import CheckpointError, CheckpointLayoutError, StateError
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram
from pipeline.processors.model.bank import Bank
from pipeline.times import format_time
from pipeline.topics.checkpoints import Claim, NodeCheckpoint, claim_key
from pipeline.topics.codec import encode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import CHECKPOINTS, SAMPLES, WINDOWS

log = get_logger(__name__)

LOADS = counter(
    "worker_partition_loads",
    "Loaded partitions: new, or kept from the previous assignment.",
    ["kind"],
)
REPLAYED = counter("worker_replayed_windows", "Windows replayed during recovery.")
LOST = counter("worker_lost_windows", "Windows that retention removed before they were applied.")
REBUILT = counter(
    "worker_rebuilt_models", "Nodes rebuilt from the log because their checkpoint was unusable."
)
LOAD_SECONDS = histogram(
    "worker_partition_load_seconds", "Duration of loading a partition.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)  # fmt: skip

_SLICE = 50
"""Nodes restored or reported before other tasks run: up to 0.2 s at 100 pods per node."""
_LOG_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """Loads partitions; one instance per worker.

    The models of each partition share storage with the empty `bank`. `handover` brings them the
    windows that joins append.
    """

    member: str
    group: str
    output: Producer
    open_reader: Readers
    cluster_topics: ClusterStateTopics
    join_rules: JoinRules
    model_rules: ModelRules
    bank: Bank
    handover: WindowHandover
    clock: Clock

    async def load_all(
        self, partitions: Iterable[int], kept: dict[int, Shard]
    ) -> AsyncGenerator[tuple[Shard, list[bytes]], None]:
        """Load `partitions` in ascending order; remove the used shards from `kept`.

        If loading is interrupted, the models of the current partition are dropped.
        """
        ordered = sorted(partitions)
        topics = (self._checkpoints, self._windows, self._samples)
        partition_topics = [
            (topic, partition)
            for topic in (*topics, self.cluster_topics.nodes, self.cluster_topics.pods)
            for partition in ordered
        ]
        async with self.open_reader(partition_topics) as reader:
            for partition in ordered:
                yield await self.load(reader, partition, kept.pop(partition, None))

    async def load(
        self, reader: LogReader, partition: int, kept: Shard | None
    ) -> tuple[Shard, list[bytes]]:
        """Load `partition` up to the end of its log, and publish its reports again.

        `kept` is the shard of the previous assignment, whose models are reused. Returns the shard,
        and the keys of older checkpoints to delete after the first complete round.
        """
        bank = self.bank.sibling() if kept is None else kept.model.bank
        try:
            return await self._load(reader, partition, kept, bank)
        except BaseException:
            bank.clear()
            raise

    async def _load(
        self, reader: LogReader, partition: int, kept: Shard | None, bank: Bank
    ) -> tuple[Shard, list[bytes]]:
        start_time = self.clock.monotonic()
        ownership = Ownership(partition, await self.claim(partition))
        checkpoints = await read_checkpoints(
            reader, self._checkpoints, partition, ownership.epoch, self.cluster_topics.refuse
        )
        if kept is not None and checkpoints.has_import_since(kept.ownership.epoch):
            bank.clear()
            kept = None
        model = (
            await self._replay(reader, ownership, checkpoints, bank)
            if kept is None
            else await self._catch_up(reader, ownership, kept.model)
        )
        cluster_state = ClusterState() if kept is None else kept.join.cluster_state
        starts = {} if kept is None else kept.cluster_state_ends
        ends = await self.cluster_topics.load(reader, partition, cluster_state, starts)
        # Another worker may have owned a kept shard meanwhile.
        join_done = max(checkpoints.joined + 1, kept.join.next_offset if kept is not None else 0)
        start = await self._join_start(reader, partition, model, join_done)
        # A paused worker may have published results of these nodes after their tombstones.
        deleted = cluster_state.deleted_nodes.keys() - set(model.bank.nodes)
        await model.publish([*model.reports.items(), *((node, None) for node in sorted(deleted))])
        hand_over = partial(self.handover.put, model)
        join = JoinCursor(ownership, start, cluster_state, self.output, self.join_rules, hand_over)
        duration = self.clock.monotonic() - start_time
        LOADS.labels("new" if kept is None else "kept").inc()
        LOAD_SECONDS.observe(duration)
        log.info("partition loaded", partition=partition, epoch=ownership.epoch,
                 nodes=len(model.bank.nodes), windows_offset=model.next_offset,
                 samples_offset=start, kept=kept is not None,
                 seconds=round(duration, 3))  # fmt: skip
        return Shard(ownership, join, model, ends), checkpoints.keys

    async def claim(self, partition: int) -> int:
        now = format_time(self.clock.now())
        claim = Claim(member=self.member, claimed_at=now, group=self.group)
        record = Keyed(claim_key(self.member), encode_pack(claim))
        (offset,) = await self.output.append(self._checkpoints, partition, [record])
        return offset

    async def _replay(
        self, reader: LogReader, ownership: Ownership, checkpoints: PartitionCheckpoints, bank: Bank
    ) -> ModelCursor:
        first, end = await reader.bounds(self._windows, ownership.partition)
        marker = checkpoints.marker()
        start = replay_start(marker, first)
        restored: dict[str, NodeCheckpoint] = {}
        reset: dict[str, tuple[Counters, Counters]] = {}
        lost: dict[str, Counters] = {}
        rebuilt: dict[str, Counters] = {}
        for number, (node, usable) in enumerate(checkpoints.usable().items()):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            # The end of the log was read after the checkpoints: they cannot cover more.
            covered = [checkpoint for checkpoint in usable if checkpoint.covers <= end]
            if not covered:
                before = usable[0].counters
                reset[node] = before, Counters(lost=before.applied + before.lost)
                log.error("checkpoint covers more than the log has, resetting and marking the "
                          "models of the node", node=node)  # fmt: skip
                continue
            try:
                if checkpoint := restore(bank, node, covered):
                    restored[node] = checkpoint
            except CheckpointLayoutError as error:
                # Rebuild models of another layout from the whole log. An earlier start tells that
                # the other nodes have lost windows.
                start, rebuilt[node] = min(start, first), covered[0].counters
                REBUILT.inc()
                log.warning("model layout changed, rebuilding the models from the whole log",
                            node=node, error=error.message)  # fmt: skip
            except CheckpointError as error:
                # Replaying days for one damaged node would stop all others.
                reset[node] = covered[0].counters, Counters(lost=max(covered[0].covers - first, 1))
                REBUILT.inc()
                log.error("checkpoint is damaged, resetting and marking the models of the node",
                          node=node, error=error.message)  # fmt: skip
        for node, before in (marker.left_out if marker else {}).items():
            if node not in restored.keys() | rebuilt.keys() | reset.keys():
                reset[node] = before, Counters(lost=before.applied + before.lost)
                log.error("checkpoint exceeded the record limit, resetting and marking the models "
                          "of the node", node=node)  # fmt: skip
        if rebuilt:
            # The whole log is replayed: reset nodes are rebuilt, too.
            rebuilt |= {node: before for node, (before, _) in reset.items()}
        else:
            lost = {node: marked for node, (_, marked) in reset.items()}
        if start > end:
            raise _recreated(self._windows, ownership.partition, end, start)
        model = ModelCursor(
            ownership, start, bank, self.output, self.model_rules,
            reports={node: _report(checkpoint) for node, checkpoint in restored.items()},
            counters=lost | {node: checkpoint.counters for node, checkpoint in restored.items()},
        )  # fmt: skip
        if first > start:
            self._mark_lost(model, first - start)
        covers = {node: checkpoint.covers for node, checkpoint in restored.items()}
        await self.apply_log(reader, model, max(first, start), end, covers)
        for node in sorted(lost.keys() - set(model.bank.nodes) - model.reports.keys()):
            self._depart(model, node)
        for node, before in rebuilt.items():
            self._mark_rebuilt(model, node, before)
        await _report_replayed(model)
        return model

    async def _catch_up(
        self, reader: LogReader, ownership: Ownership, kept: ModelCursor
    ) -> ModelCursor:
        model = ModelCursor(
            ownership, kept.next_offset, kept.bank, self.output, self.model_rules,
            joined=kept.joined, reports=kept.reports, counters=kept.counters,
        )  # fmt: skip
        first, end = await reader.bounds(self._windows, ownership.partition)
        if first > model.next_offset:
            self._mark_lost(model, first - model.next_offset)
        await self.apply_log(reader, model, max(first, model.next_offset), end, {})
        await _report_replayed(model)
        return model

    async def apply_log(
        self,
        reader: LogReader,
        model: ModelCursor,
        start: int,
        end: int,
        covers: Mapping[str, int],
    ) -> None:
        """Replay the log from `start` to `end`, without records below `covers` of their node."""
        partition, logged_at = model.ownership.partition, self.clock.monotonic()
        async for records in reader.read(self._windows, partition, start, end):
            model.replay(records, covers)
            REPLAYED.inc(len(records))
            if self.clock.monotonic() - logged_at > _LOG_SECONDS:
                logged_at = self.clock.monotonic()
                log.info("replaying the log", partition=partition, offset=model.next_offset,
                         end=end)  # fmt: skip
        model.next_offset = max(model.next_offset, end)

    def _mark_rebuilt(self, model: ModelCursor, node: str, before: Counters) -> None:
        """Count the windows in `before` that the log no longer has as lost to a rebuilt node."""
        now = model.counters.get(node)
        if now is None:
            if node not in model.reports:
                self._depart(model, node)
        elif (missing := before.applied - now.applied) > 0:
            LOST.inc(missing)
            model.lose(node, before.lost + missing)
            log.error("retention removed windows of a rebuilt node, its models are marked",
                      node=node, windows=missing)  # fmt: skip

    def _depart(self, model: ModelCursor, node: str) -> None:
        """Publish tombstones for a node without windows."""
        model.reports[node] = None
        log.error("no window to rebuild a node from, removing its results", node=node)

    def _mark_lost(self, model: ModelCursor, lost: int) -> None:
        LOST.inc(lost)
        log.error("retention removed windows before they were applied; models are marked",
                  partition=model.ownership.partition, windows=lost)  # fmt: skip
        for node, counters in model.counters.items():
            model.counters[node] = msgspec.structs.replace(counters, lost=counters.lost + lost)

    async def _join_start(
        self, reader: LogReader, partition: int, model: ModelCursor, done: int
    ) -> int:
        first, end = await reader.bounds(self._samples, partition)
        start = max(join_start(model, first), done)
        if start > end:
            raise _recreated(self._samples, partition, end, start)
        return start

    @property
    def _samples(self) -> str:
        return SAMPLES.full_name(self.join_rules.prefix)

    @property
    def _windows(self) -> str:
        return WINDOWS.full_name(self.join_rules.prefix)

    @property
    def _checkpoints(self) -> str:
        return CHECKPOINTS.full_name(self.join_rules.prefix)


def join_start(model: ModelCursor, first: int) -> int:
    """Return the offset after the highest sample in the log, or `first` without any."""
    return first if model.joined < 0 else model.joined + 1


def _recreated(topic: str, partition: int, end: int, known: int) -> StateError:
    return StateError(
        f"{topic}[{partition}] ends at offset {end}, but state refers to offset {known}",
        hint="the topic was recreated: delete all topics of this prefix, or use another prefix",
    )


async def _report_replayed(model: ModelCursor) -> None:
    remaining = True
    while remaining:
        remaining = model.report_replayed(_SLICE)
        await asyncio.sleep(0)


def _report(checkpoint: NodeCheckpoint) -> NodeReport | None:
    state = checkpoint.node_state
    return None if state is None else NodeReport(checkpoint.prediction, state, checkpoint.resources)
