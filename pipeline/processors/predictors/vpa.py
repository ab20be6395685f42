"""The Vertical Pod Autoscaler's target, for each entity as if it were a pod with one container.

A quantile of the decayed histogram, plus a margin, for a pod at least a floor. Buckets and
half-lives are those of the model: the preset `vpa` sets the autoscaler's.
"""

from typing import Any, Final, Literal

import numpy as np

from pipeline.processors.model.model_config import MAX_USAGE
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import Declaration, Formula, Term
from pipeline.processors.predictors.options import between, fraction
from pipeline.processors.predictors.stateless import Stateless

TARGET: Final = 0.9
MARGIN_PERCENT: Final = 15.0
FLOOR: Final = (0.025, 250.0 * 2**20)
"""Cores and bytes of a pod. The autoscaler's flag is named megabytes and counts MiB."""

_MOST_CORES, _MOST_BYTES = MAX_USAGE.tolist()


class Vpa(Stateless):
    """Predicts the autoscaler's target. The strategy's safety margin is multiplied on top of
    `margin_percent`, unless it is 0."""

    name = "vpa"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="a quantile of the histogram plus a margin; of a pod at least a floor",
        options=(
            fraction("cpu", TARGET, "quantile of cpu"),
            fraction("memory", TARGET, "quantile of memory"),
            between("margin_percent", MARGIN_PERCENT, 0, 1000, "margin on the quantile"),
            between("floor_cpu_cores", FLOOR[0], 0, _MOST_CORES, "least cpu of a pod"),
            between("floor_memory_bytes", FLOOR[1], 0, _MOST_BYTES, "least memory of a pod"),
        ),
        terms=(Term("quantile"), Term("fraction", ""), Term("margin", "", note="a factor")),
        formulas=(Formula("quantile * margin"),),
    )

    def __init__(self, **options: Any) -> None:
        given = self.declaration.checked(options)
        self._fractions = [given["cpu"], given["memory"]]
        self._factor = (100.0 + given["margin_percent"]) / 100.0
        self._floor = [given["floor_cpu_cores"], given["floor_memory_bytes"]]

    def peak(self, view: View) -> Peaks:
        """Return quantile * margin, 0 for a row whose samples were all 0, and for pods the floor.

        The floor is for pods alone: a class without pods costs nothing.
        """
        models, rows = view.models, view.all_rows
        quantiles = models.quantile(rows, np.broadcast_to(self._fractions, (len(rows), 2)))
        entities, pods = view.split(np.where(models.idle(rows), 0.0, quantiles))
        terms = {
            "quantile": entities,
            "fraction": np.broadcast_to(self._fractions, entities.shape),
            "margin": np.full(entities.shape, self._factor),
        }
        return Peaks(entities * self._factor, np.maximum(pods * self._factor, self._floor), terms)


PREDICTOR: Final = Vpa
