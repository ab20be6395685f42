"""What of the pods of nodes is not in their usage yet, and what of the usage is Prod's.

Owes the rest: four sums per node over its pods (scheduling 1.5), as arrays over all pods at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray

DEFAULT_REPORT_SECONDS = 60.0


class Assigned(NamedTuple):
    """Pods that are on nodes, or about to be, and have not ended; arrays (pods,), amounts (pods,
    resources).

    `usage` is as it was reported, 0 where it was not (`is_reported`); `is_reported_prod` whether
    the report had it as Prod's. `deadline_seconds` is NaN for none.
    """

    node: npt.NDArray[np.int64]
    is_prod: BoolArray
    estimate: IntArray
    usage: IntArray
    is_reported: BoolArray
    is_reported_prod: BoolArray
    scheduled_seconds: FloatArray
    deadline_seconds: FloatArray


class Sums(NamedTuple):
    """Of each node, (nodes, resources): what is to be added to its usage, Prod's usage and what is
    to be added to that, and what all of its pods come to by their estimates alone."""

    node_delta: IntArray
    prod_usage: IntArray
    prod_delta: IntArray
    node_estimated: IntArray


def is_flying(pods: Assigned, updated_seconds: FloatArray, report_seconds: FloatArray) -> BoolArray:
    """Which pods, (pods,), are in flight: not measured, scheduled within a report before the last
    one, or to be estimated for longer."""
    updated = np.fmax(updated_seconds, -np.inf)[pods.node]
    before = updated - report_seconds[pods.node]
    flying: BoolArray = (
        ~pods.is_reported
        | (before < pods.scheduled_seconds)
        | (np.fmax(pods.deadline_seconds, -np.inf) > updated)
    )
    return flying


def sums(
    pods: Assigned,
    updated_seconds: FloatArray,
    report_seconds: FloatArray,
    counted: IntArray,
) -> Sums:
    """The sums for nodes whose usage was reported then, (nodes,), NaN for never.

    `counted` (nodes, resources) is in Prod's usage from the
    start: the system's, where the arguments have it so.
    """
    nodes = len(updated_seconds)
    flying = is_flying(pods, updated_seconds, report_seconds)
    missing = np.maximum(pods.estimate - pods.usage, 0)
    is_prods = pods.is_prod & pods.is_reported & pods.is_reported_prod
    elsewhere = pods.is_prod & pods.is_reported & ~pods.is_reported_prod
    of_prod = np.where(elsewhere[:, None], pods.estimate, missing)

    def by_node(amounts: IntArray, some: BoolArray) -> IntArray:
        total = np.zeros((nodes, amounts.shape[1]), np.int64)
        np.add.at(total, pods.node[some], amounts[some])
        return total

    return Sums(
        node_delta=by_node(missing, flying),
        prod_usage=counted + by_node(pods.usage, is_prods),
        prod_delta=by_node(of_prod, pods.is_prod & (elsewhere | flying)),
        node_estimated=by_node(pods.estimate, np.ones(len(pods.node), np.bool_)),
    )
