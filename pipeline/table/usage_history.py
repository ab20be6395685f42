"""Usage of the last windows of each node, in ring buffers of numpy.

A point per window, in order; 24 bytes per window, however long the extender runs. Beside them are
the predicted peaks of the last day. Belongs to one event loop.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.console.peak_history import PeakHistory
from pipeline.table import limits
from pipeline.topics.codec import Record
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.result_header import Position

COLUMNS: Final = ("end_seconds", "cpu_cores", "memory_bytes")
_NOWHERE: Final[Position] = (-1, -1)
_NO_PEAKS: Final[Mapping[str, Usage]] = {}


class UsagePoint(Record, frozen=True, kw_only=True):
    """The fields of a `NodeStateRecord` that the history reads."""

    node: str
    as_of: str
    generation: int
    offset: int
    usage: Usage = Usage()
    predictor: str = ""
    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)

    @property
    def peaks_by_rank(self) -> dict[str, Usage]:
        """The peaks, that of the deciding predictor first: of many not all are kept."""
        deciding = self.peaks.get(self.predictor)
        return self.peaks if deciding is None else {self.predictor: deciding} | self.peaks


class Series(NamedTuple):
    """Windows of a node, oldest first: their ends and average usage, (points,); NaN is unknown."""

    end_seconds: FloatArray
    cpu_cores: FloatArray
    memory_bytes: FloatArray

    def between(self, first_seconds: float, last_seconds: float) -> "Series":
        """The windows that ended in this range."""
        ends = self.end_seconds
        inside = (ends >= first_seconds) & (ends <= last_seconds)
        return Series(*(values[inside] for values in self))


class History:
    """Series by node, of at most `windows` windows; `peaks` has their steps of predicted peaks."""

    def __init__(self, windows: int = limits.POINTS) -> None:
        self.windows = windows
        self.peaks = PeakHistory()
        self._clear()

    def _clear(self) -> None:
        self._rows: dict[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._free: list[int] = []
        self._points = np.full((limits.FIRST_ROWS, len(COLUMNS), self.windows), np.nan)
        self._newest = np.full(limits.FIRST_ROWS, -1, np.int64)  # position of the newest point

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, node: str) -> Series | None:
        """The windows of a node, or None if the node is unknown."""
        row = self._rows.get(node)
        if row is None:
            return None
        # The position after the newest has the oldest point, or none yet.
        in_order = np.roll(self._points[row], -(int(self._newest[row]) + 1), axis=1)
        return Series(*in_order[:, ~np.isnan(in_order[0])])

    def put(
        self,
        node: str,
        end_seconds: float,
        usage: Usage,
        position: Position = _NOWHERE,
        peaks: Mapping[str, Usage] = _NO_PEAKS,
    ) -> bool:
        """Take the usage of the window at `position` in the log, and the peaks that were predicted
        with it; False if it is not newer than the newest."""
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = self._new_row()
        newest = int(self._newest[row])
        if newest >= 0 and not end_seconds > self._points[row, 0, newest]:
            return False
        column = (newest + 1) % self.windows
        self._points[row, :, column] = (
            end_seconds, _known(usage.cpu_cores), _known(usage.memory_bytes),
        )  # fmt: skip
        self._newest[row] = column
        self._positions[node] = position
        self.peaks.put(node, end_seconds, usage, peaks)
        return True

    def drop(self, node: str, position: Position | None = None) -> bool:
        """Remove a node (a tombstone at this position); False if its newest window is later."""
        if position is not None and position < self._positions.get(node, _NOWHERE):
            return False
        self._positions.pop(node, None)
        self.peaks.drop(node)
        row = self._rows.pop(node, None)
        if row is not None:
            self._points[row], self._newest[row] = np.nan, -1
            self._free.append(row)
        return True

    def adopt(self, other: "History") -> None:
        """Become `other` in one step; `other` gets empty."""
        self.windows = other.windows
        self._rows, self._free, self._positions = other._rows, other._free, other._positions
        self._points, self._newest = other._points, other._newest
        self.peaks.adopt(other.peaks)
        other._clear()

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        row = len(self._rows)
        if row >= len(self._newest):
            self._points = np.concatenate([self._points, np.full_like(self._points, np.nan)])
            self._newest = np.concatenate([self._newest, np.full_like(self._newest, -1)])
        return row


def _known(amount: float | None) -> float:
    """The amount; NaN if it is unknown or impossible."""
    return amount if amount is not None and 0.0 <= amount < np.inf else np.nan
