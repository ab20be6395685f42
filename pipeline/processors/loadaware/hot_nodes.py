"""Whether a node is too hot for pods, by LoadAwareScheduling's thresholds without pods in flight.

Thresholds are those of the extender: a node's own before those of all nodes. cpu and memory count.
Pods in flight are left out, because only a measured rise or fall of usage makes a node hot or cool.
"""

from collections.abc import Set
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.loadaware.filter_score import aggregated_usage, over_thresholds
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import AGGREGATED, PROD, Limits, select_limits
from pipeline.processors.loadaware.usage_readings import usage_percent
from pipeline.topics import node_state
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Usage

FOR_PROD: Final = "prod"
FOR_OTHERS: Final = "others"

_UNKNOWN: Final = Usage()
_NO_PODS: Final = Usage(cpu_cores=0.0, memory_bytes=0.0)


def hot_for(state: NodeStateRecord, args: LoadAwareArgs, annotation: str | None) -> Set[str]:
    """For which pods a node's last window is over a threshold: `FOR_PROD`, `FOR_OTHERS`.
    `annotation` holds the node's own thresholds, None if it has none. If usage of Prod is unknown,
    the thresholds of other pods apply to Prod, too."""
    limits = {
        FOR_OTHERS: select_limits(args, annotation, is_prod=False),
        FOR_PROD: select_limits(args, annotation, is_prod=True),
    }
    if (
        limits[FOR_PROD].kind == PROD
        and not np.isfinite(_usage(state, args, limits[FOR_PROD])).any()
    ):
        limits[FOR_PROD] = limits[FOR_OTHERS]
    return frozenset(pods for pods, each in limits.items() if _is_over(state, args, each))


def _is_over(state: NodeStateRecord, args: LoadAwareArgs, limits: Limits) -> bool:
    percent = usage_percent(_usage(state, args, limits), _row(state.allocatable))
    thresholds = np.array([limits.thresholds.get(name, 0) for name in ("cpu", "memory")])
    return bool(over_thresholds(percent, thresholds).any())


def _usage(state: NodeStateRecord, args: LoadAwareArgs, limits: Limits) -> FloatArray:
    """The usage that thresholds are for, (1, 2) in cores and bytes, NaN is unknown."""
    if limits.kind == PROD:
        # A node without Prod pods uses nothing for Prod, unless pods of unknown class may be Prod.
        used = state.class_usage.get("prod", _UNKNOWN if state.unknown_pods else _NO_PODS)
        system = _row(state.system_usage) if args.prod_usage_include_sys else np.zeros((1, 2))
        return _row(used) + np.nan_to_num(system)
    usage = _row(state.usage)
    if limits.kind != AGGREGATED:
        return usage
    spans = {
        node_state.AGGREGATED[span]: _row(getattr(statistics, limits.statistic))
        for span, statistics in state.aggregated.items()
        if span in node_state.AGGREGATED
    }
    return aggregated_usage(spans, limits.span_seconds, usage)


def _row(usage: Usage) -> FloatArray:
    both = (usage.cpu_cores, usage.memory_bytes)
    return np.array([[np.nan if amount is None else amount for amount in both]])
