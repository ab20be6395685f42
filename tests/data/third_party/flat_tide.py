"""A predictor of somebody else's: the highest sample so far, times a factor."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.predictor import Peaks, View


class FlatTide:
    """Raises ValueError for a factor below 1."""

    name = "flat-tide"
    prod: Literal["pair", "classes"] = "pair"
    columns: Mapping[str, Column] = {"flat_tide": Column((2,), "<f8", np.nan)}

    def __init__(self, factor: float = 1.0) -> None:
        if not factor >= 1.0:
            raise ValueError(f"factor is {factor!r}, not 1 or more")
        self._factor = factor

    def observe(
        self, rows: Rows, at: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        highest = rows.store["flat_tide"]
        highest[at] = np.fmax(highest[at], values)

    def peak(self, view: View) -> Peaks:
        highest = view.rows.store["flat_tide"][view.all_rows]
        entities, pods = view.split(highest * self._factor)
        return Peaks(entities, pods, {"highest": view.split(highest)[0]})
