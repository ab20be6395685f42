"""What Prod requests and will not use, by Koordinator's pair of views.

The pod view adds up the peaks of pods; the class view takes the peak of Prod as a whole, with the
system. In both, a pod without a trusted peak counts its request. The reclaimable amount is the
smaller of both views, the peak the larger: if one view errs, nothing is offered that Prod will use.
Units are whole millicores and bytes, held in float64 (exact below 2**53); NaN is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.cold_start import counts_request
from pipeline.processors.model.resource_pairs import group_sums, per_resource

_PROD, _NONE, _UNKNOWN = (CLASS_CODES[name] for name in ("prod", "none", "unknown"))


@dataclass(frozen=True)
class NodePods:
    """n pods of k nodes as of their last windows; `node_index` (n,) is the node of each, 0..k-1.

    `allocatable` is (k, 2), `requests` (n, 2). A pod that is not `active` is being deleted, or has
    `ended`. The cached masks (n, 2) and sums do not depend on a predictor.
    """

    allocatable: FloatArray
    node_index: IntArray
    classes: ByteArray
    requests: FloatArray
    cold: BoolArray
    active: BoolArray
    ended: BoolArray

    @cached_property
    def counted(self) -> BoolArray:
        """Pods in the peak of Prod: class prod, none or unknown, not ended. A pod that is being
        deleted still runs."""
        classes = self.classes
        prod = (classes == _PROD) | (classes == _NONE) | (classes == _UNKNOWN)
        return per_resource(prod & ~self.ended)

    @cached_property
    def has_request(self) -> BoolArray:
        """Counted pods with a known request."""
        return self.counted & ~np.isnan(self.requests)

    @cached_property
    def is_cold(self) -> BoolArray:
        """`cold` for each resource."""
        return per_resource(self.cold)

    @cached_property
    def reclaimable(self) -> BoolArray:
        """Pods whose unused request can be reclaimed if they do not count it."""
        return np.asarray(self.has_request & per_resource(self.active & (self.classes != _UNKNOWN)))

    @cached_property
    def request_sums(self) -> FloatArray:
        """The requests of Prod on each node, (k, 2). A pod of unknown class or request, or one that
        is being deleted, adds 0."""
        return self.sums(np.where(self.reclaimable, self.requests, 0.0))

    def sums(self, amounts: FloatArray, rows: IntArray | slice = slice(None)) -> FloatArray:
        """Sums by node, (k, 2), of `amounts`, which are those of all pods, or of these `rows`."""
        return group_sums(self.node_index[rows], amounts, len(self.allocatable))


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """One view of k nodes, arrays (k, 2): the reclaimable amount and the peak of Prod.

    `unpredicted` is the part of the peak that stands for pods without a trusted peak.
    """

    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray


def with_margin(quantiles: FloatArray, margin: FloatArray) -> FloatArray:
    """Whole millicores and bytes (n, 2) times the margins (n,), cut toward zero."""
    return np.asarray(np.trunc(per_resource(margin) * quantiles))


def pod_view(
    pods: NodePods, quantiles: FloatArray, margin: FloatArray
) -> tuple[Reclaimable, FloatArray]:
    """The view of the pods' own models, from their `quantiles` (n, 2) and the `margin` (k,).

    Nothing can be reclaimed of a request that counts in the peak (`cold_start`), nor of that of a
    pod that is being deleted or is of unknown class. Formula: colocation by Koordinator, pod level.
    The second result (k, 2) is by how much counted requests exceed the peaks of the same pods,
    which `class_view` needs.
    """
    peaks = with_margin(quantiles, margin.take(pods.node_index))
    lacks_peak = np.isnan(peaks)
    unpredicted = counts_request(pods.has_request, pods.is_cold, lacks_peak)
    predicted = pods.counted & ~(unpredicted | lacks_peak)
    spare = np.maximum(pods.requests - np.where(lacks_peak, 0.0, peaks), 0.0)
    predicted_peaks = pods.sums(np.where(predicted, peaks, 0.0))
    unused = pods.sums(np.where(pods.reclaimable & predicted, spare, 0.0))
    # Few pods count their requests; to add zeros for the others costs most and changes nothing.
    rows = _rows_with_any(unpredicted)
    uses_request = unpredicted.take(rows, axis=0)
    requests = np.where(uses_request, pods.requests.take(rows, axis=0), 0.0)
    surplus = np.where(uses_request, spare.take(rows, axis=0), 0.0)
    counted_requests = pods.sums(requests, rows)
    view = Reclaimable(
        amount=np.minimum(np.maximum(pods.allocatable - predicted_peaks, 0.0), unused),
        peak=predicted_peaks + counted_requests,
        unpredicted=counted_requests,
    )
    return view, pods.sums(surplus, rows)


def left_out(pods: NodePods, quantiles: FloatArray) -> FloatArray:
    """The number of pods, (k, 2), that `pod_view` lacks: neither peak nor request is known."""
    unknown = pods.counted & ~pods.has_request & np.isnan(quantiles)
    rows = _rows_with_any(unknown)
    return pods.sums(unknown.take(rows, axis=0).astype(np.float64), rows)


def _rows_with_any(flags: BoolArray) -> IntArray:
    """The rows of `flags` (n, 2) that are true for cpu or memory."""
    return np.asarray((flags[:, 0] | flags[:, 1]).nonzero()[0])


def surplus_in_peaks(
    *,
    surplus: FloatArray,
    peaks: FloatArray,
    peaks_without_requests: FloatArray,
    margin: FloatArray,
) -> FloatArray:
    """The part of `surplus` that `peaks` already include; all (k, 2), `margin` (k,).

    `peaks` include the requests of cold pods, `peaks_without_requests` are the same peaks without
    them. Where the latter are NaN, `peaks` include all of `surplus`.
    """
    included = with_margin(peaks, margin) - with_margin(peaks_without_requests, margin)
    is_unknown = np.isnan(peaks_without_requests)
    return np.where(is_unknown, surplus, np.fmin(surplus, np.nan_to_num(included)))


def class_view(
    *,
    peaks: FloatArray,
    surplus: FloatArray,
    requests: FloatArray,
    allocatable: FloatArray,
    margin: FloatArray,
) -> Reclaimable:
    """From the class models, all (k, 2), `margin` (k,): `peaks` are the peaks of system, prod, none
    and unknown in sum. Usage of cold pods is in these models; `surplus` raises it to their
    requests."""
    peak = with_margin(peaks, margin) + surplus
    room = np.maximum(allocatable - peak, 0.0)
    return Reclaimable(
        amount=np.minimum(room, np.maximum(requests - peak, 0.0)), peak=peak, unpredicted=surplus
    )


def combine(pods: Reclaimable, classes: Reclaimable, system: FloatArray) -> Reclaimable:
    """The smaller amount and the larger peak of two views; unknown if either is.

    `system` (k, 2) is the system's peak with the margin, which the pod view lacks.
    """
    return Reclaimable(
        amount=np.minimum(pods.amount, classes.amount),
        peak=np.maximum(pods.peak + system, classes.peak),
        unpredicted=pods.unpredicted,
    )
