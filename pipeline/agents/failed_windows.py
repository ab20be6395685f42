"""Skip windows that cannot be applied, in every replay alike.

Applying windows is a pure function, so a window that makes it fail (a bug, a plugin) would end each
worker that takes the partition over. A failure leaves the models of its call half-changed: the
worker gives up their partitions and ends. The next load replays the windows of the call again, each
alone: the models of its node are saved before and restored after a failure. A window that fails
three times becomes a dead letter, and a record in `checkpoints` says that it is skipped. From then
on windows of its node are applied alone.

If windows of many nodes fail, the fault is not theirs: the worker ends, until it is corrected.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pipeline.kafka.partition_log import LogRecord
from pipeline.kafka.producer import Keyed
from pipeline.metrics import counter
from pipeline.topics.checkpoints import SkippedWindow, skip_key
from pipeline.topics.codec import encode_pack

SKIPPED = counter("worker_skipped_windows", "Windows skipped because they failed three times.")

ATTEMPTS: Final = 3
MAX_NODES: Final = 10
"""Nodes of a partition whose windows may be skipped from one complete round to the next."""
MAX_SKIPPED: Final = 10_000
"""Skipped windows of a partition that are remembered; beyond, the first are forgotten."""
ABSENT: Final = object()
"""Stands in a `SavedNode` for a value that the node does not have."""


class ReplayAgainError(Exception):
    """A replay failed, and `failures` now names the windows to be applied alone."""


class SavedNode(NamedTuple):
    """All that windows of a node change: the state of its models, and its values by name."""

    state: bytes | None
    values: Sequence[Any]


class FailedWindows:
    """The windows of one partition that are skipped or may fail.

    `skipped` has the nodes of skipped windows by offset, as long as the log has them: models of
    another layout are rebuilt from the whole log. Windows of `nodes` are applied alone. `ranges`
    are the offsets of calls that failed during the current load. `resume` is the offset from which
    the last complete round replays.
    """

    def __init__(self, skipped: Mapping[int, str] | None = None, resume: int = 0) -> None:
        self.skipped = dict(skipped or {})
        self.nodes = set(self.skipped.values())
        self.ranges: list[range] = []
        self._resume = resume
        self._inherited = set(self.skipped)
        self._dropped: set[int] = set()

    def concern(self, records: Sequence[LogRecord]) -> bool:
        """Whether any of `records` must be applied alone."""
        return bool(self.nodes or self.ranges) and any(map(self._concerns, records))

    def runs(self, records: Sequence[LogRecord]) -> list[list[LogRecord]]:
        """Split records into runs to be applied together, and single records that may fail."""
        if not (self.nodes or self.ranges):
            return [list(records)] if records else []
        runs: list[list[LogRecord]] = []
        was_alone = True
        for record in records:
            is_alone = self._concerns(record)
            if is_alone or was_alone:
                runs.append([])
            runs[-1].append(record)
            was_alone = is_alone
        return runs

    def _concerns(self, record: LogRecord) -> bool:
        in_range = any(record.offset in offsets for offsets in self.ranges)
        return in_range or node_of(record) in self.nodes

    def are_too_many_with(self, node: str) -> bool:
        """Whether windows of more than `MAX_NODES` nodes failed since the last complete round."""
        recent = {name for offset, name in self.skipped.items() if offset >= self._resume}
        return len(recent | {node}) > MAX_NODES

    def add(self, record: LogRecord) -> None:
        """Add a window that is skipped from now on."""
        self.skipped[record.offset] = node_of(record)
        self.nodes.add(node_of(record))
        if len(self.skipped) > MAX_SKIPPED:
            self._drop([min(self.skipped)])

    def cut(self, end: int) -> None:
        """Drop the skips from the offset `end` on, where the log was truncated."""
        self._drop([offset for offset in self.skipped if offset >= end])

    def _drop(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            del self.skipped[offset]
        self._inherited.difference_update(offsets)
        self._dropped.update(offsets)

    def take_records(self, epoch: int) -> list[Keyed]:
        """Return the records to be written before a marker of `epoch`: skips of earlier epochs,
        which are deleted after it, and tombstones of dropped skips."""
        records = [Keyed(skip_key(epoch, offset), None) for offset in sorted(self._dropped)]
        for offset in sorted(self._inherited):
            skipped = SkippedWindow(
                node=self.skipped[offset], epoch=epoch, offset=offset, error="of an earlier epoch"
            )
            records.append(Keyed(skip_key(epoch, offset), encode_pack(skipped)))
        self._dropped.clear()
        self._inherited.clear()
        return records

    def round_completed(self, resume: int) -> None:
        """Count failing nodes from zero: a round that replays from `resume` is complete."""
        self._resume = resume
        self.nodes = set(self.skipped.values())


def node_of(record: LogRecord) -> str:
    """The node in the key of a record of `windows`."""
    return (record.key or b"").decode(errors="replace")
