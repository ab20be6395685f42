"""What Prod leaves unused: the two views of a node, and what they come to.

Owes the rest: Koordinator's pair of views, for the peaks of whichever predictor. The pod view
trusts each pod's own peak; the class view takes the peak of Prod as a whole, with the system. In
both a pod without a peak that can be trusted counts its request. What can be reclaimed is the
smaller of both, the peak the larger. Units are whole millicores and bytes, held in float64 (exact
below 2**53); NaN is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.pairs import pairs

TO_KUBERNETES: Final = np.array([1000.0, 1.0])
"""Cores and bytes to millicores and bytes."""

_PROD, _NONE, _UNKNOWN = (CLASS_CODES[name] for name in ("prod", "none", "unknown"))


@dataclass(frozen=True)
class Pods:
    """n pods of k nodes as the last windows say: `node_of` (n,) is the node of each, 0..k-1, and
    `requests` (n, 2) what it asked for. A `cold` pod's own peak is not trusted yet. A pod that is
    not `active` is being deleted, or has `ended`.

    What follows from these alone, whichever predictor gives the peaks, is found once, (n, 2).
    """

    node_of: IntArray
    classes: npt.NDArray[np.int8]
    requests: FloatArray
    cold: BoolArray
    active: BoolArray
    ended: BoolArray

    @cached_property
    def counted(self) -> BoolArray:
        """The pods of which Prod's peak is made: class prod, none or unknown, not ended. One that
        is being deleted still runs."""
        classes = self.classes
        prod = (classes == _PROD) | (classes == _NONE) | (classes == _UNKNOWN)
        return pairs(prod & ~self.ended)

    @cached_property
    def asking(self) -> BoolArray:
        """Those of them whose request is known."""
        return self.counted & ~np.isnan(self.requests)

    @cached_property
    def believed(self) -> BoolArray:
        """Those of them whose own peak counts, where there is one. Of a cold pod whose request is
        not known, its model is all that can be said."""
        waits = pairs(self.cold) & self.asking
        return np.asarray(self.counted & ~waits)

    @cached_property
    def giving(self) -> BoolArray:
        """Those of them that may use less than they asked for."""
        trusted = self.active & ~self.cold & (self.classes != _UNKNOWN)
        return np.asarray(self.asking & pairs(trusted))

    def request_sums(self, nodes: int) -> FloatArray:
        """What Prod asks for on each of `nodes` nodes, (nodes, 2). A pod of unknown class or
        request adds 0, and so does one that is being deleted: its room is another's soon."""
        asks = self.asking & pairs(self.active & (self.classes != _UNKNOWN))
        return sum_by(self.node_of, np.where(asks, self.requests, 0.0), nodes)


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """What one view says of k nodes, each (k, 2): what can be reclaimed and the peak of Prod.

    `unpredicted` is what stands in the peak for pods without a peak that can be trusted.
    """

    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray


def kubernetes_units(usage: FloatArray) -> FloatArray:
    """Usage (.., 2) in cores and bytes as whole millicores and bytes, cut toward zero."""
    units = np.array(usage)
    units[..., 0] *= TO_KUBERNETES[0]
    return np.trunc(units, out=units)


def with_margin(quantiles: FloatArray, margin: FloatArray) -> FloatArray:
    """Whole millicores and bytes (n, 2) times the margins (n,), cut toward zero."""
    return np.asarray(np.trunc(pairs(margin) * quantiles))


