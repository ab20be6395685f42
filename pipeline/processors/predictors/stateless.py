"""A predictor that reads histograms, moments and the recent past, and keeps nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import Rows


class Stateless:
    """Base of such predictors: no columns, nothing to observe."""

    columns: Mapping[str, Column] = {}

    def observe(
        self, rows: Rows, at: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        """Nothing is kept."""
