"""Limits on requests that kube-scheduler does not know: reservations, and the newest offer.

kube-scheduler compares requests with allocatable alone.
"""

from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray


class Bounded(NamedTuple):
    """Arrays (nodes, resources): whether requests with the pod exceed `most`, and `most`."""

    over: BoolArray
    most: IntArray


def exceeds_reservation(
    allocatable: IntArray, reserved: FloatArray, requested: IntArray, request: IntArray
) -> Bounded:
    """Where requests with the pod, `request` (resources,), use what the Node's annotation reserves.

    The other arrays are (nodes, resources); `reserved` is NaN without a reservation. A resource
    that the pod does not request is never exceeded.
    """
    whole = np.nan_to_num(reserved, posinf=2.0**53).astype(np.int64)
    most = np.maximum(allocatable - whole, 0)
    over = np.isfinite(reserved) & (request > 0) & (allocatable > 0) & (requested + request > most)
    return Bounded(over, most)


def exceeds_offer(most: FloatArray, requested: IntArray, request: IntArray) -> Bounded:
    """Where requests of Mid and Batch with the pod exceed `most` (nodes, resources), NaN without a
    bound. A resource that the pod does not request is never exceeded."""
    whole = np.nan_to_num(most, posinf=2.0**53).astype(np.int64)
    return Bounded(np.isfinite(most) & (request > 0) & (requested + request > whole), whole)