def pod_view(
    pods: Pods, quantiles: FloatArray, allocatable: FloatArray, margin: FloatArray
) -> tuple[Reclaimable, FloatArray]:
    """From the pods' own models, `quantiles` (n, 2); `allocatable` (k, 2), `margin` (k,).

    A pod that is cold or has no model counts its request in the peak and gives nothing; a pod that
    is being deleted, or of unknown class or request, gives nothing either. Formula: colocation by
    Koordinator, pod level. Also gives, (k, 2), by how much the requests that were counted exceed
    the peaks of the same pods: what `class_view` lacks.
    """
    peaks = with_margin(quantiles, margin.take(pods.node_of))
    has_peak = ~np.isnan(peaks)
    predicted = pods.believed & has_peak
    unpredicted = pods.asking & ~predicted
    gives = pods.giving & predicted
    k = len(allocatable)
    spare = np.maximum(pods.requests - np.where(has_peak, peaks, 0.0), 0.0)
    unreclaimable = sum_by(pods.node_of, np.where(predicted, peaks, 0.0), k)
    # Few pods wait: to add the zeros of the others changes nothing and costs most.
    at = _some(unpredicted)
    waits, waits_on = unpredicted.take(at, axis=0), pods.node_of.take(at)
    waiting = sum_by(waits_on, np.where(waits, pods.requests.take(at, axis=0), 0.0), k)
    unused = sum_by(pods.node_of, np.where(gives, spare, 0.0), k)
    view = Reclaimable(
        amount=np.minimum(np.maximum(allocatable - unreclaimable, 0.0), unused),
        peak=unreclaimable + waiting,
        unpredicted=waiting,
    )
    return view, sum_by(waits_on, np.where(waits, spare.take(at, axis=0), 0.0), k)


def left_out(pods: Pods, quantiles: FloatArray, nodes: int) -> FloatArray:
    """How many pods add nothing to the peak of `pod_view` because neither a peak nor a request of
    theirs is known, (nodes, 2) by resource."""
    nothing = pods.counted & ~pods.asking & np.isnan(quantiles)
    at = _some(nothing)
    return sum_by(pods.node_of.take(at), nothing.take(at, axis=0).astype(np.float64), nodes)


def _some(pods: BoolArray) -> IntArray:
    """Of which of `pods` (n, 2) something of either resource is true."""
    at: IntArray = (pods[:, 0] | pods[:, 1]).nonzero()[0]
    return at


def held(surplus: FloatArray, used: FloatArray, bare: FloatArray, margin: FloatArray) -> FloatArray:
    """How much of `surplus` is in the peaks `used` already, which hold requests and would be `bare`
    without; all (k, 2), `margin` (k,). With the rest on top the peak is the higher of both ways to
    count a cold pod's request. NaN `bare`: they hold all of it."""
    beyond = with_margin(used, margin) - with_margin(bare, margin)
    return np.where(np.isnan(bare), surplus, np.fmin(surplus, np.nan_to_num(beyond)))


def class_view(
    used: FloatArray,
    surplus: FloatArray,
    requests: FloatArray,
    allocatable: FloatArray,
    margin: FloatArray,
) -> Reclaimable:
    """From the class models, all (k, 2): `used` are the quantiles of system, prod, none and
    unknown together; `margin` (k,). What cold pods use is in these models; `surplus` (k, 2), on top
    of the peak, makes it their requests."""
    peak = with_margin(used, margin) + surplus
    room = np.maximum(allocatable - peak, 0.0)
    return Reclaimable(
        amount=np.minimum(room, np.maximum(requests - peak, 0.0)), peak=peak, unpredicted=surplus
    )


def combine(pods: Reclaimable, classes: Reclaimable, system: FloatArray) -> Reclaimable:
    """The careful one of two views per resource; unknown if either is.

    `system` (k, 2) is the system's peak with the margin: the peak is that of Prod and the system,
    whichever view it comes from.
    """
    return Reclaimable(
        amount=np.minimum(pods.amount, classes.amount),
        peak=np.maximum(pods.peak + system, classes.peak),
        unpredicted=pods.unpredicted,
    )


def sum_by(node_of: IntArray, values: FloatArray, nodes: int) -> FloatArray:
    """Sums of `values` (n, 2) per node, added in the order in which they stand."""
    if len(values) == 0:
        return np.zeros((nodes, 2))
    sums = np.empty((nodes, 2))
    for r in range(2):
        sums[:, r] = np.bincount(node_of, weights=values[:, r], minlength=nodes)
    return sums
