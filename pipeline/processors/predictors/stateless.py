"""Base of predictors that read histograms, moments and the recent past, and have no columns."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_columns import Rows


class Stateless:
    """A predictor without columns, which observes nothing."""

    columns: Mapping[str, Column] = {}

    def observe(
        self, rows: Rows, index: IntArray, values: FloatArray, end_ms: npt.NDArray[np.int64]
    ) -> None:
        """Do nothing."""
