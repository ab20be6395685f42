"""Load a partition that was assigned: state = checkpoint + log.

1. *Claim*: append a record to the partition of `checkpoints`. Its offset is the worker's epoch.
2. *Select* the checkpoints of the highest epoch with a marker (`checkpoint_selection`).
3. *Replay* `windows` from the marker's offset to the current end (`model_recovery`). Only changes
   of alerts are published, because they may not have been before the failure. The join resumes
   after the highest sample offset in the log.
4. *Publish* the newest report of each node again.

The claim comes first: a later reader of `checkpoints` then sees who may still write, and records of
older epochs are ignored. A crash at any step changes nothing that the next load does not repeat.
Commits are not used: a position that is part of the data cannot disagree with it.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.checkpoint_selection import PartitionCheckpoints, read_checkpoints
from pipeline.agents.cluster_state import ClusterState, ClusterStateTopics
from pipeline.agents.consume import Readers
from pipeline.agents.fleet_topic import FLEET_PARTITION, FleetTopic
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.model_recovery import ModelRecovery, WindowsLog
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules
from pipeline.agents.published_results import published_end
from pipeline.agents.shard import Shard
from pipeline.agents.truncated_logs import check_topics, within_log
from pipeline.agents.window_handover import WindowHandover
from pipeline.clock import Clock
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram
from pipeline.processors.model.bank import Bank
from pipeline.times import format_time
from pipeline.topics.checkpoints import Claim, claim_key
from pipeline.topics.codec import encode_pack
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
LOAD_SECONDS = histogram(
    "worker_partition_load_seconds", "Duration of loading a partition.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)  # fmt: skip


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
        checkpoints = await self._select(reader, ownership, ids, previous)
        if previous is not None and (
            checkpoints.has_import_since(previous.ownership.epoch)
            or checkpoints.cuts > previous.model.cuts
        ):
            bank.clear()
            previous = None
        windows = await self._find_windows(reader, partition, checkpoints, previous)
        topics = self._topic(WINDOWS), self._topic(NODE_STATE)
        models = ModelRecovery(self.output, self.model_rules, *topics, self.clock)
        model, is_kept = await models.restore(
            reader, windows, ownership, checkpoints, previous, bank
        )
        previous = previous if is_kept else None
        cluster_state, ends = await self._load_cluster_state(reader, partition, ids, previous)
        # Another worker may have owned the partition since the earlier assignment.
        joined = max(checkpoints.joined + 1, previous.join.next_offset if previous else 0)
        start, is_rejoined = await self._resume_join(reader, model, joined)
        # A paused worker may have published results of these nodes after their tombstones.
        present = set(model.bank.nodes) - model.retracted.keys()
        deleted = cluster_state.deleted_nodes.keys() - present
        await model.publish_events()
        await model.publish([*model.reports.items(), *((node, None) for node in sorted(deleted))])
        join = JoinCursor(
            ownership, start, cluster_state, self.output, self.join_rules,
            partial(self.handover.put, model),
            unknown_nodes=present - cluster_state.nodes.keys() - cluster_state.deleted_nodes.keys(),
        )  # fmt: skip
        duration = self.clock.monotonic() - start_time
        LOADS.labels("kept" if is_kept else "new").inc()
        LOAD_SECONDS.observe(duration)
        log.info("partition loaded", partition=partition, epoch=ownership.epoch,
                 nodes=len(model.bank.nodes), windows_offset=model.next_offset,
                 samples_offset=start, kept=is_kept, seconds=round(duration, 3))  # fmt: skip
        shard = Shard(ownership, join, model, checkpoints.keys, ends, ids)
        if windows.is_truncated or is_rejoined:
            # The next owner must not take new records for those that the log lost.
            await self.save(shard)
        return shard

    async def _select(
        self, reader: LogReader, ownership: Ownership, ids: dict[str, str], previous: Shard | None
    ) -> PartitionCheckpoints:
        """Read the checkpoints. Raises `StateError` if they belong to other topics."""
        topic, refuse = self._topic(CHECKPOINTS), self.cluster_state_topics.refuse
        checkpoints = await read_checkpoints(
            reader, topic, ownership.partition, ownership.epoch, refuse
        )
        owners = {marker.epoch if (marker := checkpoints.marker()) else -1}
        owners |= set() if previous is None else {previous.ownership.epoch}
        check_topics(ids, [checkpoints.topic_ids.get(epoch, {}) for epoch in owners])
        return checkpoints

    async def _find_windows(
        self,
        reader: LogReader,
        partition: int,
        checkpoints: PartitionCheckpoints,
        previous: Shard | None,
    ) -> WindowsLog:
        """Compare the log of windows with the end that checkpoints, models and results know."""
        cuts = checkpoints.cuts if previous is None else previous.model.cuts
        known_end = max(
            checkpoints.end,
            previous.model.next_offset if previous else 0,
            await published_end(reader, self._topic(NODE_STATE), partition, cuts[0]),
        )
        topic = self._topic(WINDOWS)
        first, end = await reader.bounds(topic, partition)
        is_truncated = within_log(topic, partition, known_end, end) < known_end
        return WindowsLog(first, end, cuts[0] + is_truncated, min(cuts[1], end), is_truncated)

    async def _load_cluster_state(
        self, reader: LogReader, partition: int, ids: dict[str, str], previous: Shard | None
    ) -> tuple[ClusterState, dict[str, int]]:
        """Read what the cluster said since `previous`, else everything; return also the offsets
        after it."""
        fleet = self.fleet
        cluster_state = ClusterState(fleet.means, fleet.outcomes, fleet.histories)
        starts: dict[str, int] = {}
        if previous is not None and not self.cluster_state_topics.differ(previous.topic_ids, ids):
            cluster_state, starts = previous.join.cluster_state, previous.cluster_state_ends
        ends = await self.cluster_state_topics.load(reader, partition, cluster_state, starts)
        return cluster_state, ends

    async def _resume_join(
        self, reader: LogReader, model: ModelCursor, joined: int
    ) -> tuple[int, bool]:
        """Return the first sample that is in no window, at least `joined`, and whether the log of
        samples ends before it: then the join begins at that end."""
        samples = self._topic(SAMPLES)
        first, end = await reader.bounds(samples, model.ownership.partition)
        known = max(join_start(model, first), joined)
        start = within_log(samples, model.ownership.partition, known, end)
        if start < known:
            model.joined = min(model.joined, start - 1)
            model.rejoined_from = model.next_offset
        return start, start < known

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

    def _topic(self, topic: Topic) -> str:
        return topic.full_name(self.join_rules.prefix)


def join_start(model: ModelCursor, first: int) -> int:
    """Return the offset after the highest sample in the log, or `first` without any."""
    return first if model.joined < 0 else model.joined + 1
