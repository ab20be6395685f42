"""N-sigma, version 2: the larger of version 1 and the sum of version 1 over the pods.

The sum adds the pods' deviations as if all pods peaked at once. Version 1, which sees only the
whole, assumes that they do not.
"""

from typing import Final, Literal

import numpy as np

from pipeline.processors.model.model_config import SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.declaration import MOMENTS, Declaration, Formula, Term
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.pod_sums import (
    POD_SUM,
    POD_SUM_TERMS,
    SYSTEM_TERM,
    pod_sums,
    with_system,
)
from pipeline.processors.predictors.stateless import Stateless


class NSigmaV2(Stateless):
    """Peak_N-Sigma_v2 of Koordinator's node prediction.

    The sum of the node also counts the system by version 1. If the sum or version 1 of the whole is
    unknown, the other one is the peak.
    """

    name = "nsigma-v2"
    prod: Literal["pair", "classes"] = "pair"
    declaration: Final = Declaration(
        summary="the larger of `nsigma-v1` and the sum over the pods of each pod's `nsigma-v1`",
        terms=(
            *NSigmaV1.declaration.terms,
            Term("v1", formula=MOMENTS),
            *POD_SUM_TERMS,
            SYSTEM_TERM,
        ),
        formulas=(Formula("v1"), *POD_SUM),
    )

    def __init__(self) -> None:
        self._v1 = NSigmaV1()

    def peak(self, view: View) -> Peaks:
        """Return the larger of version 1 and the sum of version 1 over pods.

        `Peaks.without_requests` is version 1 alone, without the sum.
        """
        v1 = self._v1.peak(view)
        totals, sum_terms = with_system(pod_sums(view, v1.pods), v1.entities[:, SYSTEM])
        terms = {**v1.terms, "v1": v1.entities, **sum_terms}
        return Peaks(np.fmax(v1.entities, totals), v1.pods, terms, without_requests=v1.entities)


PREDICTOR: Final = NSigmaV2
