"""State = checkpoint + log: how a worker takes a partition into its hands.

0. *Claim*: a record into the partition of `checkpoints`; its offset is this worker's epoch.
1. *Choose*: the highest epoch E with a marker; X, the offset from which it wants the log replayed;
   per node, among records of epoch E or higher that cover at least X, the one that covers most.
2. *Replay* `windows` from X to its present end, publishing nothing. The same reading tells the
   join where to go on: behind the highest sample offset that lies in the log.
3. *Republish* what was last reported of each node.

Faust's commits are never asked. What retention took from the log is counted and marks the models.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from pipeline.agents.checkpoint_selection import (
    Checkpoints,
    read_checkpoints,
    replay_start,
    restore,
)
from pipeline.agents.cluster_state import Inventory, InventoryTopics
from pipeline.agents.consume import Readers
from pipeline.agents.join_agent import JoinCursor, JoinRules
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, NodeReport
from pipeline.agents.shard import Shard
from pipeline.agents.window_handover import Handover
from pipeline.clock import Clock
from pipeline.errors import CheckpointError, CheckpointLayoutError, StateError
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import Keyed, Output
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram
from pipeline.processors.model.bank import Bank
from pipeline.times import format_time
from pipeline.topics.checkpoints import Claim, NodeCheckpoint, claim_key
from pipeline.topics.codec import encode_pack
from pipeline.topics.node_state import Counters
from pipeline.topics.registry import CHECKPOINTS, SAMPLES, WINDOWS

log = get_logger(__name__)

LOADS = counter("worker_partition_loads", "Partitions taken over.", ["kind"])
REPLAYED = counter("worker_replayed_windows", "Windows replayed in recovery.")
LOST = counter("worker_lost_windows", "Windows that retention removed before they were applied.")
REBUILT = counter("worker_rebuilt_models", "Nodes rebuilt from the log for want of a checkpoint.")
LOAD_SECONDS = histogram(
    "worker_partition_load_seconds", "Duration of a partition's recovery.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)  # fmt: skip

_AT_ONCE = 50
"""Nodes restored or reported before others may run: of 100 pods each, up to 0.2 s."""
_SAY_EVERY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is needed to load a partition; one for the life of a worker.

    The models of each partition lie beside the empty `bank`; what joins append is brought to them
    by `handover`.
    """

    member: str
    group: str
    output: Output
    open_reader: Readers
    inventory: InventoryTopics
    join_rules: JoinRules
    model_rules: ModelRules
    bank: Bank
    handover: Handover
    clock: Clock

    async def load_all(
        self, partitions: Iterable[int], kept: dict[int, Shard]
    ) -> AsyncGenerator[tuple[Shard, list[bytes]], None]:
        """`load` for each of `partitions`, in ascending order; takes out of `kept` what it uses.

        A partition whose loading is cut short is in no hand any more, and its models are dropped.
        """
        wanted = sorted(partitions)
        topics = (self._checkpoints, self._windows, self._samples)
        places = [
            (topic, partition)
            for topic in (*topics, self.inventory.nodes, self.inventory.pods)
            for partition in wanted
        ]
        async with self.open_reader(places) as reader:
            for partition in wanted:
                yield await self.load(reader, partition, kept.pop(partition, None))

    async def load(
        self, reader: LogReader, partition: int, kept: Shard | None
    ) -> tuple[Shard, list[bytes]]:
        """The shard of `partition`, brought to the end of its log and republished.

        `kept` is the shard that this worker held until now: its models stay. Gives the keys of
        older epochs in `checkpoints`, too, to be deleted after the first complete round.
        """
        bank = self.bank.beside() if kept is None else kept.model.bank
        try:
            return await self._load(reader, partition, kept, bank)
        except BaseException:
            bank.clear()
            raise

    async def _load(
        self, reader: LogReader, partition: int, kept: Shard | None, bank: Bank
    ) -> tuple[Shard, list[bytes]]:
        began = self.clock.monotonic()
        ownership = Ownership(partition, await self._claim(partition))
        found = await read_checkpoints(
            reader, self._checkpoints, partition, ownership.epoch, self.inventory.refuse
        )
        if kept is not None and found.has_import_since(kept.ownership.epoch):
            bank.clear()
            bank, kept = self.bank.beside(), None
        model = (
            await self._replay(reader, ownership, found, bank)
            if kept is None
            else await self._catch_up(reader, ownership, kept.model)
        )
        inventory = Inventory() if kept is None else kept.join.inventory
        # Somebody else may have held the partition meanwhile: what is old news is no departure.
        seen = {} if kept is None else kept.inventory_ends
        ends = await self.inventory.load(reader, partition, inventory, seen)
        # A kept shard may have been in other hands meanwhile.
        before = max(found.joined + 1, kept.join.next_offset if kept is not None else 0)
        start = await self._join_start(reader, partition, model, before)
        # A paused worker that woke up may have written behind the tombstones of these.
        gone = inventory.departed.keys() - set(model.bank.nodes)
        await model.publish([*model.reports.items(), *((node, None) for node in sorted(gone))])
        hand_on = partial(self.handover.put, model)
        join = JoinCursor(ownership, start, inventory, self.output, self.join_rules, hand_on)
        took = self.clock.monotonic() - began
        LOADS.labels("new" if kept is None else "kept").inc()
        LOAD_SECONDS.observe(took)
        log.info("partition loaded", partition=partition, epoch=ownership.epoch,
                 nodes=len(model.bank.nodes), windows_offset=model.next_offset,
                 samples_offset=start, kept=kept is not None, seconds=round(took, 3))  # fmt: skip
        return Shard(ownership, join, model, ends), found.keys

    async def _claim(self, partition: int) -> int:
        now = format_time(self.clock.now())
        claim = Claim(member=self.member, claimed_at=now, group=self.group)
        record = Keyed(claim_key(self.member), encode_pack(claim))
        (offset,) = await self.output.append(self._checkpoints, partition, [record])
        return offset

    async def _replay(
        self, reader: LogReader, ownership: Ownership, found: Checkpoints, bank: Bank
    ) -> ModelCursor:
        first, end = await reader.bounds(self._windows, ownership.partition)
        marker = found.marker()
        start = replay_start(marker, first)
        taken: dict[str, NodeCheckpoint] = {}
        begun: dict[str, tuple[Counters, Counters]] = {}
        lost: dict[str, Counters] = {}
        rebuilt: dict[str, Counters] = {}
        for number, (node, fit) in enumerate(found.fit().items()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            # The log was measured after the checkpoints were read: what covers more is no truth.
            ahead, fit = fit, [checkpoint for checkpoint in fit if checkpoint.covers <= end]
            if not fit:
                before = ahead[0].counters
                begun[node] = before, Counters(lost=before.applied + before.lost)
                log.error("checkpoint covers more than the log has, the node's models begin anew "
                          "and are marked", node=node)  # fmt: skip
                continue
            try:
                if checkpoint := restore(bank, node, fit):
                    taken[node] = checkpoint
            except CheckpointLayoutError as error:
                # Models of another layout begin anew from all that the log still has.
                start, rebuilt[node] = first, fit[0].counters
                REBUILT.inc()
                log.warning("models change their layout and are rebuilt from the whole log",
                            node=node, error=error.message)  # fmt: skip
            except CheckpointError as error:
                # Replaying days for one damaged node would stop all others: it is marked instead.
                begun[node] = fit[0].counters, Counters(lost=max(fit[0].covers - first, 1))
                REBUILT.inc()
                log.error("checkpoint is damaged, the node's models begin anew and are marked",
                          node=node, error=error.message)  # fmt: skip
        for node, before in (marker.left_out if marker else {}).items():
            if node not in taken.keys() | rebuilt.keys() | begun.keys():
                begun[node] = before, Counters(lost=before.applied + before.lost)
                log.error("checkpoint was larger than a record may be, the node's models begin "
                          "anew and are marked", node=node)  # fmt: skip
        if rebuilt:
            # The log is replayed from its beginning, for these too.
            rebuilt |= {node: before for node, (before, _) in begun.items()}
        else:
            lost = {node: marked for node, (_, marked) in begun.items()}
        if start > end:
            raise _made_anew(self._windows, ownership.partition, end, start)
        model = ModelCursor(
            ownership, start, bank, self.output, self.model_rules,
            reports={node: _report(checkpoint) for node, checkpoint in taken.items()},
            counters=lost | {node: checkpoint.counters for node, checkpoint in taken.items()},
        )  # fmt: skip
        if first > start:
            self._mark_lost(model, first - start)
        covers = {node: checkpoint.covers for node, checkpoint in taken.items()}
        await self._apply(reader, model, max(first, start), end, covers)
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
        await self._apply(reader, model, max(first, model.next_offset), end, {})
        await _report_replayed(model)
        return model

    async def _apply(
        self,
        reader: LogReader,
        model: ModelCursor,
        start: int,
        end: int,
        covers: Mapping[str, int],
    ) -> None:
        partition, said = model.ownership.partition, self.clock.monotonic()
        async for records in reader.read(self._windows, partition, start, end):
            model.replay(records, covers)
            REPLAYED.inc(len(records))
            if self.clock.monotonic() - said > _SAY_EVERY_SECONDS:
                said = self.clock.monotonic()
                log.info("replaying the log", partition=partition, offset=model.next_offset,
                         end=end)  # fmt: skip
        model.next_offset = max(model.next_offset, end)

    def _mark_rebuilt(self, model: ModelCursor, node: str, before: Counters) -> None:
        """Say what a node that is rebuilt lost: of what `before` counted, what the log lacks."""
        now = model.counters.get(node)
        if now is None:
            if node not in model.reports:
                self._depart(model, node)
        elif (missing := before.applied - now.applied) > 0:
            LOST.inc(missing)
            model.lose(node, before.lost + missing)
            log.error("a rebuilt node lacks the windows that retention removed, and is marked",
                      node=node, windows=missing)  # fmt: skip

    def _depart(self, model: ModelCursor, node: str) -> None:
        """Nobody would ever take back what was published of a node without a window."""
        model.reports[node] = None
        log.error("the log has nothing to rebuild a node from: it departs", node=node)

    def _mark_lost(self, model: ModelCursor, lost: int) -> None:
        LOST.inc(lost)
        log.error("retention removed windows before they were applied; models are marked",
                  partition=model.ownership.partition, windows=lost)  # fmt: skip
        for node, counters in model.counters.items():
            model.counters[node] = msgspec.structs.replace(counters, lost=counters.lost + lost)

    async def _join_start(
        self, reader: LogReader, partition: int, model: ModelCursor, before: int
    ) -> int:
        first, end = await reader.bounds(self._samples, partition)
        start = max(join_start(model, first), before)
        if start > end:
            raise _made_anew(self._samples, partition, end, start)
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
    """Where the join goes on: behind the highest sample that is in the log, if there is any."""
    return first if model.joined < 0 else model.joined + 1


def _made_anew(topic: str, partition: int, end: int, known: int) -> StateError:
    return StateError(
        f"{topic}[{partition}] ends at offset {end}, but offset {known} is known of it",
        hint="the topic was made anew: delete all topics of this prefix, or use another prefix",
    )


async def _report_replayed(model: ModelCursor) -> None:
    left = True
    while left:
        left = model.report_replayed(_AT_ONCE)
        await asyncio.sleep(0)


def _report(checkpoint: NodeCheckpoint) -> NodeReport | None:
    state = checkpoint.node_state
    return None if state is None else NodeReport(checkpoint.prediction, state, checkpoint.resources)
