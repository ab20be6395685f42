"""Select the usage that LoadAwareScheduling compares with a threshold.

It is all usage, that of Prod or a percentile, plus that of pods in flight. Where usage of a
resource is unknown, the estimates of the pods on the node count; where it is doubtful, the larger
of both.
"""

from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.filter_score import NodeUsage
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.scorers.scorer import NodesView
from pipeline.topics.node_state import AGGREGATED

ALL_USAGE: Final = Limits({})
"""All usage of the last window."""


def load_aware_usage(
    nodes: NodesView, args: LoadAwareArgs, limits: Limits, *, in_flight: bool = True
) -> IntArray:
    """The usage that `limits` are for, (nodes, resources), with pods in flight. Where it is
    unknown: for Prod that of all pods, else the sum of the estimates of all pods. Where it is
    doubtful: the larger of both."""
    name = f"compared {limits.kind} {limits.statistic} {limits.span_seconds} {in_flight}"
    return nodes.cached(name, lambda: _compute_usage(nodes, args, limits, in_flight=in_flight))


def is_unknown(nodes: NodesView, args: LoadAwareArgs, limits: Limits = ALL_USAGE) -> BoolArray:
    """Where the usage that `limits` are for is unknown or doubtful, (nodes, resources). False where
    a node has nothing of a resource."""
    name = f"unknown {limits.kind} {limits.statistic} {limits.span_seconds}"
    return nodes.cached(name, lambda: _compute_unknown(nodes, args, limits))


def _compute_unknown(nodes: NodesView, args: LoadAwareArgs, limits: Limits) -> BoolArray:
    unknown = np.isnan(_measured(nodes, args, limits))
    if np.count_nonzero(doubtful := _is_doubtful(nodes)):
        unknown |= doubtful[:, None]
    result: BoolArray = unknown & (_capacity(nodes, args) > 0)
    return result


def _is_doubtful(nodes: NodesView) -> BoolArray:
    """Where reported usage may be too low, (nodes,)."""
    return nodes.column("doubtful_usage").astype(np.bool_)


def _capacity(nodes: NodesView, args: LoadAwareArgs) -> IntArray:
    """Allocatable before amplification, (nodes, resources)."""
    resources = args.resources
    return nodes.cached(
        f"raw {resources}",
        lambda: np.array([nodes.allocatable(name, "raw") for name in resources]).T,
    )


def _measured(nodes: NodesView, args: LoadAwareArgs, limits: Limits) -> FloatArray:
    """The measured usage that `limits` are for, (nodes, resources), NaN is unknown. New nodes use
    nothing."""
    name = f"compared measured {limits.kind} {limits.statistic} {limits.span_seconds}"
    return nodes.cached(name, lambda: _select(nodes, args.resources, limits, args))


def _select(
    nodes: NodesView, resources: tuple[str, ...], limits: Limits, args: LoadAwareArgs
) -> FloatArray:
    is_prod = limits.kind == node_thresholds.PROD
    usage = nodes.usage("prod_usage" if is_prod else "usage", resources)
    if is_prod and args.prod_usage_include_sys:
        usage = usage + nodes.usage("system_usage", resources)
    if np.count_nonzero(nodes.is_new()):
        usage = np.where(nodes.is_new()[:, None], 0.0, usage)
    if limits.kind == node_thresholds.AGGREGATED:
        spans = {
            seconds: nodes.usage(f"usage_{limits.statistic}_{span}", resources)
            for span, seconds in AGGREGATED.items()
        }
        usage = filter_score.aggregated_usage(spans, limits.span_seconds, usage)
    return usage


def _compute_usage(
    nodes: NodesView, args: LoadAwareArgs, limits: Limits, *, in_flight: bool
) -> IntArray:
    measured = _measured(nodes, args, limits)
    is_prod = limits.kind == node_thresholds.PROD
    flight = np.zeros((1, len(args.resources)), np.int64)
    if in_flight:
        flight = nodes.in_flight_usage(prod=is_prod)
    estimated, doubtful = np.zeros_like(flight), _is_doubtful(nodes)
    if np.count_nonzero(doubtful) or not np.isfinite(measured).all():
        if is_prod:
            estimated = load_aware_usage(nodes, args, ALL_USAGE, in_flight=in_flight)
        else:
            estimated = np.array([nodes.counted(f"estimate:{name}") for name in args.resources]).T
    compared = filter_score.compared_usage(measured, flight, estimated)
    if np.count_nonzero(doubtful):
        compared = np.where(doubtful[:, None], np.maximum(compared, estimated), compared)
    return compared


def read_node_usage(
    nodes: NodesView, args: LoadAwareArgs, limits: Limits, *, in_flight: bool = True
) -> NodeUsage:
    """What `judge` and `score` take."""
    column = "prod_usage" if limits.kind == node_thresholds.PROD else "usage"
    return NodeUsage(
        capacity=_capacity(nodes, args),
        compared=load_aware_usage(nodes, args, limits, in_flight=in_flight),
        is_estimated=is_unknown(nodes, args, limits),
        is_reported=nodes.cached(
            "reported", lambda: np.isfinite(nodes.column("as_of_seconds")) | nodes.is_new()
        ),
        has_usage=nodes.cached(
            f"reported {column} {args.resources}",
            lambda: nodes.has_usage(column, args.resources) | nodes.is_new(),
        ),
    )
