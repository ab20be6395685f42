"""Histories of workloads from the checkpoints of all nodes, and which of them are to be published.

A function of checkpoints and of what is published: two workers that publish at once, or one that
restarted, write the same.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from pipeline.errors import CheckpointError
from pipeline.processors.calibrated.node_pools import NodePools
from pipeline.processors.model import state_codec
from pipeline.topics.workload_histories import (
    HOUR_MS,
    LONGEST_MS,
    HistoryHours,
    WorkloadHistoryRecord,
    has_history_key,
)
from pipeline.topics.workloads import Workload

MOST_WORKLOADS: Final = 20_000
"""Workloads with a record: about 15 MB on the topic, which every worker reads and remembers."""
RENEWAL_MS: Final = 6 * HOUR_MS
"""A history is published anew when it has grown by so much: days look alike."""
_SHORTER_MS: Final = 24 * HOUR_MS
"""A shorter history replaces a longer one that is older by so much."""
_COLUMN: Final = "calibrated_pools"

Histories = dict[Workload, WorkloadHistoryRecord]


class WorkloadHistories:
    """The longest history of each workload over nodes, which are added in any order. `newest_ms` is
    the end of the newest window of any node."""

    def __init__(self) -> None:
        self.records: Histories = {}
        self.newest_ms = 0

    def add(self, node: str, data: bytes) -> None:
        """Add the model state of a node. Raises CheckpointError, and adds nothing, if it is
        damaged."""
        state = state_codec.decode(data)
        pools = _pools(state.node_columns.get(_COLUMN), node)
        self.newest_ms = max(self.newest_ms, state.end_ms)
        if pools is None:
            return
        for workload, cpu, memory in pools.histories(state.workloads):
            if not has_history_key(workload):
                continue
            old = self.records.get(workload)
            self.records[workload] = WorkloadHistoryRecord(
                namespace=workload.namespace,
                kind=workload.kind,
                name=workload.name,
                cpu=_longer(None if old is None else old.cpu, cpu),
                memory=_longer(None if old is None else old.memory, memory),
            )
        if len(self.records) > 2 * MOST_WORKLOADS:
            self.records = _newest(self.records, self, {})


def due_histories(
    known: Mapping[Workload, WorkloadHistoryRecord], histories: WorkloadHistories
) -> dict[Workload, WorkloadHistoryRecord | None]:
    """What is to be published where the records `known` are; None is a tombstone.

    A workload that no node has any more keeps its record for as long as a pod could begin with it:
    it may be between two nodes, or its node's checkpoint missing. Without any checkpoint that can
    be read, as after an upgrade or with a recreated topic, no record has expired.
    """
    newest_ms = histories.newest_ms
    wanted = {
        workload: record
        for workload, record in known.items()
        if not newest_ms or abs(newest_ms - record.at_ms) <= LONGEST_MS
    }
    for workload, record in histories.records.items():
        old = wanted.get(workload)
        if old is None or _replaces(record, old):
            wanted[workload] = record
    wanted = _newest(wanted, histories, known)
    changed: dict[Workload, WorkloadHistoryRecord | None] = dict.fromkeys(
        sorted(known.keys() - wanted.keys())
    )
    changed |= {w: wanted[w] for w in sorted(wanted) if wanted[w] is not known.get(w)}
    return changed


def _pools(packed: bytes | None, node: str) -> NodePools | None:
    if packed is None:
        return None
    try:
        (pools,) = msgspec.msgpack.decode(packed, type=tuple[bytes | None])
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"pools of node {node!r:.100} are damaged: {error}") from error
    return None if pools is None else NodePools.restored(pools)


def _longer(one: HistoryHours | None, other: HistoryHours | None) -> HistoryHours | None:
    """The longer history, the newer of equally long ones, whatever their order."""
    both = [each for each in (one, other) if each is not None]
    return max(both, key=lambda h: (len(h.hours), h.until_ms, h.highest, h.hours), default=None)


def _length(record: WorkloadHistoryRecord) -> int:
    return sum(len(own.hours) for own in (record.cpu, record.memory) if own is not None)


def _replaces(new: WorkloadHistoryRecord, old: WorkloadHistoryRecord) -> bool:
    apart = abs(new.at_ms - old.at_ms)
    return apart >= (RENEWAL_MS if _length(new) >= _length(old) else _SHORTER_MS)


def _newest(
    records: Histories,
    histories: WorkloadHistories,
    known: Mapping[Workload, WorkloadHistoryRecord],
) -> Histories:
    """At most `MOST_WORKLOADS` of the records: those of workloads that ran within `RENEWAL_MS`, and
    so on; among these first the `known` ones, or surplus ones would take turns with them; then the
    newest, then the longest."""
    if len(records) <= MOST_WORKLOADS:
        return records

    def rank(workload: Workload) -> tuple[int, bool, int, int, Workload]:
        # That of a workload that runs may not be due yet.
        newest = histories.records.get(workload, records[workload])
        age = (histories.newest_ms - newest.at_ms) // RENEWAL_MS
        return age, workload not in known, -newest.at_ms, -_length(newest), workload

    return {workload: records[workload] for workload in sorted(records, key=rank)[:MOST_WORKLOADS]}
