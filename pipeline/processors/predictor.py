"""What every predictor of peaks is: a name, and peaks for rows of a model bank.

Owes the rest: the protocol, and the settings of the strategies in force as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.processors.node import NodeModels
from pipeline.processors.rows import IntArray, Rows
from pipeline.processors.window import FloatArray


@dataclass(frozen=True, slots=True)
class PeakSettings:
    """Columns (n,) of what the strategies say: `margin` is what a peak is multiplied by (1.1 for
    10 percent), `nsigma_multiplier` deviations above the mean, `cold_start_seconds` a pod's age."""

    margin: FloatArray
    nsigma_multiplier: FloatArray
    cold_start_seconds: FloatArray

    def take(self, at: IntArray) -> PeakSettings:
        """The settings at these positions."""
        return PeakSettings(
            self.margin[at], self.nsigma_multiplier[at], self.cold_start_seconds[at]
        )


def settings_of(nodes: Sequence[NodeModels]) -> PeakSettings:
    """The settings of each node, in that order."""
    strategies = [node.strategy for node in nodes]
    percent = np.array([strategy.safety_margin_percent for strategy in strategies], np.float64)
    return PeakSettings(
        margin=(100.0 + percent) / 100.0,
        nsigma_multiplier=np.array([s.nsigma_multiplier for s in strategies], np.float64),
        cold_start_seconds=np.array([s.cold_start_seconds for s in strategies], np.float64),
    )


class Predictor(Protocol):
    """What gives a peak: `name` is what it is published under."""

    name: str

    def peak(self, bank: Rows, rows: IntArray, settings: PeakSettings) -> FloatArray:
        """Peaks (n, 2) of these rows, cores and bytes, before the safety margin, which is added
        for all predictors alike; NaN without samples. `settings` has one entry per row."""
        ...
