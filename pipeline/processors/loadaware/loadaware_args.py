"""The arguments of LoadAwareScheduling, with Koordinator's names, ranges and defaults.

Arguments are decoded as the user wrote them, completed (`with_defaults`), and then checked
(`problems`), in the order of Koordinator: a weight, for example, is valid if its resource has a
scaling factor by default.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec

from pipeline.processors.kubernetes.durations import LONGEST_SECONDS, go_seconds
from pipeline.processors.kubernetes.resource_names import resource_name_problem
from pipeline.processors.policy.config_sections import json_keys
from pipeline.topics.node_state import AGGREGATED, AGGREGATIONS
from pipeline.topics.resource_amounts import MEASURED, is_gauge

ESTIMATOR: Final = "defaultEstimator"

PercentByResource = dict[str, int]
"""Thresholds, weights or scaling factors by resource; all are percentages from 0 or 1 to 100."""


class Aggregated(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The statistic of usage that is compared, and its span; an empty type compares none."""

    usage_thresholds: PercentByResource = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: str = ""
    score_aggregation_type: str = ""
    score_aggregated_duration: str = ""


class LoadAwareArgs(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, dict=True
):
    """The arguments as given; None and empty values are not set."""

    api_version: str = ""
    kind: str = ""
    filter_expired_node_metrics: bool | None = None
    node_metric_expiration_seconds: int | None = None
    enable_schedule_when_node_metrics_expired: bool | None = None
    resource_weights: PercentByResource = {}
    dominant_resource_weight: int = 0
    usage_thresholds: PercentByResource = {}
    prod_usage_thresholds: PercentByResource = {}
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""
    estimated_scaling_factors: PercentByResource = {}
    estimated_seconds_after_pod_scheduled: int | None = None
    estimated_seconds_after_initialized: int | None = None
    allow_customize_estimation: bool = False
    aggregated: Aggregated | None = None
    supported_resources: tuple[str, ...] = ()

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """The resources that are judged: cpu, memory, and every resource that an argument names."""
        aggregated = self.aggregated or Aggregated()
        named = {
            "cpu", "memory",
            *self.usage_thresholds, *self.prod_usage_thresholds, *aggregated.usage_thresholds,
            *self.resource_weights, *self.estimated_scaling_factors, *self.supported_resources,
        }  # fmt: skip
        return tuple(sorted(named))


THRESHOLDS: Final = {"cpu": 65, "memory": 95}
_FACTORS: Final = {"cpu": 85, "memory": 70}
_WEIGHTS: Final = {"cpu": 1, "memory": 1}
_DEFAULTS: Final[Mapping[str, int]] = {
    "filter_expired_node_metrics": True,
    "node_metric_expiration_seconds": 180,
    "enable_schedule_when_node_metrics_expired": False,
}


def with_defaults(args: LoadAwareArgs) -> LoadAwareArgs:
    """Return `args` with Koordinator's defaults in place of what is not set.

    Thresholds and weights have their default only as a whole: a map with one resource means that
    the others have none. Scaling factors have a default for each resource, because every resource
    with a weight needs a factor.
    """
    missing = {name: value for name, value in _DEFAULTS.items() if getattr(args, name) is None}
    weights = args.resource_weights
    if not weights and not args.dominant_resource_weight:
        weights = _WEIGHTS
    return msgspec.structs.replace(
        args,
        **missing,
        resource_weights=weights,
        usage_thresholds=args.usage_thresholds or THRESHOLDS,
        estimated_scaling_factors=_FACTORS | args.estimated_scaling_factors,
    )


