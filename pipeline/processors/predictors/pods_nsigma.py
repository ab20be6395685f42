"""N-sigma of the pods: the sum over the pods of each pod's mean plus N standard deviations."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.processors.model.model_config import ENTITIES, SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.predictors.nsigma_v1 import NSigmaV1
from pipeline.processors.predictors.pod_sums import pod_sums, with_system
from pipeline.processors.predictors.stateless import Stateless


class PodsNSigma(Stateless):
    """Sum of the pods' version 1, for the node with the system's on top.

    The part of version 2 that looks at the pods, without what the whole has shown: pods whose
    peaks never come together are taken as if they did. Formula: node prediction by Koordinator.
    """

    name = "pods-nsigma"
    prod: Literal["pair", "classes"] = "pair"

    def __init__(self) -> None:
        self._v1 = NSigmaV1()

    def peak(self, view: View) -> Peaks:
        """Terms: those of `PodSums`, of the node `system`; of the system `mean` and `stdev`."""
        v1 = self._v1.peak(view)
        system = v1.entities[:, SYSTEM]
        sums = pod_sums(view, v1.pods)
        whole, term = with_system(sums.total, system)
        whole[:, SYSTEM] = system
        is_system = (np.arange(len(ENTITIES)) == SYSTEM)[:, None]
        moments = {name: np.where(is_system, values, np.nan) for name, values in v1.terms.items()}
        terms = {**sums.terms, "system": term, **moments}
        return Peaks(whole, v1.pods, terms, bare=np.full_like(whole, np.nan))
