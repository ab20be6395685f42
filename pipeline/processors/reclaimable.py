"""What Prod leaves unused: the two views of a node, and what they come to.

Owes the rest: Koordinator's pair of views, for the peaks of whichever predictor. The pod view
trusts each pod's own peak and counts requests of cold pods; the class view takes the peak of Prod
as a whole. What can be reclaimed is the smaller of both, the peak the larger. Units are whole
millicores and bytes, held in float64 (exact below 2**53); NaN is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.window import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

TO_KUBERNETES: Final = np.array([1000.0, 1.0])
"""Cores and bytes to millicores and bytes."""

_PROD, _NONE, _UNKNOWN = (CLASS_CODES[name] for name in ("prod", "none", "unknown"))


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """What one view says of k nodes, each (k, 2): what can be reclaimed and the peak of Prod.

    `unpredicted` is the request of cold and unpredicted pods, `requests` the sum of requests that
    the view started from; both are terms of the result.
    """

    amount: FloatArray
    peak: FloatArray
    unpredicted: FloatArray
    requests: FloatArray


def kubernetes_units(usage: FloatArray) -> FloatArray:
    """Usage (.., 2) in cores and bytes as whole millicores and bytes, cut toward zero."""
    return np.asarray(np.trunc(usage * TO_KUBERNETES))


def counts_as_prod(classes: npt.NDArray[np.int8], active: BoolArray) -> BoolArray:
    """The pods of which Prod's peak is made: class prod, none or unknown, neither being deleted
    nor ended."""
    prod = (classes == _PROD) | (classes == _NONE) | (classes == _UNKNOWN)
    return np.asarray(active & prod)


def pod_view(
    node_of: IntArray,
    quantiles: FloatArray,
    requests: FloatArray,
    classes: npt.NDArray[np.int8],
    cold: BoolArray,
    active: BoolArray,
    allocatable: FloatArray,
    margin: FloatArray,
) -> Reclaimable:
    """From the pods' own models: n pods of k nodes, `node_of` (n,) in 0..k-1, `margin` (k,).

    A pod that is cold or has no model counts its request in the peak and gives nothing; a pod of
    unknown class or request gives nothing either. Formula: colocation by Koordinator, pod level.
    """
    counted = counts_as_prod(classes, active)[:, None]
    peaks = np.trunc(margin[node_of][:, None] * quantiles)
    has_peak, has_request = ~np.isnan(peaks), ~np.isnan(requests)
    # Of a cold pod whose request is not known, its model is all that can be said.
    predicted = counted & has_peak & (~cold[:, None] | ~has_request)
    unpredicted = counted & ~predicted & has_request
    gives = predicted & has_request & ~cold[:, None] & (classes != _UNKNOWN)[:, None]
    k = len(allocatable)
    unreclaimable = sum_by(node_of, np.where(predicted, peaks, 0.0), k)
    waiting = sum_by(node_of, np.where(unpredicted, requests, 0.0), k)
    unused = sum_by(node_of, np.where(gives, np.maximum(requests - peaks, 0.0), 0.0), k)
    return Reclaimable(
        amount=np.minimum(np.maximum(allocatable - unreclaimable, 0.0), unused),
        peak=unreclaimable + waiting,
        unpredicted=waiting,
        requests=sum_by(node_of, np.where(counted & has_request, requests, 0.0), k),
    )


def request_sums(
    node_of: IntArray,
    requests: FloatArray,
    classes: npt.NDArray[np.int8],
    active: BoolArray,
    nodes: int,
) -> FloatArray:
    """What Prod asks for on each node, (nodes, 2); a pod of unknown class or request adds 0."""
    counted = counts_as_prod(classes, active) & (classes != _UNKNOWN)
    known = counted[:, None] & ~np.isnan(requests)
    return sum_by(node_of, np.where(known, requests, 0.0), nodes)


def class_view(
    system: FloatArray,
    prod: FloatArray,
    none: FloatArray,
    unknown: FloatArray,
    requests: FloatArray,
    allocatable: FloatArray,
    margin: FloatArray,
) -> Reclaimable:
    """From the class models, all (k, 2): quantiles of system, prod, none and unknown; `margin`
    (k,).

    A missing model makes the result unknown, except that a node that never had a pod of unknown
    class has no such model and adds nothing for it.
    """
    used = system + prod + none + np.where(np.isnan(unknown), 0.0, unknown)
    peak = np.trunc(margin[:, None] * used)
    room = np.maximum(allocatable - peak, 0.0)
    return Reclaimable(
        amount=np.minimum(room, np.maximum(requests - peak, 0.0)),
        peak=peak,
        unpredicted=np.zeros_like(peak),
        requests=requests,
    )


def combine(pods: Reclaimable, classes: Reclaimable) -> Reclaimable:
    """The careful one of two views per resource; unknown if either is."""
    return Reclaimable(
        amount=np.minimum(pods.amount, classes.amount),
        peak=np.maximum(pods.peak, classes.peak),
        unpredicted=pods.unpredicted,
        requests=classes.requests,
    )


def cold_surplus(
    node_of: IntArray,
    peaks: FloatArray,
    requests: FloatArray,
    classes: npt.NDArray[np.int8],
    cold: BoolArray,
    active: BoolArray,
    margin: FloatArray,
) -> FloatArray:
    """What cold pods of k nodes asked for beyond their own `peaks` (n, 2), (k, 2).

    A view of whole classes has what these pods use now in its peak; with the surplus they count
    their request, and give nothing.
    """
    counted = (counts_as_prod(classes, active) & (classes != _UNKNOWN) & cold)[:, None]
    used = np.nan_to_num(np.trunc(margin[node_of][:, None] * peaks), nan=0.0)
    left = np.where(counted & ~np.isnan(requests), np.maximum(requests - used, 0.0), 0.0)
    return sum_by(node_of, left, len(margin))


def with_surplus(classes: Reclaimable, surplus: FloatArray, allocatable: FloatArray) -> Reclaimable:
    """The class view with `surplus` (k, 2) on top of its peak."""
    peak = classes.peak + surplus
    room = np.maximum(allocatable - peak, 0.0)
    return Reclaimable(
        amount=np.minimum(room, np.maximum(classes.requests - peak, 0.0)),
        peak=peak,
        unpredicted=surplus,
        requests=classes.requests,
    )


def sum_by(node_of: IntArray, values: FloatArray, nodes: int) -> FloatArray:
    """Sums of `values` (n, 2) per node, added in the order in which they stand."""
    sums = [np.bincount(node_of, weights=values[:, r], minlength=nodes) for r in range(2)]
    # Of no values at all numpy counts whole zeros.
    return np.stack(sums, axis=1).astype(np.float64, copy=False)
