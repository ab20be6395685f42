"""Sums over the pods of a node and of its classes, for predictors that add up peaks of pods.

A pod counts its own peak. An active pod without enough history counts its request instead
(`cold_start`). A pod that is being deleted counts its peak until it has ended, never its request. A
pod that has ended counts nothing. The sums are published as terms, so that they can be computed
again from the published pods.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.cold_start import counts_request
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS, NODE, SYSTEM
from pipeline.processors.model.predictor import Peaks, View
from pipeline.processors.model.resource_pairs import group_sums
from pipeline.processors.predictors.declaration import Formula, Term

POD_SUM_TERMS: Final = (
    Term("pods", adds="peaks"),
    Term("requests", adds="missing peaks"),
    Term("counted", ""),
    Term("left_out", ""),
)
SYSTEM_TERM: Final = Term("system", note="node only")
POD_SUM: Final = (
    Formula("pods + requests + system", entities=("node",)),
    Formula("pods + requests", entities=CLASSES),
)
"""What `pod_sums` and `with_system` compute."""


class PodSums(NamedTuple):
    """Sums by entity, each (k, E, 2): `pods` of the peaks of pods that count their peak, `requests`
    of the requests of pods that count their request, `counted` the number of both, `left_out` the
    number of pods with neither. All are NaN for the system, which has no pods. The fields are the
    published terms."""

    pods: FloatArray
    requests: FloatArray
    counted: FloatArray
    left_out: FloatArray

    @property
    def total(self) -> FloatArray:
        """The sum of each entity: 0 without pods, NaN if all its pods are left out."""
        nothing_known = (self.counted == 0.0) & (self.left_out > 0.0)
        return np.where(nothing_known, np.nan, self.pods + self.requests)


def pod_sums(view: View, peaks: FloatArray) -> PodSums:
    """Add up the pods' own `peaks` (n, 2)."""
    lacks_peak, asked = np.isnan(peaks), ~np.isnan(view.requests) & view.active[:, None]
    by_request = counts_request(asked, view.cold[:, None], lacks_peak)
    by_peak = ~(lacks_peak | by_request | view.ended[:, None])
    counted = by_peak | by_request
    left_out = ~counted & ~view.ended[:, None]
    return PodSums(
        pods=by_entity(view, np.where(by_peak, peaks, 0.0)),
        requests=by_entity(view, np.where(by_request, view.requests, 0.0)),
        counted=by_entity(view, counted.astype(np.float64)),
        left_out=by_entity(view, left_out.astype(np.float64)),
    )


def by_entity(view: View, values: FloatArray) -> FloatArray:
    """Add up the pods' `values` (n, 2) into (k, E, 2): of all pods for the node, of its own pods
    for a class, NaN for the system. They are added in UID order."""
    nodes, classes = len(view.end_ms), len(CLASSES)
    sums = np.full((nodes, len(ENTITIES), 2), np.nan)
    sums[:, NODE] = group_sums(view.node_index, values, nodes)
    group = view.node_index * classes + view.classes
    sums[:, FIRST_CLASS:] = group_sums(group, values, nodes * classes).reshape(nodes, classes, 2)
    return sums


def with_system(sums: PodSums, system: FloatArray) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Add the peak `system` (k, 2) to the node's total. Returns the totals (k, E, 2), and the terms
    `POD_SUM_TERMS` and `SYSTEM_TERM`, which is NaN but for the node."""
    totals, term = sums.total, np.full_like(sums.pods, np.nan)
    totals[:, NODE] += system
    term[:, NODE] = system
    return totals, {**sums._asdict(), "system": term}


def pod_sum_peaks(view: View, pods: FloatArray, system: FloatArray, **terms: FloatArray) -> Peaks:
    """The peaks of a predictor that adds up the peaks of `pods` (n, 2), with the peak of the
    `system` (k, 2) as it is, and more terms."""
    totals, sum_terms = with_system(pod_sums(view, pods), system)
    totals[:, SYSTEM] = system
    return Peaks(totals, pods, sum_terms | terms, without_requests=np.full_like(totals, np.nan))
