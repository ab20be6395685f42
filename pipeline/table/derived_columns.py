"""Columns that follow from names and records of nodes, computed when a request first needs them.

Rules and scores that depend on a text, or on a name, would else loop over ten thousand nodes for
each pod.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.scorers.scorer import MetadataSource, Texts
from pipeline.table.node_columns import NodeRecords, TableNode
from pipeline.table.node_names import RowArray

_NEVER_AN_INPUT: Final = -1
"""As a number it is NaN, of a kind that no calculation has for a result."""


class DerivedColumns:
    """The columns of one table; all arrays have its `capacity` of rows. Their number is bounded by
    that of rules and plugins."""

    def __init__(self) -> None:
        self._texts: dict[tuple[MetadataSource, str], _TextColumn] = {}
        self._by_name: dict[tuple[int, Sequence[str]], tuple[Mapping[str, Any], FloatArray]] = {}
        self._memories: dict[str, FloatArray] = {}

    def put(self, row: int, node: TableNode | None) -> None:
        """Take the Node of a row."""
        for column in self._texts.values():
            # After the table has grown, the next use makes a new column.
            if row < len(column.codes):
                column.put(row, node)

    def renamed(self) -> None:
        """A row got or lost its node."""
        self._by_name.clear()

    def texts(
        self, source: MetadataSource, key: str, rows: Sequence[NodeRecords], capacity: int
    ) -> Texts:
        """A label or annotation of every row."""
        column = self._texts.get((source, key))
        if column is None or len(column.codes) != capacity or column.is_sparse:
            column = self._texts[source, key] = _TextColumn(source, key, capacity)
            for row, records in enumerate(rows):
                column.put(row, records.node)
        return Texts(column.codes, column.texts)

    def by_name(
        self,
        values: Mapping[str, Any],
        fields: Sequence[str],
        index: Mapping[str, int],
        capacity: int,
    ) -> FloatArray:
        """Fields of the value of each row's node, (fields, rows), NaN without a value."""
        key = id(values), tuple(fields)
        _, columns = self._by_name.get(key, (None, None))
        if columns is None or columns.shape[1] != capacity:
            columns = np.full((len(fields), capacity), np.nan)
            for name, value in values.items():
                if name in index:
                    columns[:, index[name]] = [getattr(value, field) for field in fields]
            # With the values, so that no others get their id.
            self._by_name[key] = values, columns
        return columns

    def memory(self, name: str, values: int, capacity: int) -> FloatArray:
        """What was last written under a name, (values, rows); at first no number that occurs."""
        memory = self._memories.get(name)
        if memory is None or memory.shape != (values, capacity):
            nothing = np.full((values, capacity), _NEVER_AN_INPUT, np.int64)
            memory = self._memories[name] = nothing.view(np.float64)
        return memory


class _TextColumn:
    """The text of each row under one key of a Node's metadata, see `Texts`."""

    def __init__(self, source: MetadataSource, key: str, capacity: int) -> None:
        self._is_label, self._key = source == "Label", key
        self.codes: RowArray = np.zeros(capacity, np.intp)
        self.texts: list[str | None] = [None]
        self._code_of: dict[str | None, int] = {None: 0}

    @property
    def is_sparse(self) -> bool:
        """Whether more texts are kept than nodes can have."""
        return len(self.texts) > 2 * len(self.codes)

    def put(self, row: int, node: TableNode | None) -> None:
        text = None
        if node is not None:
            text = (node.labels if self._is_label else node.annotations).get(self._key)
        code = self._code_of.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        self.codes[row] = code
