"""Sums over the pods in flight of each node, and the part of a node's usage that is Prod's.

A pod is in flight from the decision of the scheduler until a report of the node includes its usage.
Until then its estimate counts, reduced by the part that was measured: without it a burst of pods
would pile up on the node that was least used a minute ago. Source: Koordinator's assign cache.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

DEFAULT_REPORT_SECONDS = 60.0


class AssignedPods(NamedTuple):
    """Pods on nodes, or about to be, that have not ended; arrays (pods,), amounts (pods,
    resources).

    `usage` was reported, 0 unless `is_reported`; `is_reported_prod`: it was reported as Prod's.
    `deadline_seconds` is NaN without a deadline.
    """

    node: npt.NDArray[np.int64]
    is_prod: BoolArray
    estimate: IntArray
    usage: IntArray
    is_reported: BoolArray
    is_reported_prod: BoolArray
    scheduled_seconds: FloatArray
    deadline_seconds: FloatArray


class InFlightSums(NamedTuple):
    """Sums per node, (nodes, resources): the amount that pods in flight add to its usage, Prod's
    usage, the amount that Prod pods in flight add to that, the estimates of all pods, and those of
    pods that were not reported."""

    node_delta: IntArray
    prod_usage: IntArray
    prod_delta: IntArray
    node_estimated: IntArray
    unreported: IntArray


def is_in_flight(
    pods: AssignedPods, updated_seconds: FloatArray, report_seconds: FloatArray
) -> BoolArray:
    """Which pods, (pods,), are in flight: not reported, scheduled after the last report began, or
    before their deadline."""
    updated = np.fmax(updated_seconds, -np.inf)[pods.node]
    before = updated - report_seconds[pods.node]
    in_flight: BoolArray = (
        ~pods.is_reported
        | (before < pods.scheduled_seconds)
        | (np.fmax(pods.deadline_seconds, -np.inf) > updated)
    )
    return in_flight


def sum_in_flight(
    pods: AssignedPods, updated_seconds: FloatArray, report_seconds: FloatArray, counted: IntArray
) -> InFlightSums:
    """The sums for nodes that were reported at `updated_seconds` (nodes,), NaN is never.

    `counted` (nodes, resources) is added to Prod's usage: the usage of the system, if the arguments
    include it.
    """
    nodes = len(updated_seconds)
    in_flight = is_in_flight(pods, updated_seconds, report_seconds)
    unmeasured = np.maximum(pods.estimate - pods.usage, 0)
    in_prod_usage = pods.is_prod & pods.is_reported & pods.is_reported_prod
    # Prod's usage lacks all usage of a Prod pod that was reported under another class.
    in_other_usage = pods.is_prod & pods.is_reported & ~pods.is_reported_prod
    unmeasured_of_prod = np.where(in_other_usage[:, None], pods.estimate, unmeasured)

    def by_node(amounts: IntArray, some: BoolArray) -> IntArray:
        total = np.zeros((nodes, amounts.shape[1]), np.int64)
        np.add.at(total, pods.node[some], amounts[some])
        return total

    return InFlightSums(
        node_delta=by_node(unmeasured, in_flight),
        prod_usage=counted + by_node(pods.usage, in_prod_usage),
        prod_delta=by_node(unmeasured_of_prod, pods.is_prod & (in_other_usage | in_flight)),
        node_estimated=by_node(pods.estimate, np.ones(len(pods.node), np.bool_)),
        unreported=by_node(pods.estimate, ~pods.is_reported),
    )
