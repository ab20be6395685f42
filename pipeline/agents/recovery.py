"""Load a partition that was assigned: state = checkpoint + log.

1. *Claim*: append a record to the partition of `checkpoints`. Its offset is the worker's epoch.
2. *Select* the checkpoints of the highest epoch with a marker (`checkpoint_selection`).
3. *Replay* `windows` from the marker's offset to the current end. Only changes of alerts are
   published, because they may not have been before the failure. The join resumes after the highest
   sample offset in the log.
4. *Publish* the newest report of each node again.

The claim comes first: a later reader of `checkpoints` then sees who may still write, and records of
older epochs are ignored. A crash at any step changes nothing that the next load does not repeat.
Commits are not used: a position that is part of the data cannot disagree with it. Windows that
retention removed are counted, and the models are marked.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.checkpoint_selection import (
    PartitionCheckpoints,
    read_checkpoints,
    replay_start,
)
from pipeline.agents.cluster_state import ClusterState, ClusterStateTopics
from pipeline.agents.consume import Readers
from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.failed_windows import FailedWindows, ReplayAgainError
from pipeline.agents.fleet_topic import FLEET_PARTITION, FleetTopic
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, NodeReport
from pipeline.agents.published_results import published_end, published_states
from pipeline.agents.replay_windows import encode_replayed, replay
from pipeline.agents.restored_nodes import SLICE, RestoredNodes, restore_nodes
from pipeline.agents.shard import Shard
from pipeline.agents.truncated_logs import check_topics, mark_truncated, within_log
from pipeline.agents.window_handover import WindowHandover
from pipeline.clock import Clock
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram
from pipeline.processors.model.bank import Bank
from pipeline.times import format_time
from pipeline.topics.checkpoints import Claim, NodeCheckpoint, claim_key
from pipeline.topics.codec import encode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import (
    CHECKPOINTS,
    NODE_STATE,
    NODES,
    PODS,
    SAMPLES,
    WINDOWS,
    Topic,
)

log = get_logger(__name__)

LOADS = counter(
    "worker_partition_loads",
    "Loaded partitions: new, or kept from the previous assignment.",
    ["kind"],
)
REPLAYED = counter("worker_replayed_windows", "Windows replayed during recovery.")
LOST = counter("worker_lost_windows", "Windows that retention removed before they were applied.")
LOAD_SECONDS = histogram(
    "worker_partition_load_seconds", "Duration of loading a partition.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)  # fmt: skip

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
    cluster_state_topics: ClusterStateTopics
    fleet: FleetTopic
    join_rules: JoinRules
    model_rules: ModelRules
    bank: Bank
    handover: WindowHandover
    clock: Clock

    async def load_all(
        self, partitions: Iterable[int], released: dict[int, Shard]
    ) -> AsyncGenerator[Shard, None]:
        """Load `partitions` in ascending order; remove the used shards from `released`.

        If loading is interrupted, the models of the current partition are dropped.
        """
        ordered = sorted(partitions)
        topics = map(self._topic, (CHECKPOINTS, WINDOWS, SAMPLES, NODES, PODS, NODE_STATE))
        partition_topics = [(topic, partition) for topic in topics for partition in ordered]
        fleet = (self.fleet.name, FLEET_PARTITION)
        async with self.open_reader([*partition_topics, fleet]) as reader:
            await self.fleet.load(reader)
            for partition in ordered:
                yield await self.load(reader, partition, released.pop(partition, None))

    async def load(self, reader: LogReader, partition: int, previous: Shard | None) -> Shard:
        """Load `partition` up to the end of its log, and publish its reports again.

        The models of the shard `previous`, of an earlier assignment, only catch up with the log,
        unless a failure left them half-changed.
        """
        if previous is not None and not previous.model.intact:
            previous.model.bank.clear()
            previous = None
        bank = self.bank.sibling() if previous is None else previous.model.bank
        try:
            return await self._load(reader, partition, previous, bank)
        except BaseException:
            bank.clear()
            raise

    async def _load(
        self, reader: LogReader, partition: int, previous: Shard | None, bank: Bank
    ) -> Shard:
        start_time = self.clock.monotonic()
        ids = await reader.topic_ids()
        ownership = Ownership(partition, await self.claim(partition, ids))
        topic, refuse = self._topic(CHECKPOINTS), self.cluster_state_topics.refuse
        checkpoints = await read_checkpoints(reader, topic, partition, ownership.epoch, refuse)
        owners = {marker.epoch if (marker := checkpoints.marker()) else -1}
        owners |= set() if previous is None else {previous.ownership.epoch}
        check_topics(ids, [checkpoints.topic_ids.get(epoch, {}) for epoch in owners])
        if previous is not None and (
            checkpoints.has_import_since(previous.ownership.epoch)
            or checkpoints.cuts > previous.model.cuts
        ):
            bank.clear()
            previous = None
        cuts = checkpoints.cuts if previous is None else previous.model.cuts
        log_end = max(
            checkpoints.end,
            previous.model.next_offset if previous else 0,
            await published_end(reader, self._topic(NODE_STATE), partition, cuts[0]),
        )
        windows = self._topic(WINDOWS)
        bounds = await reader.bounds(windows, partition)
        is_truncated = within_log(windows, partition, log_end, bounds[1]) < log_end
        cuts = cuts[0] + is_truncated, min(cuts[1], bounds[1])
        skipped = {
            offset: node
            for offset, node in checkpoints.skipped.items()
            if bounds[0] <= offset < bounds[1]
        }
        failures, model = FailedWindows(skipped, checkpoints.resume), None
        if previous is not None:
            failures.nodes |= previous.model.failures.nodes
            previous.model.departed.known |= checkpoints.departed.keys()
            try:
                model = await self._catch_up(
                    reader, bounds, cuts, ownership, previous.model, failures
                )
            except ReplayAgainError:
                bank.clear()
                previous = None
        while model is None:
            try:
                model = await self._replay(
                    reader, bounds, cuts, ownership, checkpoints, bank, failures
                )
            except ReplayAgainError:
                bank.clear()
        failures.ranges.clear()
        fleet = self.fleet
        cluster_state = ClusterState(fleet.means, fleet.outcomes, fleet.histories)
        starts: dict[str, int] = {}
        if previous is not None and not self.cluster_state_topics.differ(previous.topic_ids, ids):
            cluster_state, starts = previous.join.cluster_state, previous.cluster_state_ends
        ends = await self.cluster_state_topics.load(reader, partition, cluster_state, starts)
        # Another worker may have owned the partition since the earlier assignment.
        join_done = max(checkpoints.joined + 1, previous.join.next_offset if previous else 0)
        samples = self._topic(SAMPLES)
        first, end = await reader.bounds(samples, partition)
        known = max(join_start(model, first), join_done)
        start = within_log(samples, partition, known, end)
        if start < known:
            model.joined = min(model.joined, start - 1)
            model.rejoined_from = model.next_offset
        # A paused worker may have published results of these nodes after their tombstones.
        present = set(model.bank.nodes) - model.retracted.keys()
        deleted = cluster_state.deleted_nodes.keys() - present
        await model.publish_events()
        await model.publish([*model.reports.items(), *((node, None) for node in sorted(deleted))])
        hand_over = partial(self.handover.put, model)
        join = JoinCursor(
            ownership, start, cluster_state, self.output, self.join_rules, hand_over,
            unknown_nodes=present - cluster_state.nodes.keys() - cluster_state.deleted_nodes.keys(),
        )  # fmt: skip
        duration = self.clock.monotonic() - start_time
        LOADS.labels("new" if previous is None else "kept").inc()
        LOAD_SECONDS.observe(duration)
        log.info("partition loaded", partition=partition, epoch=ownership.epoch,
                 nodes=len(model.bank.nodes), windows_offset=model.next_offset,
                 samples_offset=start, kept=previous is not None,
                 seconds=round(duration, 3))  # fmt: skip
        shard = Shard(ownership, join, model, checkpoints.keys, ends, ids)
        if is_truncated or start < known:
            # The next owner must not take new records for those that the log lost.
            await self.save(shard)
        return shard

    async def save(self, shard: Shard) -> None:
        """Write a round of checkpoints at once."""
        topic = self._topic(CHECKPOINTS)
        await CheckpointRounds(shard, self.output, topic, self.clock).write()

    async def claim(self, partition: int, topic_ids: Mapping[str, str]) -> int:
        """Claim `partition`; return the epoch."""
        now = format_time(self.clock.now())
        names = map(self._topic, (WINDOWS, SAMPLES))
        ids = {name: topic_ids[name] for name in names if name in topic_ids}
        claim = Claim(member=self.member, claimed_at=now, group=self.group, topic_ids=ids)
        record = Keyed(claim_key(self.member), encode_pack(claim))
        (offset,) = await self.output.append(self._topic(CHECKPOINTS), partition, [record])
        return offset

    async def _replay(
        self,
        reader: LogReader,
        bounds: tuple[int, int],
        cuts: tuple[int, int],
        ownership: Ownership,
        checkpoints: PartitionCheckpoints,
        bank: Bank,
        failures: FailedWindows,
    ) -> ModelCursor:
        """Restore the checkpoints and replay the windows after them."""
        first, end = bounds
        nodes = await restore_nodes(bank, checkpoints, first, end)
        start = replay_start(checkpoints.marker(), first)
        if nodes.changed:
            # A round that starts before the log keeps its start: windows were lost in between.
            start = min(start, first)
        start = min(start, end)
        empty = nodes.empty_counters()
        model = ModelCursor(
            ownership, start, bank, self.output, self.model_rules,
            reports={node: _report(checkpoint) for node, checkpoint in nodes.restored.items()},
            counters=empty | {node: known.counters for node, known in nodes.restored.items()},
            retracted={
                node: known.retracted_ms
                for node, known in nodes.restored.items()
                if known.retracted_ms is not None
            },
            generation=cuts[0],
            rejoined_from=cuts[1],
            failures=failures,
            departed=DepartedNodes(checkpoints.departed),
        )  # fmt: skip
        if first > start:
            self._mark_lost(model, first - start)
        covers = {node: checkpoint.covers for node, checkpoint in nodes.restored.items()}
        mark_truncated(model, covers, end)
        await self.apply_log(reader, model, max(first, start), end, covers)
        if nodes.missing:
            await self._mark_missing(reader, model, nodes, first, start)
        for node in sorted(empty.keys() - set(model.bank.nodes) - model.reports.keys()):
            _remove_results(model, node)
        for node, before in nodes.rebuilt().items():
            self._mark_rebuilt(model, node, before)
        await _encode_replayed(model)
        return model

    async def _catch_up(
        self,
        reader: LogReader,
        bounds: tuple[int, int],
        cuts: tuple[int, int],
        ownership: Ownership,
        previous: ModelCursor,
        failures: FailedWindows,
    ) -> ModelCursor:
        """Replay the windows after the models of an earlier assignment."""
        model = ModelCursor(
            ownership, previous.next_offset, previous.bank, self.output, self.model_rules,
            joined=previous.joined, reports=previous.reports, counters=previous.counters,
            retracted=previous.retracted, failures=failures, departed=previous.departed,
            generation=cuts[0], rejoined_from=cuts[1], events=previous.events,
        )  # fmt: skip
        model.traces |= previous.traces
        first, end = bounds
        if first > model.next_offset:
            self._mark_lost(model, first - model.next_offset)
        mark_truncated(model, dict.fromkeys(model.counters, model.next_offset), end)
        model.next_offset = min(model.next_offset, end)
        await self.apply_log(reader, model, max(first, model.next_offset), end, {})
        await _encode_replayed(model)
        return model

    async def apply_log(
        self, reader: LogReader, model: ModelCursor, start: int, end: int, covers: Mapping[str, int]
    ) -> None:
        """Replay the log from `start` to `end`, without records below `covers` of their node."""
        partition, logged_at = model.ownership.partition, self.clock.monotonic()
        async for records in reader.read(self._topic(WINDOWS), partition, start, end):
            await replay(model, records, covers)
            # Events may not have been published before; a repeat changes nothing.
            await model.publish_events()
            REPLAYED.inc(len(records))
            if self.clock.monotonic() - logged_at > _LOG_SECONDS:
                logged_at = self.clock.monotonic()
                log.info("replaying the log", partition=partition, offset=model.next_offset,
                         end=end)  # fmt: skip
        model.next_offset = max(model.next_offset, end)

    async def _mark_missing(
        self, reader: LogReader, model: ModelCursor, nodes: RestoredNodes, first: int, start: int
    ) -> None:
        """Count the windows in missing checkpoints as lost: by the results of a node, or as the
        offsets from `first` to the `start` of the replay if it has none. Rounds carry the count of
        a silent node."""
        topic, partition = self._topic(NODE_STATE), model.ownership.partition
        published = await published_states(reader, topic, partition)
        known = {*nodes.restored, *nodes.changed, *nodes.damaged}
        for node in sorted({*published, *model.bank.nodes} - known):
            now, lost = model.counters.get(node), max(start - first, 1)
            if state := published.get(node):
                lost = state.counters.applied + state.counters.lost
                if now is not None and state.offset >= start:  # it counts replayed windows, too
                    lost = max(lost - now.applied, 0)
            if now is not None:
                model.lose(node, lost)
            elif node not in model.reports:  # no deletion was replayed
                model.counters[node] = Counters(lost=lost)
                _remove_results(model, node)

    def _mark_rebuilt(self, model: ModelCursor, node: str, before: Counters) -> None:
        """Count the windows in `before` that the log no longer has as lost to a rebuilt node."""
        now = model.counters.get(node)
        if now is None:
            if node not in model.reports:
                _remove_results(model, node)
        elif (missing := before.applied - now.applied) > 0:
            LOST.inc(missing)
            model.lose(node, before.lost + missing)
            log.error("retention removed windows of a rebuilt node, its models are marked",
                      node=node, windows=missing)  # fmt: skip

    def _mark_lost(self, model: ModelCursor, offsets: int) -> None:
        """Mark every node: nobody knows which nodes had windows at the removed `offsets`."""
        LOST.inc(offsets)
        log.error("retention removed windows before they were applied; models are marked",
                  partition=model.ownership.partition, windows=offsets)  # fmt: skip
        for node in list(model.counters):
            model.lose(node, offsets)

    def _topic(self, topic: Topic) -> str:
        return topic.full_name(self.join_rules.prefix)


def join_start(model: ModelCursor, first: int) -> int:
    """Return the offset after the highest sample in the log, or `first` without any."""
    return first if model.joined < 0 else model.joined + 1


async def _encode_replayed(model: ModelCursor) -> None:
    remaining = True
    while remaining:
        remaining = encode_replayed(model, SLICE)
        await asyncio.sleep(0)


def _remove_results(model: ModelCursor, node: str) -> None:
    """Let the next publication write tombstones for a node of which no window is left."""
    model.reports[node] = None
    log.error("no window to rebuild a node from, removing its results", node=node)


def _report(checkpoint: NodeCheckpoint) -> NodeReport | None:
    state = checkpoint.node_state
    return None if state is None else NodeReport(checkpoint.prediction, state, checkpoint.resources)
