"""Checkpoints, written in rounds: the exact state of every node, then a marker.

A slice of nodes is captured without an await, so it belongs to one offset of the log, and between
two publications, so that a replay from it finds every change of an alert that is not delivered. The
marker is
written after all slices were delivered, and records of older epochs are deleted after the marker.
So the highest epoch with a marker always leads to a complete set, whenever the worker is killed.
Rounds are spread over their interval, because all nodes at once would delay windows for seconds.
"""

from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager

import msgspec

from pipeline.agents.shard import Shard
from pipeline.clock import Clock
from pipeline.kafka.producer import LARGEST_VALUE_BYTES, Keyed, Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter, histogram
from pipeline.topics.checkpoints import NodeCheckpoint, RoundMarker, marker_key, node_key
from pipeline.topics.codec import encode_pack

log = get_logger(__name__)

OVERSIZED = counter(
    "worker_oversized_checkpoints", "Nodes whose state exceeds the record limit, not written."
)
ROUNDS = counter("worker_checkpoint_rounds", "Completed rounds of checkpoints.")
ROUND_SECONDS = histogram(
    "worker_checkpoint_round_seconds", "Duration of a round.", buckets=(0.1, 1, 10, 60, 300, 1800)
)
CHECKPOINT_BYTES = counter("worker_checkpoint_bytes", "Bytes of checkpoints written.")

SLICE = 50
"""Nodes captured at once. Nothing else runs meanwhile, 60 ms at 100 pods per node."""


