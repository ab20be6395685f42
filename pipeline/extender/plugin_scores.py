"""How good nodes are for a pod: what each plugin needs of the table, handed to its scorer.

Owes the rest: for every plugin that scores, a function of the nodes of a question, the pod and the
plugin's arguments that gives whole numbers (nodes,) from 0 to 100, 0 where it knows nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pipeline.extender.filters import compared, hint_of, nodes_of
from pipeline.extender.node_moment import Ask, Moment
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.loadaware import filter_score, node_thresholds
from pipeline.processors.loadaware.loadaware_args import Aggregated, LoadAwareArgs, span_seconds
from pipeline.processors.loadaware.node_thresholds import Limits
from pipeline.processors.loadaware.pod_amounts import fitted
from pipeline.processors.loadaware.usage_thresholds import usage_percent
from pipeline.processors.placement.plugin_config import HEADROOM, HINT, LOAD_AWARE
from pipeline.processors.scorers import plugin_args, trimaran_args
from pipeline.processors.scorers.fit_plus import fit_plus
from pipeline.processors.scorers.load_statistics import Load, of_percent
from pipeline.processors.scorers.load_variation import load_variation, risk_score
from pipeline.processors.scorers.low_risk import BEST_EFFORT, low_risk
from pipeline.processors.scorers.low_risk import asked as risked
from pipeline.processors.scorers.low_risk import risk as low_risk_of
from pipeline.processors.scorers.node_metadata import by_metadata, raw_metadata
from pipeline.processors.scorers.node_size import by_size, raw_size
from pipeline.processors.scorers.power_peaks import PowerModel, cheapest_first, costs, power_rise
from pipeline.processors.scorers.predicted_headroom import headroom
from pipeline.processors.scorers.resource_limits import limit_aware, limit_room
from pipeline.processors.scorers.rounding import MAX_SCORE
from pipeline.processors.scorers.scarce_resources import scarce_resources
from pipeline.processors.scorers.scheduling_hint import preferred_nodes
from pipeline.processors.scorers.target_load import busier, predicted_percent, target_load

Scorer = Callable[[Moment, Ask, Any], IntArray]

_TRIMARAN_SPAN: Final = "15m"
STALE_SECONDS: Final = 300.0
"""KEP-61: the newest window that is not older than 5 minutes, else the lowest score."""
_RESOURCES: Final = ("cpu", "memory")
_UNLIMITED: Final = (*_RESOURCES, "ephemeral-storage")
"""What a pod takes that says nothing of it; of all else it gets nothing then."""
_MIB: Final = 2.0**20


def load_aware(moment: Moment, asked: Ask, args: LoadAwareArgs) -> IntArray:
    """What is left of each node."""
    aggregated = args.aggregated or Aggregated()
    of = Limits({})
    if args.score_according_prod_usage and asked.is_prod:
        of = Limits({}, node_thresholds.PROD)
    elif aggregated.score_aggregation_type:
        span = span_seconds(aggregated.score_aggregated_duration) or 0
        of = Limits({}, node_thresholds.AGGREGATED, aggregated.score_aggregation_type, span)
    weights = np.array([args.resource_weights.get(name, 0) for name in args.resources])
    return filter_score.score(
        nodes_of(moment, args, compared(moment, args, of), of),
        asked.amounts("estimate", args.resources),
        ~moment.is_fresh(args.node_metric_expiration_seconds or 0),
        weights,
        args.dominant_resource_weight,
    )


def _percent(moment: Moment, resource: str, column: str) -> FloatArray:
    """Usage in percent of the machine's capacity, as load-watcher tells it; of a new node 0."""
    have = moment.allocatable(resource, "capacity").astype(np.float64)
    used = moment.usage(column, [resource])[:, 0]
    percent = np.where(moment.is_fresh(STALE_SECONDS), usage_percent(used, have), np.nan)
    return np.where(moment.is_new() & (have > 0), 0.0, percent)


def _average(moment: Moment, resource: str) -> FloatArray:
    """The average over a quarter of an hour, or the latest where there is none yet."""
    average = _percent(moment, resource, f"usage_mean_{_TRIMARAN_SPAN}")
    return np.where(np.isfinite(average), average, _percent(moment, resource, "usage"))


