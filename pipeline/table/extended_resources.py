"""Allocatable of resources other than cpu and memory, sparse: few nodes have most of them.

Amounts stay in one mapping per node. A column over all nodes is computed when it is first needed,
and updated with each record from then on. So the memory follows the amounts that records state, and
not the number of names times the number of nodes.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.table import limits

_NOTHING: Final[Mapping[str, int]] = {}


class ExtendedResources:
    """Whole amounts by row of the table and resource name; a missing amount is 0."""

    def __init__(self) -> None:
        self._rows: dict[int, Mapping[str, int]] = {}
        self._nodes: Counter[str] = Counter()
        self._columns: dict[str, IntArray] = {}
        self._names: tuple[str, ...] | None = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The resources that most nodes have, sorted: all of them unless there are very many."""
        if self._names is None:
            common = sorted(self._nodes, key=lambda name: (-self._nodes[name], name))
            self._names = tuple(sorted(common[: limits.MAX_RESOURCES]))
        return self._names

    def column(self, name: str, capacity: int) -> IntArray:
        """The amounts of one resource, (capacity,)."""
        column = self._columns.get(name)
        if column is None or len(column) != capacity:
            column = np.zeros(capacity, np.int64)
            if name in self._nodes:
                for row, amounts in self._rows.items():
                    column[row] = _whole(amounts.get(name, 0))
                if name not in self._columns and len(self._columns) >= limits.MAX_RESOURCES:
                    del self._columns[next(iter(self._columns))]
                self._columns[name] = column
        return column

    def put(self, row: int, amounts: Mapping[str, int]) -> None:
        """Replace all amounts of a row."""
        before = self._rows.pop(row, _NOTHING)
        if amounts:
            self._rows[row] = amounts
        if before.keys() != amounts.keys():
            self._names = None
            self._nodes.update(amounts.keys() - before.keys())
            for name in before.keys() - amounts.keys():
                self._nodes[name] -= 1
                if not self._nodes[name]:
                    del self._nodes[name]
                    self._columns.pop(name, None)
        for name, column in self._columns.items():
            if row < len(column):
                column[row] = _whole(amounts.get(name, 0))


def _whole(amount: int) -> int:
    return min(max(amount, 0), limits.LARGEST_WHOLE)
