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
from pipeline.metrics import counter
from pipeline.topics.checkpoints import skip_key

SKIPPED = counter("worker_skipped_windows", "Windows skipped because they failed three times.")

ATTEMPTS: Final = 3
MAX_NODES: Final = 10
"""Nodes of a partition whose windows may be skipped."""
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

    `skipped` has the offsets of skipped windows and `nodes` the names of their nodes, `ranges` the
    offsets of calls that failed during the current load.
    """

    def __init__(self, skipped: Mapping[int, str] | None = None) -> None:
        self.skipped = set(skipped or ())
        self.nodes = set((skipped or {}).values())
        self.ranges: list[range] = []
        self._written: list[int] = []

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

    def add(self, record: LogRecord) -> None:
        """Add a window that is skipped from now on."""
        self.skipped.add(record.offset)
        self.nodes.add(node_of(record))
        self._written.append(record.offset)

    def take_skip_keys(self, epoch: int, resume: int) -> list[bytes]:
        """Forget the skips below the offset `resume`; return the keys of those that this owner has
        written."""
        keys = [skip_key(epoch, offset) for offset in self._written if offset < resume]
        self._written = [offset for offset in self._written if offset >= resume]
        self.skipped = {offset for offset in self.skipped if offset >= resume}
        return keys


def node_of(record: LogRecord) -> str:
    """The node in the key of a record of `windows`."""
    return (record.key or b"").decode(errors="replace")
