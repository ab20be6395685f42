"""The keys of `colocation-config`: their types, ranges and defaults.

A field of `Colocation` is None if not set. `decode` reads JSON as Go does, `problems_of` names
every value that is out of range.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from pipeline.processors.kubernetes.durations import timestamp_seconds
from pipeline.processors.policy.collect_interval import (
    LONGEST_SECONDS,
)
from pipeline.processors.policy.config_sections import (
    MOST,
    Config,
    Section,
    json_keys,
    out_of_range,
    read_object,
    unknown_words,
)
from pipeline.processors.slo.nodemetric import (
    LONGEST_SPAN_SECONDS,
    SHORTEST_SPAN_SECONDS,
    AggregatePolicy,
    PredictPolicy,
)
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.overcommit_policy import Overcommit

STATIC: Final = "static"
CPU_POLICIES: Final = ("usage", "maxUsageRequest")
MEMORY_POLICIES: Final = ("usage", "request", "maxUsageRequest")
MEMORY_COLLECT_POLICIES: Final[tuple[str, ...]] = get_args(MemoryCollectPolicy)


def _key(name: str) -> Any:
    return msgspec.field(default=None, name=name)


class Colocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The settings of the cluster, of an entry of `nodeConfigs`, or of a node's annotation."""

    enable: bool | None = None
    metric_aggregate_duration_seconds: int | None = None
    metric_report_interval_seconds: int | None = None
    metric_aggregate_policy: AggregatePolicy | None = None
    metric_memory_collect_policy: str | None = None
    node_predict_policy: PredictPolicy | None = None
    cpu_reclaim_threshold_percent: int | None = None
    cpu_calculate_policy: str | None = None
    memory_reclaim_threshold_percent: int | None = None
    memory_calculate_policy: str | None = None
    degrade_time_minutes: int | None = None
    update_time_threshold_seconds: int | None = None
    resource_diff_threshold: float | None = None
    batch_cpu_threshold_percent: int | None = _key("batchCPUThresholdPercent")
    batch_memory_threshold_percent: int | None = None
    mid_cpu_threshold_percent: int | None = _key("midCPUThresholdPercent")
    mid_memory_threshold_percent: int | None = None
    mid_unallocated_percent: int | None = None
    mid_reclaim_mode: str | None = None
    mid_static_cpu_reserved_percent: int | None = _key("midStaticCPUReservedPercent")
    mid_static_memory_reserved_percent: int | None = None
    extensions: dict[str, Any] | None = None


DEFAULTS: Final = Colocation(
    enable=False,
    metric_aggregate_duration_seconds=300,
    metric_report_interval_seconds=60,
    metric_aggregate_policy=AggregatePolicy(durations=("5m0s", "10m0s", "30m0s")),
    metric_memory_collect_policy="usageWithoutPageCache",
    **{
        field.name: field.default
        for field in msgspec.structs.fields(Overcommit)
        if field.name in Colocation.__struct_fields__ and field.default != ""
    },
)

KEYS: Final = json_keys(Colocation)
"""The JSON key of each field."""

_Range = tuple[int, int]
_ABOVE_ZERO: Final[_Range] = (1, MOST)
_NOT_NEGATIVE: Final[_Range] = (0, MOST)
_PERCENT: Final[_Range] = (0, 100)
_RANGES: Final[Mapping[str, _Range]] = {
    "metric_aggregate_duration_seconds": _ABOVE_ZERO,
    "metric_report_interval_seconds": _ABOVE_ZERO,
    "degrade_time_minutes": _ABOVE_ZERO,
    "update_time_threshold_seconds": _ABOVE_ZERO,
    "cpu_reclaim_threshold_percent": _NOT_NEGATIVE,
    "memory_reclaim_threshold_percent": _NOT_NEGATIVE,
    "batch_cpu_threshold_percent": _NOT_NEGATIVE,
    "batch_memory_threshold_percent": _NOT_NEGATIVE,
    "mid_static_cpu_reserved_percent": _NOT_NEGATIVE,
    "mid_static_memory_reserved_percent": _NOT_NEGATIVE,
    "mid_cpu_threshold_percent": _PERCENT,
    "mid_memory_threshold_percent": _PERCENT,
    "mid_unallocated_percent": _PERCENT,
}
# Koordinator's controller accepts more, its admission webhook does not.
_STATIC_RANGES: Final[dict[str, _Range]] = {
    "mid_static_cpu_reserved_percent": _PERCENT,
    "mid_static_memory_reserved_percent": _PERCENT,
}
# Koordinator accepts more, but Go's durations end at 292 years, and nothing would be reported.
_MEASUREMENT_RANGES: Final[dict[str, _Range]] = {
    "metric_aggregate_duration_seconds": (1, LONGEST_SECONDS),
    "metric_report_interval_seconds": (1, LONGEST_SECONDS),
}
_PREDICTION_RANGES: Final[dict[str, _Range]] = {
    "resource_diff_threshold_percent": (0, 1000),
    "cold_start_period_seconds": (0, 31_536_000),
}
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "metric_memory_collect_policy": MEMORY_COLLECT_POLICIES,
    "cpu_calculate_policy": CPU_POLICIES,
    "memory_calculate_policy": MEMORY_POLICIES,
    "mid_reclaim_mode": (STATIC, "dynamic"),
}


