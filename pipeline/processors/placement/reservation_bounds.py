"""What may be asked for of a node beside what kube-scheduler itself sees: what is kept for others,
and of Mid no more than is certain while nobody knows better.
"""

from typing import NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray


class Bounded(NamedTuple):
    """Arrays (nodes, resources): whether the pod goes beyond what there is, and what that is."""

    over: BoolArray
    most: IntArray


def beyond_reservation(
    allocatable: IntArray, reserved: FloatArray, requested: IntArray, asked: IntArray
) -> Bounded:
    """Where what is asked for with the pod, `asked` (resources,), does not leave what the Node's
    annotation keeps; the other arrays are (nodes, resources), `reserved` NaN where nothing is. A
    pod goes beyond nothing of which it asks for none."""
    kept = np.nan_to_num(reserved, posinf=2.0**53).astype(np.int64)
    most = np.maximum(allocatable - kept, 0)
    over = np.isfinite(reserved) & (asked > 0) & (allocatable > 0) & (requested + asked > most)
    return Bounded(over, most)


def beyond_certain(
    bound: FloatArray, is_late: BoolArray, requested: IntArray, asked: IntArray
) -> Bounded:
    """Where Mid with the pod goes beyond its lower bound, (nodes, resources), NaN for none, while
    what is known is late, (nodes,): by then the Node may offer what is not there any more."""
    most = np.nan_to_num(bound, posinf=2.0**53).astype(np.int64)
    judged = is_late[:, None] & np.isfinite(bound) & (asked > 0)
    return Bounded(judged & (requested + asked > most), most)