def problems(args: LoadAwareArgs) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each invalid value in complete arguments (`with_defaults`).

    These are the checks of Koordinator, and one that it lacks: the range of `prodUsageThresholds`.
    """
    expiration = args.node_metric_expiration_seconds
    if expiration is not None and not 0 < expiration <= LONGEST_SECONDS:
        yield "nodeMetricExpirationSeconds", f"{expiration} is not more than 0 and at most a year"
    if not 0 <= args.dominant_resource_weight <= 100:
        yield "dominantResourceWeight", f"{args.dominant_resource_weight} is not from 0 to 100"
    yield from _outside("resourceWeights", args.resource_weights, 1)
    yield from _outside("usageThresholds", args.usage_thresholds, 0)
    yield from _outside("prodUsageThresholds", args.prod_usage_thresholds, 0)
    yield from _outside("estimatedScalingFactors", args.estimated_scaling_factors, 1)
    yield from _unknown_resources(args)
    for name in args.resource_weights:
        if name not in args.estimated_scaling_factors:
            yield "estimatedScalingFactors", f"has none for {name}, which has a weight"
    for name in ("estimated_seconds_after_pod_scheduled", "estimated_seconds_after_initialized"):
        seconds = getattr(args, name)
        if seconds is not None and not 0 <= seconds <= LONGEST_SECONDS:
            yield json_keys(LoadAwareArgs)[name], f"{seconds} is not from 0 to a year"
    if args.aggregated is not None:
        yield from _aggregated_problems(args.aggregated)


def ignored_arguments(args: LoadAwareArgs) -> Iterator[str]:
    """Values that are accepted and have no effect."""
    if args.estimator not in ("", ESTIMATOR):
        yield f"estimator {args.estimator!r:.80} is not known: {ESTIMATOR} estimates"
    aggregated = args.aggregated or Aggregated()
    named = {
        *args.usage_thresholds, *args.prod_usage_thresholds, *args.resource_weights,
        *aggregated.usage_thresholds,
    }  # fmt: skip
    for name in sorted(named - {*MEASURED}):
        if is_gauge(name):
            yield f"usage of {name:.80} is judged where samples of the node have a gauge of it"
        else:
            yield f"usage of {name:.80} is not measured: it is not judged"
    for name in sorted(args.prod_usage_thresholds.keys() - {"cpu", "memory"}):
        yield f"prodUsageThresholds: usage of {name} is not known by class"
    if bool(aggregated.usage_aggregation_type) != bool(aggregated.usage_thresholds):
        yield "aggregated: usageThresholds and usageAggregationType have an effect together only"
    for key, span in (
        ("usageAggregatedDuration", aggregated.usage_aggregated_duration),
        ("scoreAggregatedDuration", aggregated.score_aggregated_duration),
    ):
        if (span_seconds(span) or 0) not in (0, *AGGREGATED.values()):
            spans = ", ".join(AGGREGATED)
            yield f"aggregated.{key}: usage is known over {spans}: over {span} it is estimated"


def _unknown_resources(args: LoadAwareArgs) -> Iterator[tuple[str, str]]:
    named = {"aggregated.usageThresholds": (args.aggregated or Aggregated()).usage_thresholds} | {
        json_keys(LoadAwareArgs)[field]: getattr(args, field)
        for field in (
            "resource_weights", "usage_thresholds", "prod_usage_thresholds",
            "estimated_scaling_factors", "supported_resources",
        )
    }  # fmt: skip
    for key, names in named.items():
        for wrong in filter(None, map(resource_name_problem, names)):
            yield key, wrong


def _aggregated_problems(args: Aggregated) -> Iterator[tuple[str, str]]:
    yield from _outside("aggregated.usageThresholds", args.usage_thresholds, 0)
    for name in ("usage", "score"):
        kind = getattr(args, f"{name}_aggregation_type")
        if kind and kind not in AGGREGATIONS:
            text = f"{kind!r:.80} is not one of {', '.join(AGGREGATIONS)}"
            yield f"aggregated.{name}AggregationType", text
        duration = getattr(args, f"{name}_aggregated_duration")
        if span_seconds(duration) is None:
            text = f"{duration!r:.80} is not a duration such as 5m"
            yield f"aggregated.{name}AggregatedDuration", text


def _outside(key: str, percents: PercentByResource, least: int) -> Iterator[tuple[str, str]]:
    for name, percent in percents.items():
        if not least <= percent <= 100:
            yield key, f"{percent} for {name:.80} is not from {least} to 100"


def span_seconds(duration: str) -> int | None:
    """The seconds of a Go duration; 0 (the longest span that there is) if it is 0 or empty. None if
    it is not a duration of whole seconds.

    >>> span_seconds("5m"), span_seconds("0s"), span_seconds("-5m")
    (300, 0, None)
    """
    seconds = None if duration.startswith("-") else go_seconds(duration or "0")
    return None if seconds is None or seconds % 1 or seconds > LONGEST_SECONDS else int(seconds)
