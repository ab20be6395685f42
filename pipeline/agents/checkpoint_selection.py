"""What lies in a partition of `checkpoints`, and which of it models may start from.

Owes the rest: the highest epoch E with a marker; X, the offset from which it wants the log
replayed; per node, among records of epoch E or higher that cover at least X, the ones that cover
most first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.agents.cluster_state import Refuse
from pipeline.errors import CheckpointError, CheckpointLayoutError, RecordError
from pipeline.kafka.partition_log import LogReader
from pipeline.logs import get_logger
from pipeline.processors.model.bank import Bank
from pipeline.topics.checkpoints import (
    IMPORT,
    Claim,
    NodeCheckpoint,
    RoundMarker,
    check_payload,
    parse_key,
)
from pipeline.topics.codec import decode_pack

log = get_logger(__name__)


@dataclass(slots=True)
class Checkpoints:
    """What lies in a partition of `checkpoints`: `nodes` by node, newest record of each epoch;
    `claims` are the offsets of claims, `group` is the consumer group of who made the last one,
    `imported` the epoch of the last import."""

    markers: dict[int, RoundMarker] = field(default_factory=dict)
    nodes: dict[str, dict[int, NodeCheckpoint]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    claims: list[int] = field(default_factory=list)
    group: str = ""
    imported: int = -1

    def marker(self) -> RoundMarker | None:
        """The marker of the highest epoch that has one."""
        return self.markers[max(self.markers)] if self.markers else None

    @property
    def joined(self) -> int:
        """The highest sample offset that the join was done with when the round began."""
        marker = self.marker()
        return -1 if marker is None else marker.joined

    def has_import_since(self, epoch: int) -> bool:
        """Whether what leads is an import that the holder of `epoch` does not know."""
        marker = self.marker()
        return marker is not None and marker.epoch == self.imported > epoch

    def fit(self) -> dict[str, list[NodeCheckpoint]]:
        """Per node the checkpoints that it may start from, the one that covers most first."""
        marker = self.marker()
        if marker is None:
            return {}
        found: dict[str, list[NodeCheckpoint]] = {}
        for node, by_epoch in self.nodes.items():
            fit = [
                checkpoint
                for epoch, checkpoint in by_epoch.items()
                # A node that departed before the round began is not in it, but its older record is.
                if epoch >= marker.epoch and checkpoint.covers >= marker.resume
            ]
            if fit:
                found[node] = sorted(fit, key=lambda checkpoint: -checkpoint.covers)
        return found


async def read_checkpoints(
    reader: LogReader, topic: str, partition: int, own_epoch: int, refuse: Refuse
) -> Checkpoints:
    """All that a partition of `checkpoints` holds; what cannot be read goes to `refuse`.

    `keys` are those of epochs below `own_epoch`.
    """
    found = Checkpoints()
    keys: dict[bytes, None] = {}
    first, end = await reader.bounds(topic, partition)
    async for records in reader.read(topic, partition, first, end):
        for record in records:
            key = record.key or b""
            try:
                kind, node, epoch = parse_key(key)
                if record.value is None:
                    keys.pop(key, None)
                    found.nodes.get(node, {}).pop(epoch, None)
                    if kind == "marker":
                        found.markers.pop(epoch, None)
                    continue
                # What a newer owner writes while we read is not ours to delete.
                if (record.offset if kind == "claim" else epoch) < own_epoch:
                    keys[key] = None
                if kind == "marker":
                    marker = decode_pack(RoundMarker, record.value)
                    check_payload(key, "", marker.epoch, "", epoch)
                    found.markers[epoch] = marker
                elif kind == "node":
                    checkpoint = decode_pack(NodeCheckpoint, record.value)
                    check_payload(key, checkpoint.node, checkpoint.epoch, node, epoch)
                    found.nodes.setdefault(node, {})[epoch] = checkpoint
                else:
                    claim = decode_pack(Claim, record.value)
                    found.claims.append(record.offset)
                    found.group = claim.group
                    if claim.member == IMPORT:
                        found.imported = record.offset
            except RecordError as error:
                await refuse(topic, record, error)
    found.keys = list(keys)
    return found


def replay_start(marker: RoundMarker | None, first: int) -> int:
    """Where the replay of `windows` begins: at X, without a complete round at the first record."""
    return first if marker is None else marker.resume


def restore(bank: Bank, node: str, fit: Sequence[NodeCheckpoint]) -> NodeCheckpoint | None:
    """The first of `fit` that can be used; raises the last one's `CheckpointError` if none can."""
    for place, checkpoint in enumerate(fit, start=1):
        try:
            bank.restore(node, checkpoint.state)
        except CheckpointError as error:
            if place == len(fit) or isinstance(error, CheckpointLayoutError):
                raise
            log.warning("checkpoint is damaged, an older one is used", node=node,
                        error=error.message)  # fmt: skip
        else:
            return checkpoint
    return None