def decode(text: str | bytes) -> Colocation:
    """Decode a JSON object. Unknown keys are ignored, null is not set. Raises InvalidPolicyError if
    it is not an object, and for a value of another type."""
    return COLOCATION.convert(read_object(text))


def problems_of(config: Colocation) -> Iterator[tuple[str, str]]:
    """Every value that is out of range: the name of its field, and the problem."""
    yield from out_of_range(config, _RANGES)
    threshold = config.resource_diff_threshold
    if threshold is not None and not 0 < threshold < float("inf"):
        yield (
            "resource_diff_threshold",
            f"resourceDiffThreshold is {threshold:g}, allowed is more than 0",
        )
    if config.metric_memory_collect_policy == "":
        yield "metric_memory_collect_policy", "metricMemoryCollectPolicy is empty"
    spans = config.metric_aggregate_policy or AggregatePolicy()
    for text in spans.durations or ():
        if timestamp_seconds(text) is None:
            yield (
                "metric_aggregate_policy",
                f"metricAggregatePolicy.durations has {text!r:.60}, which is not a duration such "
                "as 5m, from a second to a year",
            )
    predict = config.node_predict_policy or PredictPolicy()
    for name, value in (
        ("resourceDiffThresholdPercent", predict.resource_diff_threshold_percent),
        ("coldStartPeriodSeconds", predict.cold_start_period_seconds),
    ):
        if value is not None and not 0 <= value <= MOST:
            yield "node_predict_policy", f"{name} is {value}, allowed is 0 to {MOST}"


def bounded(config: Colocation) -> Colocation:
    """Limit the settings of measuring and predicting to their largest usual values."""
    predict = config.node_predict_policy
    return msgspec.structs.replace(
        _at_most(config, _MEASUREMENT_RANGES),
        node_predict_policy=predict and _at_most(predict, _PREDICTION_RANGES),
    )


def _at_most(struct: Config, ranges: Mapping[str, _Range]) -> Config:
    values = {name: getattr(struct, name) for name in ranges}
    limited = {name: min(n, ranges[name][1]) for name, n in values.items() if n is not None}
    return msgspec.structs.replace(struct, **limited)


def warnings_for(config: Colocation) -> Iterator[str]:
    """Warnings of accepted but unusual values. An unknown text acts as the default, nothing is
    reported for a span that is not measured, and `bounded` limits the others."""
    predict = config.node_predict_policy or PredictPolicy()
    for _, text in (
        *unknown_words(config, _TEXTS),
        *out_of_range(config, _STATIC_RANGES | _MEASUREMENT_RANGES, "usual"),
        *out_of_range(predict, _PREDICTION_RANGES, "usual"),
    ):
        yield text
    if (config.resource_diff_threshold or 0) > 1:
        yield (
            f"resourceDiffThreshold is {config.resource_diff_threshold:g}, which is "
            f"{config.resource_diff_threshold:.0%} of the present amount: usual is up to 1"
        )
    spans = config.metric_aggregate_policy or AggregatePolicy()
    for span in spans.durations or ():
        if not SHORTEST_SPAN_SECONDS <= (timestamp_seconds(span) or 0) <= LONGEST_SPAN_SECONDS:
            yield (
                f"metricAggregatePolicy.durations has {span!r:.60}, which is not reported: "
                f"reported are {SHORTEST_SPAN_SECONDS} s to {LONGEST_SPAN_SECONDS} s"
            )


COLOCATION: Final = Section(
    "colocation-config", DEFAULTS, problems_of, warnings_for, switch="enable"
)
"""How, and on which nodes, unused capacity of Prod is offered."""