class CheckpointRounds:
    """Writes the checkpoints of one shard, and deletes its `stale_keys` after the first round."""

    def __init__(self, shard: Shard, output: Producer, topic: str, clock: Clock) -> None:
        self._model = shard.model
        self._join = shard.join
        self._saving = shard.saving
        self._output = output
        self._topic = topic
        self._stale = list(shard.stale_keys)
        self._clock = clock
        self._written: set[str] = set()
        self._number = 0

    async def run(self, interval_seconds: float, first_after_seconds: float) -> None:
        """Write a round per interval while owned, spread over nine tenths of the interval."""
        await self._clock.sleep(first_after_seconds)
        while self._model.owned:
            began = self._clock.monotonic()
            slices = max(1, -(-len(self._model.bank.nodes) // SLICE))
            await self.write(0.9 * interval_seconds / slices)
            duration = self._clock.monotonic() - began
            ROUND_SECONDS.observe(duration)
            await self._clock.sleep(interval_seconds - duration)

    async def write(self, pause_seconds: float = 0.0) -> None:
        """Write one round, with a pause between slices.

        With a pause, each slice waits for publications in progress; without one, nothing may be
        published meanwhile.
        """
        self._number += 1
        epoch, partition = self._model.ownership.epoch, self._model.ownership.partition
        if pause_seconds:
            await self._model.idle()
        resume = self._model.next_offset
        generation, joined = self._model.generation, self._joined
        nodes, before = self._model.bank.nodes, dict(self._model.counters)
        # Their checkpoints were unusable, and no window came since: their mark must not be lost.
        left_out = {node: before[node] for node in before if self._model.bank.end_ms(node) is None}
        written: set[str] = set()
        for start in range(0, len(nodes), SLICE):
            if start:
                await self._clock.sleep(pause_seconds)
            async with self._saving_between_publications(waits=pause_seconds > 0):
                if not self._is_valid(generation, joined):
                    return
                records = self._capture(nodes[start : start + SLICE])
                fitting = {node: record for node, record in records.items() if fits(record)}
                left_out |= {node: before[node] for node in records.keys() - fitting}
                written.update(fitting)
                await self._send(list(fitting.values()))
        async with self._saving:
            if not self._is_valid(generation, joined):
                return
            self._written |= written
            present = set(self._model.bank.nodes)
            remaining = len(written & present)
            # Deleted after the marker. It counts those of nodes that depart while it is written.
            departed = self._written - present
            await self._send(self._model.failures.take_records(epoch))
            ends = (self._model.bank.end_ms(node) or 0 for node in present)
            await self._model.departed.write(max(ends, default=0), self._send)
            marker = RoundMarker(
                epoch=epoch, round=self._number, generation=generation, resume=resume,
                joined=joined, nodes=remaining, rejoined_from=self._model.rejoined_from,
                left_out=left_out,
            )  # fmt: skip
            await self._send([Keyed(marker_key(epoch), encode_pack(marker))])
            ROUNDS.inc()
            log.info("checkpoint round complete", partition=partition, epoch=epoch,
                     round=self._number, nodes=remaining, resume=resume)  # fmt: skip
            self._model.failures.round_completed(resume)
            await self._clean(departed)

    @property
    def _joined(self) -> int:
        # The join may be further than the models: refused samples leave no window.
        return max(self._model.joined, self._join.next_offset - 1)

    @asynccontextmanager
    async def _saving_between_publications(self, *, waits: bool) -> AsyncIterator[None]:
        """Hold `saving`, taken while nothing was being published if it `waits` for that. Who holds
        `busy` may want `saving`, so `busy` is never awaited under it."""
        while True:
            if waits:
                await self._model.idle()
            async with self._saving:
                if waits and self._model.busy.locked():
                    continue
                yield
                return

    def _is_valid(self, generation: int, joined: int) -> bool:
        """Whether a round that began with these may go on: owned, no log truncated since, and all
        events delivered, which a replay would not find again."""
        unchanged = self._model.generation == generation and self._joined >= joined
        return self._model.owned and unchanged and not self._model.events

    def _capture(self, nodes: Sequence[str]) -> dict[str, Keyed]:
        """Encode the checkpoints of those of `nodes` that have a window."""
        model = self._model
        records = {}
        for node in nodes:
            if model.bank.end_ms(node) is None:
                continue
            report = model.reports.get(node)
            checkpoint = NodeCheckpoint(
                node=node,
                epoch=model.ownership.epoch,
                round=self._number,
                generation=model.generation,
                covers=model.next_offset,
                state=model.bank.encode_state(node),
                counters=model.counters[node],
                prediction=report.prediction if report else None,
                node_state=report.node_state if report else None,
                resources=report.resources if report else None,
                retracted_ms=model.retracted.get(node),
            )
            records[node] = encode_checkpoint(checkpoint)
        return records

    async def _clean(self, departed: Set[str]) -> None:
        """Delete checkpoints and skips of older epochs, and the checkpoints of `departed` nodes."""
        epoch = self._model.ownership.epoch
        keys = [*self._stale, *(node_key(node, epoch) for node in sorted(departed))]
        self._stale.clear()
        self._written -= departed
        await self._send([Keyed(key, None) for key in keys])

    async def _send(self, records: Sequence[Keyed]) -> None:
        await self._output.append(self._topic, self._model.ownership.partition, records)
        CHECKPOINT_BYTES.inc(sum(len(value or b"") for _, value in records))


def encode_checkpoint(checkpoint: NodeCheckpoint) -> Keyed:
    """Encode the record of a checkpoint; without the prediction if it would exceed the limit."""
    value = encode_pack(checkpoint)
    if len(value) > LARGEST_VALUE_BYTES:
        # The prediction is also in its topic; the state is nowhere else.
        value = encode_pack(msgspec.structs.replace(checkpoint, prediction=None))
    return Keyed(node_key(checkpoint.node, checkpoint.epoch), value)


def fits(record: Keyed) -> bool:
    """Whether a record is within the limit; count and log one that is not."""
    size = len(record.value or b"")
    if size <= LARGEST_VALUE_BYTES:
        return True
    OVERSIZED.inc()
    log.error(
        "checkpoint exceeds the record limit, not writing it", key=record.key.decode(), bytes=size
    )
    return False
