"""LoadAwareScheduling of Koordinator: the least loaded node first. Its filter is in `loadaware`."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.loadaware import filter_score, loadaware_args, node_thresholds
from pipeline.processors.loadaware.loadaware_args import Aggregated, LoadAwareArgs, span_seconds
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.node_usage import read_node_usage
from pipeline.processors.scorers.scorer import NodesView, PodDemand, Scorer

LOAD_AWARE: Final = "LoadAwareScheduling"


def score(nodes: NodesView, demand: PodDemand, args: LoadAwareArgs) -> IntArray:
    aggregated = args.aggregated or Aggregated()
    limits = Limits({})
    if args.score_according_prod_usage and demand.is_prod:
        limits = Limits({}, node_thresholds.PROD)
    elif aggregated.score_aggregation_type:
        span = span_seconds(aggregated.score_aggregated_duration) or 0
        limits = Limits({}, node_thresholds.AGGREGATED, aggregated.score_aggregation_type, span)
    weights = np.array([args.resource_weights.get(name, 0) for name in args.resources])
    return filter_score.score(
        read_node_usage(nodes, args, limits),
        demand.amounts("estimate", args.resources),
        ~nodes.is_fresh(args.node_metric_expiration_seconds or 0),
        weights,
        args.dominant_resource_weight,
    )


def _problems(args: LoadAwareArgs) -> Iterator[str]:
    complete = loadaware_args.with_defaults(args)
    if problems := [f"{key}: {text}" for key, text in loadaware_args.problems(complete)]:
        yield "; ".join(problems)


SCORER: Final = Scorer(
    name=LOAD_AWARE,
    source="Koordinator",
    text=(
        "filter and score; all arguments of v1.7, also for [other resources](#other-resources); "
        "the node annotation `scheduling.koordinator.sh/usage-thresholds`"
    ),
    args=LoadAwareArgs,
    score=score,
    problems=_problems,
    defaults=loadaware_args.with_defaults,
    notes=lambda tree, args: loadaware_args.ignored_arguments(args),
    expiration_seconds=lambda args: float(args.node_metric_expiration_seconds or 0),
)
