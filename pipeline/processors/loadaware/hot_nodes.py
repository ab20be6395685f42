"""For whom a node is too hot: by what LoadAware judges a node's usage, without what is on its way.

Owes the rest: the thresholds that the extender goes by, those of the node itself before those for
all, of the usage that each of them is for. Only cpu and memory are looked at.
"""

from collections.abc import Set
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.loadaware.filter_score import aggregated_usage
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs
from pipeline.processors.loadaware.node_thresholds import AGGREGATED, PROD, Limits, limits_of
from pipeline.processors.loadaware.usage_thresholds import RESOURCES, filter_by_usage
from pipeline.topics import node_state
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.resource_amounts import Usage

FOR_PROD: Final = "prod"
FOR_OTHERS: Final = "others"

_UNKNOWN: Final = Usage()
_NO_PODS: Final = Usage(cpu_cores=0.0, memory_bytes=0.0)


def hot_for(state: NodeStateRecord, args: LoadAwareArgs, annotation: str | None) -> Set[str]:
    """Which pods a node is too full for by its last window: of `FOR_PROD` and `FOR_OTHERS`.
    `annotation` has the node's own thresholds, None where it has none."""
    limits = {
        FOR_OTHERS: limits_of(args, annotation, is_prod=False),
        FOR_PROD: limits_of(args, annotation, is_prod=True),
    }
    if limits[FOR_PROD].of == PROD and not np.isfinite(_usage(state, args, limits[FOR_PROD])).any():
        limits[FOR_PROD] = limits[FOR_OTHERS]
    return frozenset(who for who, of in limits.items() if _is_over(state, args, of))


def _is_over(state: NodeStateRecord, args: LoadAwareArgs, of: Limits) -> bool:
    used, room = _usage(state, args, of), _row(state.allocatable)
    verdict = filter_by_usage(
        {name: used[:, at] for at, name in enumerate(RESOURCES)},
        {name: room[:, at] for at, name in enumerate(RESOURCES)},
        np.ones(1, np.bool_),
        thresholds_percent={name: of.thresholds.get(name, 0) for name in RESOURCES},
    )
    return bool(verdict.refused[0])


def _usage(state: NodeStateRecord, args: LoadAwareArgs, of: Limits) -> FloatArray:
    """The usage that a threshold is for, (1, 2) in cores and bytes, NaN is unknown."""
    if of.of == PROD:
        # Without Prod it uses nothing, unless there are pods that may be.
        used = state.class_usage.get("prod", _UNKNOWN if state.unknown_pods else _NO_PODS)
        system = _row(state.system_usage) if args.prod_usage_include_sys else np.zeros((1, 2))
        return _row(used) + np.nan_to_num(system)
    usage = _row(state.usage)
    if of.of != AGGREGATED:
        return usage
    spans = {
        node_state.AGGREGATED[span]: _row(getattr(found, of.statistic))
        for span, found in state.aggregated.items()
        if span in node_state.AGGREGATED
    }
    return aggregated_usage(spans, of.span_seconds, usage)


def _row(usage: Usage) -> FloatArray:
    both = (usage.cpu_cores, usage.memory_bytes)
    return np.array([[np.nan if one is None else one for one in both]])
