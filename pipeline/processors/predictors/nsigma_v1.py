"""N-sigma, version 1: the decayed mean plus N standard deviations of each entity's usage."""

from typing import Final, Literal

import numpy as np

from pipeline.processors.model import moments
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.model.resource_pairs import per_resource
from pipeline.processors.predictors.declaration import MOMENTS, Declaration, Formula, Term
from pipeline.processors.predictors.stateless import Stateless


class NSigmaV1(Stateless):
    """Peak_N-Sigma_v1 of Koordinator's node prediction; N is the strategy's `nsigma_multiplier`."""

    name = "nsigma-v1"
    prod: Literal["pair", "classes"] = "classes"
    declaration: Final = Declaration(
        summary="mean + N * standard deviation, N being `nsigma_multiplier`",
        terms=(Term("mean"), Term("stdev")),
        formulas=(Formula(MOMENTS),),
    )

    def peak(self, view: View) -> Peaks:
        models, rows = view.models, view.all_rows
        sigmas = view.repeat_per_row(view.strategies["nsigma_multiplier"])
        stdev = moments.stdev(models.weight.take(rows, axis=0), models.squares.take(rows, axis=0))
        mean = np.where(np.isnan(stdev), np.nan, models.mean.take(rows, axis=0))
        entities, pods = view.split(mean + per_resource(sigmas) * stdev)
        return Peaks(entities, pods, {"mean": view.split(mean)[0], "stdev": view.split(stdev)[0]})


PREDICTOR: Final = NSigmaV1
