"""N-sigma, version 1: the peak is the decayed mean plus N standard deviations."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.processors.model import moments
from pipeline.processors.model.pairs import pairs
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.stateless import Stateless


class NSigmaV1(Stateless):
    """Peak_N-Sigma_v1 = mean + N * stdev of the usage, per entity; N is the strategy's."""

    name = "nsigma-v1"
    prod: Literal["pair", "classes"] = "classes"

    def peak(self, view: View) -> Peaks:
        """Mean plus N deviations of each row; terms `mean` and `stdev`."""
        rows, at = view.rows, view.all_rows
        sigmas = view.of_all_rows(view.settings.nsigma_multiplier)
        stdev = moments.stdev(rows.weight.take(at, axis=0), rows.squares.take(at, axis=0))
        mean = np.where(np.isnan(stdev), np.nan, rows.mean.take(at, axis=0))
        entities, pods = view.split(mean + pairs(sigmas) * stdev)
        return Peaks(entities, pods, {"mean": view.split(mean)[0], "stdev": view.split(stdev)[0]})