def target_load_packing(
    moment: Moment, asked: Ask, args: trimaran_args.TargetLoadPackingArgs
) -> IntArray:
    """Up to the target the fuller the better."""
    have = moment.allocatable("cpu", "capacity").astype(np.float64)
    loads = [
        (_average(moment, "cpu"), moment.unmeasured()),
        (_percent(moment, "cpu", "usage"), moment.unseen()),
    ]
    average, latest = (
        predicted_percent(load, have, (more + asked.counted["packing"]).astype(np.float64))
        for load, more in loads
    )
    percent = busier(average, latest)
    return target_load(percent, float(args.target_utilization or 0))


def _load(moment: Moment, resource: str, have: FloatArray) -> Load:
    deviation = _percent(moment, resource, f"usage_stdev_{_TRIMARAN_SPAN}")
    return of_percent(have, _average(moment, resource), deviation)


def _unit(resource: str) -> float:
    """Trimaran looks at memory in MiB."""
    return _MIB if resource == "memory" else 1.0


def load_variation_risk_balancing(
    moment: Moment, asked: Ask, args: trimaran_args.LoadVariationRiskBalancingArgs
) -> IntArray:
    """Nodes whose load is low and steady."""
    scores = []
    for resource in args.resources:
        have = moment.allocatable(resource) / _unit(resource)
        wanted = asked.counted[f"request:{resource}"] / _unit(resource)
        scores.append(
            risk_score(
                have,
                _load(moment, resource, have),
                wanted,
                margin=args.safe_variance_margin or 0.0,
                sensitivity=args.safe_variance_sensitivity or 0.0,
            )
        )
    return load_variation(scores)


def low_risk_over_commitment(
    moment: Moment, asked: Ask, args: trimaran_args.LowRiskOverCommitmentArgs
) -> IntArray:
    """Nodes whose limits and load stay within what they have."""
    wanted = {name: asked.counted[f"bound:{name}"] for name in _RESOURCES}
    if not any(wanted.values()):
        return np.full(len(moment), BEST_EFFORT, np.int64)
    risks = []
    for resource in _RESOURCES:
        unit = _unit(resource)
        have = moment.allocatable(resource) / unit
        of = risked(
            moment.counted(f"request:{resource}") / unit,
            moment.counted(f"bound:{resource}") / unit,
            asked.counted[f"request:{resource}"] / unit,
            wanted[resource] / unit,
        )
        risks.append(
            low_risk_of(
                have,
                of.capped(have),
                _load(moment, resource, have),
                limit_weight=(args.risk_limit_weights or {}).get(resource, 0.5),
                smoothing_window=float(args.smoothing_window_size or 0),
            )
        )
    known = np.isfinite(_average(moment, "cpu")) | np.isfinite(_average(moment, "memory"))
    return np.where(known, low_risk(risks), 0)


def peaks(moment: Moment, asked: Ask, args: plugin_args.PeaksArgs) -> IntArray:
    """Where the pod makes power rise least."""
    models = [args.node_power_model.get(name) for name in moment.names]
    constants = [
        (np.nan, np.nan, np.nan) if one is None else (one.k0, one.k1, one.k2) for one in models
    ]
    model = PowerModel(*np.array(constants, np.float64).reshape(-1, 3).T)
    have = moment.allocatable("cpu", "capacity").astype(np.float64)
    rise = power_rise(model, _average(moment, "cpu"), have, asked.counted["request:cpu"])
    return cheapest_first(costs(rise), np.isfinite(rise))


def resource_limits(moment: Moment, asked: Ask, args: plugin_args.ResourceLimitsArgs) -> IntArray:
    """Where limits leave most room."""
    weights = {one.name: float(one.weight) for one in args.resources}
    have = {name: moment.allocatable(name).astype(np.float64) for name in weights}
    taken = {name: moment.counted(f"limit:{name}").astype(np.float64) for name in weights}
    wanted = {name: asked.counted[f"limit:{name}"] for name in weights}
    usual = args.default_limits
    for name, limit in wanted.items():
        if not limit and (name in _UNLIMITED or name in usual):
            # Without a limit a pod may take all that there is, or what is said for such.
            taken[name] = taken[name] + usual.get(name, have[name])
    return limit_aware(limit_room(have, taken, wanted, weights))


