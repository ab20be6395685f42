"""LoadVariationRiskBalancing of Trimaran: nodes whose load is low and steady first.

risk = (mean + margin * deviation ** (1 / sensitivity)) / 2, both as shares of capacity, the second
term within 0 and 1. Source: the plugin's code, which halves the sum.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.scorers import trimaran
from pipeline.processors.scorers.load_statistics import Load, load, resource_unit, shares
from pipeline.processors.scorers.rounding import clamp, round_half_away
from pipeline.processors.scorers.scorer import Counts, NodesView, PodDemand, Scorer, usage_expires
from pipeline.topics.resource_amounts import MEASURED


class LoadVariationRiskBalancingArgs(trimaran.TrimaranArgs, frozen=True, kw_only=True):
    """`resources` (ours) names the resources that count; their usage must be measured."""

    safe_variance_margin: float | None = None
    safe_variance_sensitivity: float | None = None
    resources: Annotated[tuple[str, ...], Meta(min_length=1)] = ("cpu", "memory")


def risk_score(
    capacity: FloatArray,
    load: Load,
    requested: FloatArray | float,
    *,
    margin: float = 1.0,
    sensitivity: float = 1.0,
) -> FloatArray:
    """The score of one resource, (nodes,), 0 to 100, not rounded; NaN where it was not measured.
    A sensitivity below 0 takes no root."""
    used = Load(
        np.clip(load.average, 0.0, np.maximum(capacity, 0.0)),
        np.clip(load.deviation, 0.0, np.maximum(capacity, 0.0)),
    )
    share = shares(capacity, used, np.maximum(requested, 0.0))
    spread = share.deviation
    if sensitivity >= 0:
        with np.errstate(divide="ignore"):
            spread = spread ** np.divide(1.0, sensitivity)
    risk = (share.mean + clamp(spread * margin)) / 2
    score = np.where(capacity > 0, (1 - risk) * 100, 0.0)
    return np.where(np.isfinite(load.average), score, np.nan)


def score(nodes: NodesView, demand: PodDemand, args: LoadVariationRiskBalancingArgs) -> IntArray:
    """The lowest score of the measured resources, (nodes,), rounded; 0 without any.

    A resource whose usage is unknown has the lowest score that is known of any node: upstream
    ignores it, so that a node scores better because its usage is unknown."""
    scores = []
    for resource in args.resources:
        capacity = nodes.allocatable(resource) / resource_unit(resource)
        used = load(nodes, resource, capacity)
        requested = demand.counted[f"request:{resource}"] / resource_unit(resource)
        margin, sensitivity = args.safe_variance_margin, args.safe_variance_sensitivity
        scores.append(
            risk_score(
                capacity, used, requested, margin=margin or 0.0, sensitivity=sensitivity or 0.0
            )
        )
    by_resource = np.array(scores)
    has_any = np.logical_or.reduce(np.isfinite(by_resource), axis=0)
    lowest = np.fmin.reduce(by_resource, axis=1, keepdims=True, initial=np.inf)
    filled = np.where(np.isnan(by_resource), lowest, by_resource)
    return round_half_away(np.where(has_any, filled.min(axis=0), np.nan))


def _problems(args: LoadVariationRiskBalancingArgs) -> Iterator[str]:
    for name in args.resources:
        if name not in MEASURED:
            yield f"resources: usage of {name!r:.80} is not measured"


def _defaults(args: LoadVariationRiskBalancingArgs) -> LoadVariationRiskBalancingArgs:
    def non_negative(value: float | None) -> float:
        return 1.0 if value is None or not value >= 0 else value

    return trimaran.with_defaults(
        args,
        safe_variance_margin=non_negative(args.safe_variance_margin),
        safe_variance_sensitivity=non_negative(args.safe_variance_sensitivity),
    )


SCORER: Final = Scorer(
    name="LoadVariationRiskBalancing",
    source="Trimaran",
    text="prefers nodes whose load is low and steady",
    args=LoadVariationRiskBalancingArgs,
    score=score,
    problems=_problems,
    defaults=_defaults,
    notes=trimaran.notes,
    counts=lambda args: Counts(resources=args.resources),
    expiration_seconds=usage_expires,
)
