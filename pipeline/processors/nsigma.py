"""N-sigma, version 1: the peak is the decayed mean plus N standard deviations."""

from __future__ import annotations

from pipeline.processors import moments
from pipeline.processors.predictor import PeakSettings
from pipeline.processors.rows import IntArray, Rows
from pipeline.processors.window import FloatArray


class NSigmaV1:
    """Peak_N-Sigma_v1 = mean + N * stdev of the usage, per entity."""

    name = "nsigma-v1"

    def peak(self, bank: Rows, rows: IntArray, settings: PeakSettings) -> FloatArray:
        """Peaks (n, 2), cores and bytes, before the margin; NaN without samples."""
        deviation = moments.stdev(bank.weight[rows], bank.squares[rows])
        return bank.mean[rows] + settings.nsigma_multiplier[:, None] * deviation
