"""Bring the models of a partition to the end of the log of windows.

They begin at the checkpoints, or as an earlier assignment left them, and the windows after that are
replayed. Windows that the log no longer has are counted, and the models are marked.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.agents.checkpoint_selection import PartitionCheckpoints, replay_start
from pipeline.agents.departed_nodes import DepartedNodes
from pipeline.agents.failed_windows import FailedWindows, ReplayAgainError
from pipeline.agents.model_agent import ModelCursor
from pipeline.agents.ownership import Ownership
from pipeline.agents.partition_models import ModelRules, NodeReport
from pipeline.agents.published_results import published_states
from pipeline.agents.replay_windows import encode_replayed, replay
from pipeline.agents.restored_nodes import SLICE, RestoredNodes, restore_nodes
from pipeline.agents.shard import Shard
from pipeline.agents.truncated_logs import mark_truncated
from pipeline.clock import Clock
from pipeline.kafka.partition_log import LogReader
from pipeline.kafka.producer import Producer
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.model.bank import Bank
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.node_state import Counters

log = get_logger(__name__)

REPLAYED = counter("worker_replayed_windows", "Windows replayed during recovery.")
LOST = counter("worker_lost_windows", "Windows that retention removed before they were applied.")

_LOG_SECONDS = 2.0


class WindowsLog(NamedTuple):
    """The log of windows: its first offset and its end; how often it was truncated, this time
    included; and the end of what was joined once more since then."""

    first: int
    end: int
    generation: int
    rejoined_from: int
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class ModelRecovery:
    """Restores the models of partitions. `windows` and `node_states` are the names of topics."""

    output: Producer
    rules: ModelRules
    windows: str
    node_states: str
    clock: Clock

    async def restore(
        self,
        reader: LogReader,
        windows: WindowsLog,
        ownership: Ownership,
        checkpoints: PartitionCheckpoints,
        previous: Shard | None,
        bank: Bank,
    ) -> tuple[ModelCursor, bool]:
        """Bring the models to the end of the log; return also whether those of `previous` are kept,
        instead of the checkpoints."""
        skipped = {
            offset: node
            for offset, node in checkpoints.skipped.items()
            if windows.first <= offset < windows.end
        }
        failures, model = FailedWindows(skipped, checkpoints.resume), None
        is_kept = previous is not None
        if previous is not None:
            failures.nodes |= previous.model.failures.nodes
            previous.model.departed.known |= checkpoints.departed.keys()
            try:
                model = await self._catch_up(reader, windows, ownership, previous.model, failures)
            except ReplayAgainError:
                bank.clear()
                is_kept = False
        while model is None:
            try:
                model = await self._replay(reader, windows, ownership, checkpoints, bank, failures)
            except ReplayAgainError:
                bank.clear()
        failures.ranges.clear()
        return model, is_kept

    async def _replay(
        self,
        reader: LogReader,
        windows: WindowsLog,
        ownership: Ownership,
        checkpoints: PartitionCheckpoints,
        bank: Bank,
        failures: FailedWindows,
    ) -> ModelCursor:
        """Restore the checkpoints and replay the windows after them."""
        first, end = windows.first, windows.end
        nodes = await restore_nodes(bank, checkpoints, first, end)
        start = replay_start(checkpoints.marker(), first)
        if nodes.changed:
            # A round that starts before the log keeps its start: windows were lost in between.
            start = min(start, first)
        start = min(start, end)
        empty = nodes.empty_counters()
        model = ModelCursor(
            ownership, start, bank, self.output, self.rules,
            reports={node: _report(checkpoint) for node, checkpoint in nodes.restored.items()},
            counters=empty | {node: known.counters for node, known in nodes.restored.items()},
            retracted={
                node: known.retracted_ms
                for node, known in nodes.restored.items()
                if known.retracted_ms is not None
            },
            generation=windows.generation,
            rejoined_from=windows.rejoined_from,
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
        windows: WindowsLog,
        ownership: Ownership,
        previous: ModelCursor,
        failures: FailedWindows,
    ) -> ModelCursor:
        """Replay the windows after the models of an earlier assignment."""
        model = ModelCursor(
            ownership, previous.next_offset, previous.bank, self.output, self.rules,
            joined=previous.joined, reports=previous.reports, counters=previous.counters,
            retracted=previous.retracted, failures=failures, departed=previous.departed,
            generation=windows.generation, rejoined_from=windows.rejoined_from,
            events=previous.events,
        )  # fmt: skip
        model.traces |= previous.traces
        first, end = windows.first, windows.end
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
        async for records in reader.read(self.windows, partition, start, end):
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
        topic, partition = self.node_states, model.ownership.partition
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
