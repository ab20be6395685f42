"""N-sigma, version 1: the peak is the decayed mean plus N standard deviations, times the margin."""

from __future__ import annotations

from pipeline.processors import moments
from pipeline.processors.rows import IntArray, Rows
from pipeline.processors.window import FloatArray, ModelConfig


class NSigmaV1:
    """Peak_N-Sigma_v1 = mean + N * stdev of the usage, per entity."""

    name = "nsigma-v1"

    def __init__(self, config: ModelConfig) -> None:
        self._multiplier = config.nsigma_multiplier
        self._margin = config.margin

    def peak(self, bank: Rows, rows: IntArray) -> FloatArray:
        """Peaks (n, 2), cores and bytes, margin included; NaN without samples."""
        deviation = moments.stdev(bank.weight[rows], bank.squares[rows])
        return (bank.mean[rows] + self._multiplier * deviation) * self._margin
