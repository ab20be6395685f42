"""Read a partition of `checkpoints`, and select the records that models may start from.

Let E be the highest epoch with a marker, and X the offset from which its replay starts. Usable are
the checkpoints of epoch E or higher that cover at least X: one that covers less would miss windows
that the replay skips. The one with the highest coverage is preferred, because it leaves the least
to replay. Checkpoints of an epoch above E belong to a round that was interrupted; each is exact for
its own node.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pipeline.agents.refusals import Refuse
from pipeline.errors import CheckpointError, CheckpointLayoutError, RecordError
from pipeline.kafka.partition_log import LogReader, LogRecord
from pipeline.logs import get_logger
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.state_codec import is_damaged
from pipeline.processors.model.workload_models import RETAINED_MS
from pipeline.topics.checkpoints import (
    FIRST_GENERATION,
    IMPORT,
    Claim,
    DepartedNode,
    KeyKind,
    NodeCheckpoint,
    RoundMarker,
    SkippedWindow,
    check_payload,
    departed_key,
    parse_key,
)
from pipeline.topics.codec import decode_pack

log = get_logger(__name__)


@dataclass(slots=True)
class PartitionCheckpoints:
    """The content of a partition of `checkpoints`.

    `nodes` has the newest readable record by node and epoch, `unreadable` the epochs whose newest
    record is not readable by node. `keys` are the keys of readable records of older epochs, and of
    outdated departed nodes. `claims` are the offsets of claims, `skips` the nodes of skipped
    windows by epoch and offset. `departed` are the states of departed nodes by node and end of the
    last window, unless they are outdated. `topic_ids` are the ids of topics by epoch and name.
    `group` is the consumer group of the last claim, `imported` the epoch of the last import.
    """

    markers: dict[int, RoundMarker] = field(default_factory=dict)
    nodes: dict[str, dict[int, NodeCheckpoint]] = field(default_factory=dict)
    unreadable: dict[str, set[int]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    skips: dict[tuple[int, int], str] = field(default_factory=dict)
    claims: list[int] = field(default_factory=list)
    departed: dict[tuple[str, int], bytes] = field(default_factory=dict)
    topic_ids: dict[int, dict[str, str]] = field(default_factory=dict)
    group: str = ""
    imported: int = -1

    def marker(self) -> RoundMarker | None:
        """Return the marker of the highest epoch."""
        return self.markers[max(self.markers)] if self.markers else None

    @property
    def joined(self) -> int:
        """The highest sample offset that the join had processed when the round started."""
        marker = self.marker()
        return -1 if marker is None else marker.joined

    @property
    def cuts(self) -> tuple[int, int]:
        """`ModelCursor.cuts` as of the round."""
        marker = self.marker()
        return (marker.generation, marker.rejoined_from) if marker else (FIRST_GENERATION, 0)

    @property
    def resume(self) -> int:
        """The offset of `windows` from which the round replays, 0 without a round."""
        marker = self.marker()
        return marker.resume if marker else 0

    @property
    def skipped(self) -> dict[int, str]:
        """The nodes of skipped windows by offset."""
        return {offset: node for (_, offset), node in self.skips.items()}

    @property
    def end(self) -> int:
        """The end of `windows` as far as the round, its checkpoints and skips know it."""
        covers = [checkpoint.covers for each in self.usable().values() for checkpoint in each]
        skipped = [offset + 1 for offset in self.skipped]
        return max([*covers, *skipped, self.resume])

    def has_import_since(self, epoch: int) -> bool:
        """Return whether the highest epoch is an import that is newer than `epoch`."""
        marker = self.marker()
        return marker is not None and marker.epoch == self.imported > epoch

    @property
    def missing(self) -> int:
        """The number of checkpoints that the marker counted and that are not there any more."""
        marker = self.marker()
        if marker is None:
            return 0
        present = {node for node, epochs in self.unreadable.items() if marker.epoch in epochs}
        for node, by_epoch in self.nodes.items():
            checkpoint = by_epoch.get(marker.epoch)
            if checkpoint is not None and checkpoint.covers >= marker.resume:
                present.add(node)
        return max(marker.nodes - len(present), 0)

    def reset_nodes(self) -> set[str]:
        """Return the nodes without a usable checkpoint whose record is not readable."""
        marker = self.marker()
        if marker is None:
            return set()
        unreadable = {
            node for node, epochs in self.unreadable.items() if max(epochs) >= marker.epoch
        }
        return unreadable - self.usable().keys()

    def usable(self) -> dict[str, list[NodeCheckpoint]]:
        """Return the usable checkpoints by node, the one with the highest coverage first."""
        marker = self.marker()
        if marker is None:
            return {}
        usable: dict[str, list[NodeCheckpoint]] = {}
        for node, by_epoch in self.nodes.items():
            checkpoints = [
                checkpoint
                for epoch, checkpoint in by_epoch.items()
                # A node that departed before the round has an older record only.
                if epoch >= marker.epoch and checkpoint.covers >= marker.resume
            ]
            if checkpoints:
                usable[node] = sorted(checkpoints, key=lambda checkpoint: -checkpoint.covers)
        return usable


async def read_checkpoints(
    reader: LogReader, topic: str, partition: int, own_epoch: int, refuse: Refuse
) -> PartitionCheckpoints:
    """Read a partition of `checkpoints`; pass invalid records to `refuse`.

    `keys` of the result are the keys of epochs below `own_epoch`. Unreadable and damaged records
    are not among them, so that nobody deletes them: another release may be able to read them.
    """
    content = PartitionCheckpoints()
    keys: dict[bytes, None] = {}
    refused: dict[bytes | None, tuple[KeyKind | None, int, LogRecord, RecordError]] = {}
    appended_ms = 0
    first, end = await reader.bounds(topic, partition)
    async for records in reader.read(topic, partition, first, end):
        for record in records:
            kind, epoch = None, -1
            key = record.key or b""
            appended_ms = record.appended_ms
            keys.pop(key, None)
            refused.pop(key, None)
            try:
                kind, node, epoch = parse_key(key)
                _remove(content, kind, node, epoch, is_tombstone=record.value is None)
                if record.value is None:
                    continue
                if kind == "claim":
                    claim = decode_pack(Claim, record.value)
                    content.claims.append(record.offset)
                    content.topic_ids[record.offset] = claim.topic_ids
                    content.group = claim.group
                    if claim.member == IMPORT:
                        content.imported = record.offset
                elif kind == "marker":
                    marker = decode_pack(RoundMarker, record.value)
                    check_payload(key, "", marker.epoch, "", epoch)
                    content.markers[epoch] = marker
                elif kind == "skip":
                    skipped = decode_pack(SkippedWindow, record.value)
                    check_payload(key, str(skipped.offset), skipped.epoch, node, epoch)
                    # A paused worker that resumes decides nothing: its successor has. But it may
                    # repeat what an earlier one decided, before it deletes that record.
                    is_newest = epoch >= max(content.claims, default=-1)
                    if is_newest or skipped.offset in content.skipped:
                        content.skips[epoch, skipped.offset] = skipped.node
                elif kind == "departed":
                    departed = decode_pack(DepartedNode, record.value)
                    check_payload(key, departed.node, departed.end_ms, node, epoch)
                    content.departed[node, epoch] = departed.state
                    continue
                else:
                    checkpoint = decode_pack(NodeCheckpoint, record.value)
                    check_payload(key, checkpoint.node, checkpoint.epoch, node, epoch)
                    content.nodes.setdefault(node, {})[epoch] = checkpoint
                # Records of a newer owner must not be deleted.
                is_older = (record.offset if kind == "claim" else epoch) < own_epoch
                if is_older and not (kind == "node" and is_damaged(checkpoint.state)):
                    keys[key] = None
            except RecordError as error:
                refused[key] = kind, epoch, record, error
                if kind == "node":
                    content.unreadable.setdefault(node, set()).add(epoch)
    content.keys = [*keys, *_take_outdated(content, appended_ms)]
    _replace_markers(content, [epoch for kind, epoch, *_ in refused.values() if kind == "marker"])
    marker_epoch = max(content.markers, default=-1)
    # Former owners have refused records of older epochs.
    new = [
        (record, reason)
        for kind, epoch, record, reason in refused.values()
        if kind is None or kind == "claim" or epoch >= marker_epoch
    ]
    if new:
        await refuse(topic, new)
    return content


def _remove(
    content: PartitionCheckpoints, kind: KeyKind, node: str, epoch: int, *, is_tombstone: bool
) -> None:
    """Remove the previous record of a key from `content`."""
    if kind == "marker":
        content.markers.pop(epoch, None)
    elif kind == "skip":
        content.skips.pop((epoch, int(node)), None)
    elif kind == "departed":
        content.departed.pop((node, epoch), None)
    elif kind == "node":
        epochs = content.unreadable.get(node, set())
        epochs.discard(epoch)
        if not epochs:
            content.unreadable.pop(node, None)
        if is_tombstone:
            content.nodes.get(node, {}).pop(epoch, None)


def _take_outdated(content: PartitionCheckpoints, appended_ms: int) -> list[bytes]:
    """Remove departed nodes that were outdated when the last record was appended; return their
    keys.

    Rounds compare with the newest window. A partition whose last node departed has none, but it
    has a marker with every round and a claim with every owner.
    """
    oldest_ms = appended_ms - RETAINED_MS
    outdated = [place for place in content.departed if place[1] < oldest_ms]
    for place in outdated:
        del content.departed[place]
    return [departed_key(*place) for place in outdated]


def _replace_markers(content: PartitionCheckpoints, unreadable: Collection[int]) -> None:
    """Let checkpoints stand in for unreadable markers of their epochs.

    Each checkpoint is exact for its own node, so a replay from the lowest coverage is complete,
    although longer.
    """
    for epoch in unreadable:
        later = [
            checkpoint
            for by_epoch in content.nodes.values()
            for checkpoint in by_epoch.values()
            if checkpoint.epoch >= epoch
        ]
        if all(checkpoint.epoch > epoch for checkpoint in later):
            continue
        resume = min(checkpoint.covers for checkpoint in later)
        content.markers[epoch] = RoundMarker(
            epoch=epoch, round=0, generation=max(checkpoint.generation for checkpoint in later),
            resume=resume, joined=-1, nodes=0,
        )  # fmt: skip
        log.error("round marker is not readable, replaying from the oldest checkpoint",
                  epoch=epoch, resume=resume)  # fmt: skip


def replay_start(marker: RoundMarker | None, first: int) -> int:
    """Return the first offset of `windows` to replay: X, or `first` without a complete round."""
    return first if marker is None else marker.resume


def restore(bank: Bank, node: str, usable: Sequence[NodeCheckpoint]) -> NodeCheckpoint | None:
    """Restore a node from the first intact checkpoint, and return it.

    Raises the `CheckpointError` of the last one if all are damaged.
    """
    for number, checkpoint in enumerate(usable, start=1):
        try:
            bank.restore(node, checkpoint.state)
        except CheckpointError as error:
            if number == len(usable) or isinstance(error, CheckpointLayoutError):
                raise
            log.warning("checkpoint is damaged, using an older one", node=node,
                        error=error.message)  # fmt: skip
        else:
            return checkpoint
    return None
