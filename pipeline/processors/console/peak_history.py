"""What the predictions of each node said over the last day, in ring columns of numpy.

Time is cut into steps of five minutes, on the grid of UTC. A step has each predictor's peak as it
was first known in the step, so that nothing is in it that was predicted later, and the highest
average usage of a window that ended in it. NaN is unknown.

Memory: 2,304 bytes a node for usage and for each predictor. With the two predictors that run by
default, 10,000 nodes take 71 MB (`tests/processors/console/test_peak_history.py` measures it);
with `MOST_PREDICTORS` it would be 213 MB. Belongs to one event loop.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.topics.resource_amounts import Usage

STEP_SECONDS: Final = 300
STEPS: Final = 288
"""A day: the usual horizon of a peak, so that usage can be held against all of it."""
MOST_PREDICTORS: Final = 8
"""Predictors with a history: two run by default, and there are thirteen."""
MAKES_ROOM_SECONDS: Final = 3600
"""Without a prediction for so long a predictor makes room for another: settings have changed, and
the present ones are of more use than all of yesterday's."""
LONGEST_NAME: Final = 253
_LARGEST: Final = 2.0**53
"""More cores or bytes than any node has: a larger amount is unknown."""
_NODES_A_BLOCK: Final = 256

_Steps = npt.NDArray[np.float32]


class PeakSteps(NamedTuple):
    """Steps of a node, the oldest first and without leaving any out: when each began, in seconds
    since 1970, (steps,); usage and the peak of each predictor, (2, steps), cores and bytes."""

    begin_seconds: FloatArray
    usage: FloatArray
    peaks: dict[str, FloatArray]

    def between(self, first_seconds: float, last_seconds: float) -> "PeakSteps":
        """The steps with any part in this range."""
        begins = self.begin_seconds
        inside = (begins > first_seconds - STEP_SECONDS) & (begins <= last_seconds)
        peaks = {name: peak[:, inside] for name, peak in self.peaks.items()}
        return PeakSteps(begins[inside], self.usage[:, inside], peaks)


class PeakHistory:
    """Steps by node, of at most `steps` steps and `MOST_PREDICTORS` predictors."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self._clear()

    def _clear(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._ends = np.full(_NODES_A_BLOCK, -np.inf)  # of the newest window of each row
        self._usage = _Column(self.steps)
        self._peaks: dict[str, _Column] = {}

    def __len__(self) -> int:
        """Nodes."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        return self._ends.nbytes + sum(column.nbytes for column in self._columns())

    def get(self, node: str) -> PeakSteps | None:
        """The steps of a node since the first that is known; None if the node is unknown."""
        row = self._rows.get(node)
        if row is None:
            return None
        newest = self._step(self._ends[row])
        steps = np.arange(newest - self.steps + 1, newest + 1)
        slots = steps % self.steps
        usage = self._usage.of(row)[:, slots]
        rings = {name: column.of(row) for name, column in self._peaks.items() if column.has(row)}
        peaks = {name: ring[:, slots] for name, ring in rings.items() if not np.isnan(ring).all()}
        is_known = ~np.isnan(np.concatenate([usage, *peaks.values()])).all(axis=0)
        first = int(is_known.argmax()) if is_known.any() else self.steps
        return PeakSteps(
            (steps[first:] * STEP_SECONDS).astype(np.float64),
            usage[:, first:].astype(np.float64),
            {name: peaks[name][:, first:].astype(np.float64) for name in sorted(peaks)},
        )

    def put(self, node: str, end_seconds: float, usage: Usage, peaks: Mapping[str, Usage]) -> bool:
        """Take usage of a window and the peaks that were predicted at its end; False if the window
        is not newer than the newest, or has no end. Of more predictors than `MOST_PREDICTORS` the
        first of `peaks` are kept."""
        row = self._rows.get(node)
        newest = -math.inf if row is None else float(self._ends[row])
        if not newest < end_seconds < _LARGEST:
            return False
        if row is None:
            row = self._rows[node] = self._new_row()
        step, slot = self._step(end_seconds), self._step(end_seconds) % self.steps
        if newest > -math.inf and (last := self._step(newest)) < step:
            self._forget(row, np.arange(max(last, step - self.steps) + 1, step + 1) % self.steps)
        self._ends[row] = end_seconds
        highest = self._usage.of(row)
        highest[:, slot] = np.fmax(highest[:, slot], _amounts(usage))
        for name, peak in peaks.items():
            if (column_of := self._column(name, step)) is not None:
                values = column_of.of(row)
                unknown = np.isnan(values[:, slot])
                values[unknown, slot] = _amounts(peak)[unknown]
        return True

    def drop(self, node: str) -> None:
        """Forget a node."""
        row = self._rows.pop(node, None)
        if row is not None:
            self._ends[row] = -np.inf
            self._forget(row, np.arange(self.steps))
            self._free.append(row)

    def adopt(self, other: "PeakHistory") -> None:
        """Become `other` in one step; `other` gets empty."""
        self.steps = other.steps
        self._rows, self._free, self._ends = other._rows, other._free, other._ends
        self._usage, self._peaks = other._usage, other._peaks
        other._clear()

    def _step(self, end_seconds: float) -> int:
        return math.floor(end_seconds / STEP_SECONDS)

    def _columns(self) -> "tuple[_Column, ...]":
        return self._usage, *self._peaks.values()

    def _forget(self, row: int, slots: IntArray) -> None:
        for column in self._columns():
            if column.has(row):
                column.of(row)[:, slots] = np.nan

    def _column(self, predictor: str, step: int) -> "_Column | None":
        """The column of a predictor that said something in this step; None if there are too
        many."""
        column = self._peaks.get(predictor)
        if column is None:
            if len(predictor) > LONGEST_NAME:
                return None
            if len(self._peaks) >= MOST_PREDICTORS:
                oldest = min(self._peaks, key=lambda name: self._peaks[name].newest_step)
                if self._peaks[oldest].newest_step > step - MAKES_ROOM_SECONDS // STEP_SECONDS:
                    return None
                del self._peaks[oldest]
            column = self._peaks[predictor] = _Column(self.steps)
        column.newest_step = max(column.newest_step, step)
        return column

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        row = len(self._rows)
        if row >= len(self._ends):
            self._ends = np.concatenate([self._ends, np.full_like(self._ends, -np.inf)])
        return row


class _Column:
    """A ring of steps for each row, in blocks: a column that grows copies nothing, and a block is
    made once one of its nodes has something."""

    def __init__(self, steps: int) -> None:
        self.newest_step = -1
        self._steps = steps
        self._blocks: dict[int, _Steps] = {}

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def has(self, row: int) -> bool:
        """Whether there is a block for this row."""
        return row // _NODES_A_BLOCK in self._blocks

    def of(self, row: int) -> _Steps:
        """The steps of a row, (2, steps); to be written into."""
        number, index = divmod(row, _NODES_A_BLOCK)
        block = self._blocks.get(number)
        if block is None:
            shape = (_NODES_A_BLOCK, 2, self._steps)
            block = self._blocks[number] = np.full(shape, np.nan, np.float32)
        values: _Steps = block[index]
        return values


def _amounts(usage: Usage) -> _Steps:
    """Cores and bytes, (2,); NaN if unknown or impossible."""
    amounts = (usage.cpu_cores, usage.memory_bytes)
    return np.array(
        [
            math.nan if amount is None or not 0.0 <= amount <= _LARGEST else amount
            for amount in amounts
        ],
        np.float32,
    )
