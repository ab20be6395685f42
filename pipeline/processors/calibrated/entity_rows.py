"""Rows for the pods or nodes of a pool, found by id."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, IntArray
from pipeline.processors.model.column_store import Column, Columns

FREE: Final = -1
"""Id of a row that no entity has. Ids of entities are not negative."""


class EntityRows:
    """Columns with a row for each entity. A row that was given back is used again."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = Columns({"id": Column((), "<i8", FREE), **columns})
        self._sorted_ids: IntArray = np.zeros(0, np.int64)
        self._sorted_rows: IntArray = np.zeros(0, np.int64)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        """Number of entities."""
        return len(self._sorted_ids)

    @property
    def rows(self) -> IntArray:
        """Rows of all entities, in the order of their ids."""
        return self._sorted_rows

    def find(self, ids: IntArray) -> IntArray:
        """Row of each id, int64; -1 if it has none."""
        if not len(self._sorted_ids):
            return np.full(len(ids), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted_ids, ids), len(self._sorted_ids) - 1)
        return np.where(self._sorted_ids[at] == ids, self._sorted_rows[at], -1)

    def add(self, ids: IntArray) -> IntArray:
        """Give each of these ids, which are new, an empty row."""
        free = np.flatnonzero(self["id"] == FREE)[: len(ids)]
        first = len(self["id"])
        missing = len(ids) - len(free)
        if missing:
            self.columns.grow(first + missing)
        rows = np.concatenate([free, np.arange(first, first + missing)])
        self.columns.clear(free)
        self["id"][rows] = ids
        self._index()
        return rows

    def remove(self, rows: IntArray) -> None:
        self["id"][rows] = FREE
        self._index()

    def pack(self) -> dict[str, bytes]:
        """All entities in the order of their ids, for `restored`."""
        return self.columns.pack(self.rows)

    def restore(self, packed: Mapping[str, bytes]) -> None:
        """Replace all rows by those that `pack` gave. Raises CheckpointError if damaged."""
        count = len(packed.get("id", b"")) // 8
        values = self.columns.unpack(packed, count)
        self.columns = Columns(self.columns.columns)
        self.columns.grow(count)
        self.columns.write(np.arange(count), values)
        self._index()

    def _index(self) -> None:
        live: BoolArray = self["id"] != FREE
        rows = np.flatnonzero(live)
        order = np.argsort(self["id"][rows], kind="stable")
        self._sorted_rows = rows[order]
        self._sorted_ids = self["id"][self._sorted_rows]
