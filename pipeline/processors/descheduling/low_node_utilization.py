"""The arguments of LowNodeUtilization of kubernetes-sigs/descheduler, which are checked only: its
thresholds of usage are those of LowNodeLoad."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.processors.descheduling.field_types import (
    Count,
    Namespaces,
    PluginArgs,
    Problem,
    above,
    resource_problems,
)

_Percent = Annotated[float, Meta(ge=0, le=100)]
METRIC_RESOURCE = "MetricResource"
"""The resource whose usage a Prometheus query returns."""


class EvictionLimits(msgspec.Struct, frozen=True, kw_only=True):
    node: Count | None = None
    namespace: Count | None = None
    total: Count | None = None


class PrometheusQuery(msgspec.Struct, frozen=True, kw_only=True):
    query: str = ""


class MetricsUtilization(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    metrics_server: bool = False
    source: Literal["KubernetesMetrics", "Prometheus"] | None = None
    prometheus: PrometheusQuery | None = None


class LowNodeUtilizationArgs(PluginArgs, frozen=True, kw_only=True, rename="camel"):
    use_deviation_thresholds: bool = False
    low_percent: dict[str, _Percent] = msgspec.field(default={}, name="thresholds")
    high_percent: dict[str, _Percent] = msgspec.field(default={}, name="targetThresholds")
    number_of_nodes: Count = 0
    evictable_namespaces: Namespaces | None = None
    eviction_limits: EvictionLimits | None = None
    metrics_utilization: MetricsUtilization | None = None

    def problems(self) -> Iterator[Problem]:
        if self.evictable_namespaces is not None and self.evictable_namespaces.include:
            yield "evictableNamespaces.include", "is not supported, only exclude"
        low, high = self.low_percent, self.high_percent
        for key, percent in (("thresholds", low), ("targetThresholds", high)):
            if not percent:
                yield key, "has no resource"
            yield from resource_problems(key, [n for n in percent if n != METRIC_RESOURCE])
        if low.keys() != high.keys():
            names = ", ".join(sorted(low.keys() ^ high.keys()))
            yield "targetThresholds", f"has other resources than thresholds: {names:.200}"
        if not self.use_deviation_thresholds:
            yield from above("thresholds", low, "targetThresholds", high)
        metrics = self.metrics_utilization
        if metrics is None:
            return
        if metrics.metrics_server and metrics.source is not None:
            yield "metricsUtilization", "has metricsServer and source: only one may be set"
        if metrics.prometheus is not None and metrics.source != "Prometheus":
            yield "metricsUtilization.prometheus", "needs source Prometheus"
        if metrics.source == "Prometheus":
            if metrics.prometheus is None or not metrics.prometheus.query:
                yield (
                    "metricsUtilization.prometheus.query",
                    "is missing, and source Prometheus needs it",
                )
            if low.keys() != {METRIC_RESOURCE}:
                yield "thresholds", f"must have {METRIC_RESOURCE} alone for source Prometheus"