def fit_plus_of(moment: Moment, asked: Ask, args: plugin_args.NodeResourcesFitPlusArgs) -> IntArray:
    """Some resources packed, others spread."""
    resources = args.by_name
    return fit_plus(
        {name: fitted(asked.pod, name) for name in resources},
        {name: moment.counted(f"fitted:{name}") for name in resources},
        {name: moment.allocatable(name) for name in resources},
        resources,
        len(moment),
    )


def scarce(moment: Moment, asked: Ask, args: plugin_args.ScarceResourceAvoidanceArgs) -> IntArray:
    """Nodes that have nothing rare which the pod leaves unused."""
    kinds = {name: moment.allocatable(name) for name in (*_RESOURCES, *moment.scalars)}
    return scarce_resources(kinds, asked.requests, args.resources, len(moment))


def hinted(moment: Moment, asked: Ask, args: plugin_args.SchedulingHintArgs) -> IntArray:
    """The nodes that the pod prefers, the first the best."""
    preferred = hint_of(asked.pod.annotations).preferred_node_names
    offered = set(moment.names)
    ranks = {
        name: max(MAX_SCORE - rank, 1)
        for rank, name in enumerate(preferred_nodes(preferred, offered, args.max_hint_nodes))
    }
    return np.array([ranks.get(name, 0) for name in moment.names], np.int64)


def node_metadata(moment: Moment, asked: Ask, args: plugin_args.NodeMetadataArgs) -> IntArray:
    """By a label or an annotation of the node."""
    texts: list[str | None] = []
    for place in range(len(moment)):
        node = moment.node(place).node
        said: Mapping[str, str] = {}
        if node is not None:
            said = node.labels if args.metadata_source == "Label" else node.annotations
        texts.append(said.get(args.metadata_key))
    raw = raw_metadata(texts, args.metadata_type, args.scoring_strategy, moment.now)
    return by_metadata(raw)


def node_size(
    moment: Moment, asked: Ask, args: plugin_args.NodeResourcesAllocatableArgs
) -> IntArray:
    """Big nodes first, or small ones."""
    weights = {one.name: one.weight for one in args.resources}
    sizes = {name: moment.allocatable(name) for name in weights}
    return by_size(raw_size(sizes, weights, args.mode))


def predicted_headroom(
    moment: Moment, asked: Ask, args: plugin_args.PredictedHeadroomArgs
) -> IntArray:
    """Where most is left under the predicted peak."""
    weights = {one.name: one.weight for one in args.resources}
    places = {name: at for at, name in enumerate(_resources_of(asked))}
    flight = moment.flight()
    peak, added = {}, {}
    for name in weights:
        predicted = moment.usage("peak", [name])[:, 0]
        predicted = np.where(moment.is_fresh(STALE_SECONDS), predicted, np.nan)
        peak[name] = np.where(moment.is_new(), 0.0, predicted)
        wanted = asked.counted.get(f"estimate:{name}", 0)
        added[name] = flight[:, places[name]] + wanted if name in places else flight[:, 0] * 0
    have = {name: moment.allocatable(name) for name in weights}
    return headroom(have, peak, added, weights)


def _resources_of(asked: Ask) -> Sequence[str]:
    """Those of LoadAware, in their order."""
    return [name.partition(":")[2] for name in asked.counted if name.startswith("estimate:")]


SCORERS: Final[Mapping[str, Scorer]] = {
    LOAD_AWARE: load_aware,
    "TargetLoadPacking": target_load_packing,
    "LoadVariationRiskBalancing": load_variation_risk_balancing,
    "LowRiskOverCommitment": low_risk_over_commitment,
    "Peaks": peaks,
    "ResourceLimits": resource_limits,
    "NodeResourcesFitPlus": fit_plus_of,
    "ScarceResourceAvoidance": scarce,
    HINT: hinted,
    "NodeMetadata": node_metadata,
    "NodeResourcesAllocatable": node_size,
    HEADROOM: predicted_headroom,
}
BY_LOAD: Final = frozenset(
    {
        LOAD_AWARE, "TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment",
        "Peaks", HEADROOM,
    }
)  # fmt: skip
"""Those that know nothing where usage is not known: for LoadAware older than its arguments allow,
for the others than `STALE_SECONDS`."""
