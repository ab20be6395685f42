"""N-sigma of the pods: the sum over the pods of each pod's mean plus N standard deviations."""

from typing import Final, Literal

import numpy as np

from pipeline.processors.model.model_config import ENTITIES, SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import MOMENTS, Declaration, Formula, Term
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.pod_sums import (
    POD_SUM,
    POD_SUM_TERMS,
    SYSTEM_TERM,
    pod_sum_peaks,
)
from pipeline.processors.predictors.stateless import Stateless


class PodsNSigma(Stateless):
    """The sum over pods of `nsigma-v2`, without the version 1 of the whole: pods that never peak
    together count as if they did. From Koordinator's node prediction."""

    name = "pods-nsigma"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="sum over the pods of each pod's `nsigma-v1`",
        terms=(
            *POD_SUM_TERMS,
            SYSTEM_TERM,
            Term("mean", note="system only"),
            Term("stdev", note="system only"),
        ),
        formulas=(Formula(MOMENTS, entities=("system",)), *POD_SUM),
    )

    def __init__(self) -> None:
        self._v1 = NSigmaV1()

    def peak(self, view: View) -> Peaks:
        v1 = self._v1.peak(view)
        is_system = (np.arange(len(ENTITIES)) == SYSTEM)[:, None]
        moments = {name: np.where(is_system, values, np.nan) for name, values in v1.terms.items()}
        return pod_sum_peaks(view, v1.pods, v1.entities[:, SYSTEM], **moments)


PREDICTOR: Final = PodsNSigma
