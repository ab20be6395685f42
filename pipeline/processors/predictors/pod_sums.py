"""Sums over the pods of a node and of its classes, for predictors that add up what pods may use.

Owes the rest: one rule for who counts with what, and the terms by which anybody can redo a sum
from the published pods. A pod counts its own peak. An active pod that is cold, or has no peak,
counts its request instead. A pod that is being deleted is owed its request no more, but counts
what it may still use; one that has ended counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.model_config import ENTITIES, FIRST_CLASS, NODE
from pipeline.processors.model.predictor import View
from pipeline.processors.model.reclaimable import sum_by


@dataclass(frozen=True, slots=True)
class PodSums:
    """Sums by entity, each (k, E, 2): `pods` of the peaks of those that count with theirs,
    `requests` of those that count with their request; `counted` is how many both are, `left_out`
    how many have neither. All are NaN for the system, which has no pods."""

    pods: FloatArray
    requests: FloatArray
    counted: FloatArray
    left_out: FloatArray

    @property
    def total(self) -> FloatArray:
        """What all pods of each entity come to: 0 without pods, NaN where nothing is known of
        those that there are."""
        nothing_known = (self.counted == 0.0) & (self.left_out > 0.0)
        return np.where(nothing_known, np.nan, self.pods + self.requests)

    @property
    def terms(self) -> Mapping[str, FloatArray]:
        """The sums under the names by which they are published."""
        return {
            "pods": self.pods,
            "requests": self.requests,
            "counted": self.counted,
            "left_out": self.left_out,
        }


def pod_sums(view: View, peaks: FloatArray) -> PodSums:
    """The sums that the pods' own `peaks` (n, 2) come to."""
    known, asked = ~np.isnan(peaks), ~np.isnan(view.requests) & view.active[:, None]
    by_request = asked & (view.cold[:, None] | ~known)
    by_peak = known & ~by_request & ~view.ended[:, None]
    counted = by_peak | by_request
    left_out = ~counted & ~view.ended[:, None]
    return PodSums(
        pods=by_entity(view, np.where(by_peak, peaks, 0.0)),
        requests=by_entity(view, np.where(by_request, view.requests, 0.0)),
        counted=by_entity(view, counted.astype(np.float64)),
        left_out=by_entity(view, left_out.astype(np.float64)),
    )


def by_entity(view: View, values: FloatArray) -> FloatArray:
    """Sums (k, E, 2) of what each pod has, `values` (n, 2): of all pods for the node, of its own
    for a class, NaN for the system. They are added in UID order."""
    nodes, classes = len(view.end_ms), len(CLASSES)
    sums = np.full((nodes, len(ENTITIES), 2), np.nan)
    sums[:, NODE] = sum_by(view.node_of, values, nodes)
    group = view.node_of * classes + view.classes
    sums[:, FIRST_CLASS:] = sum_by(group, values, nodes * classes).reshape(nodes, classes, 2)
    return sums


def with_system(totals: FloatArray, system: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Totals (k, E, 2) of pods, with the peak `system` (k, 2) of the remainder on top of the
    node's; and that as a term, (k, E, 2), NaN for everything but the node."""
    term = np.full(totals.shape, np.nan)
    term[:, NODE] = system
    whole = totals.copy()
    whole[:, NODE] = totals[:, NODE] + system
    return whole, term
