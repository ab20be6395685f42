"""Base of predictors that read histograms, moments and the recent past, and have no columns."""

from collections.abc import Mapping

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.column_store import Column
from pipeline.processors.model.entity_models import EntityModels


class Stateless:
    """A predictor without columns, which observes nothing."""

    columns: Mapping[str, Column] = {}

    def observe(
        self, models: EntityModels, rows: IntArray, values: FloatArray, end_ms: IntArray
    ) -> None:
        """Do nothing."""
