"""N-sigma, version 2: the larger of version 1 and of the sum over the pods, each by version 1.

The pods' own deviations add up as if all their peaks came at once, which version 1, looking at
the whole alone, takes for unlikely. Formula: node prediction by Koordinator, Peak_N-Sigma_v2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.processors.model.model_config import SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.pod_sums import pod_sums, with_system
from pipeline.processors.predictors.stateless import Stateless


class NSigmaV2(Stateless):
    """max(v1, sum of the pods' v1), for the node with the system's v1 in the sum."""

    name = "nsigma-v2"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(self) -> None:
        self._v1 = NSigmaV1()

    def peak(self, view: View) -> Peaks:
        """Terms: `v1` and its `mean` and `stdev`, those of `PodSums`, and of the node `system`.

        Where the sum is unknown, v1 stands alone, and the other way round.
        """
        v1 = self._v1.peak(view)
        sums = pod_sums(view, v1.pods)
        whole, system = with_system(sums.total, v1.entities[:, SYSTEM])
        terms = {**v1.terms, "v1": v1.entities, **sums.terms, "system": system}
        return Peaks(np.fmax(v1.entities, whole), v1.pods, terms, bare=v1.entities)
