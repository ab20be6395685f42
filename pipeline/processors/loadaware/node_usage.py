"""Select the usage that LoadAwareScheduling compares with a threshold.

It is all usage, that of Prod or a percentile, plus that of pods in flight.
"""

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.filter_score import NodeUsage
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.scorers.scorer import NodesView
from pipeline.topics.node_state import AGGREGATED


def load_aware_usage(
    nodes: NodesView, args: LoadAwareArgs, limits: Limits, *, in_flight: bool = True
) -> IntArray:
    """The usage that `limits` are for, (nodes, resources), with pods in flight."""
    name = f"compared {limits.kind} {limits.statistic} {limits.span_seconds} {in_flight}"
    return nodes.cached(name, lambda: _compute_usage(nodes, args, limits, in_flight=in_flight))


def _compute_usage(
    nodes: NodesView, args: LoadAwareArgs, limits: Limits, *, in_flight: bool
) -> IntArray:
    resources = args.resources
    nothing = np.zeros((1, len(resources)), np.int64)
    flight = nodes.in_flight_usage() if in_flight else nothing
    if limits.kind == node_thresholds.PROD:
        used = nodes.usage("prod_usage", resources)
        if args.prod_usage_include_sys:
            used = used + np.nan_to_num(nodes.usage("system_usage", resources))
        prod_usage = np.nan_to_num(used).astype(np.int64)
        prod_flight = nodes.in_flight_usage(prod=True) if in_flight else nothing
        return prod_usage + prod_flight
    usage, estimated = nodes.usage("usage", resources), nothing
    if limits.kind == node_thresholds.AGGREGATED or not nodes.has_usage("usage", resources).all():
        estimated = np.array([nodes.counted(f"estimate:{name}") for name in resources]).T
    if nodes.is_new().any():
        usage = np.where(nodes.is_new()[:, None], 0.0, usage)
    if limits.kind == node_thresholds.AGGREGATED:
        spans = {
            seconds: nodes.usage(f"usage_{limits.statistic}_{span}", resources)
            for span, seconds in AGGREGATED.items()
        }
        usage = filter_score.aggregated_usage(spans, limits.span_seconds, usage)
    return filter_score.compared_usage(usage, flight, estimated)


def read_node_usage(
    nodes: NodesView, args: LoadAwareArgs, used: IntArray, limits: Limits
) -> NodeUsage:
    """What `judge` and `score` take: capacity, the compared usage, and when it was reported."""
    resources = args.resources
    new = nodes.is_new()
    as_of = nodes.column("as_of_seconds")
    if new.any():
        as_of = np.where(new, nodes.now, as_of)
    has_usage = nodes.has_usage(
        "prod_usage" if limits.kind == node_thresholds.PROD else "usage", resources
    )
    capacity = np.array([nodes.allocatable(name, "raw") for name in resources]).T
    return NodeUsage(capacity, used, np.isfinite(as_of), has_usage | new, as_of)
