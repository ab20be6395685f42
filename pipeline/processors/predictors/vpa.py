"""In the manner of the Vertical Pod Autoscaler: its target for each entity as if it were a pod.

The target is a quantile of the decayed histogram, plus a margin, for a pod at least a floor.
The buckets and half-lives are those of the model: with the preset `vpa` they are the autoscaler's.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from pipeline.processors.model.model_config import PLAUSIBLE
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.option_checks import check_between, check_fraction
from pipeline.processors.predictors.stateless import Stateless

TARGET: Final = 0.9
MARGIN_PERCENT: Final = 15.0
FLOOR: Final = (0.025, 250.0 * 2**20)
"""Cores and bytes of a pod. Its flag says megabytes and counts 1024 * 1024 bytes each."""


class Vpa(Stateless):
    """By default p90 of both resources, a margin of 15 percent, 25 millicores and 250 MiB.

    The margin is the predictor's own; that of the strategy comes on top, unless it is set to 0.
    Raises ValueError for a fraction that is none, a negative margin or an implausible floor.
    """

    name = "vpa"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(
        self,
        cpu: float = TARGET,
        memory: float = TARGET,
        margin_percent: float = MARGIN_PERCENT,
        floor_cpu_cores: float = FLOOR[0],
        floor_memory_bytes: float = FLOOR[1],
    ) -> None:
        self._fractions = [check_fraction("cpu", cpu), check_fraction("memory", memory)]
        self._factor = (100.0 + check_between("margin_percent", margin_percent, 0, 1000)) / 100.0
        most_cores, most_bytes = PLAUSIBLE.tolist()
        self._floor = [
            check_between("floor_cpu_cores", floor_cpu_cores, 0, most_cores),
            check_between("floor_memory_bytes", floor_memory_bytes, 0, most_bytes),
        ]

    def peak(self, view: View) -> Peaks:
        """Terms: the `quantile` that this `fraction` gives, and the `margin` it is multiplied by.

        The floor is for pods alone, and what never used any has no first bucket's end for its
        quantile: a class without pods is not to cost anything.
        """
        rows, at = view.rows, view.all_rows
        quantiles = rows.quantile(at, np.broadcast_to(self._fractions, (len(at), 2)))
        entities, pods = view.split(np.where(rows.idle(at), 0.0, quantiles))
        terms = {
            "quantile": entities,
            "fraction": np.broadcast_to(self._fractions, entities.shape),
            "margin": np.full(entities.shape, self._factor),
        }
        return Peaks(entities * self._factor, np.maximum(pods * self._factor, self._floor), terms)
