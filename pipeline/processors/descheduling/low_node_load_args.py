"""The arguments of LowNodeLoad as users write them: Koordinator's keys, and three of ours."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from pipeline.processors.descheduling.field_types import (
    VERSION,
    Count,
    DryRun,
    EvictableNamespaces,
    NodeFit,
    NodesSelected,
    Paused,
    PercentByResource,
    PodSelectors,
    Seconds,
)
from pipeline.processors.kubernetes.durations import LONGEST_SECONDS
from pipeline.processors.policy.selectors import Selector
from pipeline.topics.hot_node_policy import SHORT_SPAN_SECONDS, Percent, UsageKind
from pipeline.topics.node_state import AGGREGATED

AVERAGED: Final[Mapping[str, int]] = {"1m": SHORT_SPAN_SECONDS, **AGGREGATED}
"""Spans of averages in seconds; those of percentiles are `AGGREGATED`."""
_RunLength = Annotated[int, Meta(ge=0, le=1000)]


class AnomalyCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many windows in a row make and end an anomaly; 0 is not set."""

    timeout_seconds: Seconds | None = msgspec.field(default=None, name="timeout")
    consecutive_abnormalities: _RunLength = 0
    consecutive_normalities: _RunLength = 0


class PoolKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keys that a pool takes from the top level if it does not set them (None)."""

    high_percent: Annotated[
        PercentByResource | None,
        Meta(
            title="percentages from 0 to 1000 by resource",
            description="the node is hot above these",
        ),
    ] = msgspec.field(default=None, name="highThresholds")
    low_percent: Annotated[
        PercentByResource | None,
        Meta(
            title="as `highThresholds`, at most these",
            description="the node may take pods of hot ones up to these",
        ),
    ] = msgspec.field(default=None, name="lowThresholds")
    prod_high_percent: Annotated[
        PercentByResource | None,
        Meta(
            title="as `highThresholds`, at most these",
            description="the node is hot if its Prod pods use more",
        ),
    ] = msgspec.field(default=None, name="prodHighThresholds")
    prod_low_percent: Annotated[
        PercentByResource | None,
        Meta(
            title="as `prodHighThresholds`, at most these",
            description="the node may take Prod pods of hot ones up to these",
        ),
    ] = msgspec.field(default=None, name="prodLowThresholds")
    resource_weights: Annotated[
        dict[str, int] | None,
        Meta(
            title="whole numbers by resource; 0 and less count as 1",
            description="weights of resources in the order of nodes and pods. Default: 1 for cpu, "
            "memory and each resource with a threshold",
        ),
    ] = None
    anomaly_condition: Annotated[
        AnomalyCondition | None,
        Meta(
            title="`consecutiveAbnormalities` (5) and `consecutiveNormalities` (3), whole numbers "
            "to 1000, 0 is not set; `timeout`, a duration",
            description="an alert opens with so many hot windows in a row, and closes with so many "
            "calm ones; `timeout` has no effect",
        ),
    ] = None
    usage: Annotated[
        UsageKind | None,
        Meta(
            description="ours: the usage that is compared, `peak` is that of the deciding "
            "predictor. Default: average"
        ),
    ] = msgspec.field(default=None, name="usageType")
    span_seconds: Annotated[
        Seconds | None,
        Meta(
            title=f"{', '.join(AVERAGED)}",
            description="ours: the span of average and percentiles; 1m of averages alone. "
            "Default: 5m",
        ),
    ] = msgspec.field(default=None, name="usageAggregatedDuration")
    hysteresis_percent: Annotated[
        Percent | None,
        Meta(
            description="ours: a window is calm below the threshold minus these points. Default: 5"
        ),
    ] = None


class PoolArgs(PoolKeys, frozen=True, kw_only=True, rename="camel"):
    """An entry of `nodePools`."""

    name: str = ""
    node_selector: Selector | None = None
    use_deviation_thresholds: bool = False


class LowNodeLoadArgs(PoolKeys, frozen=True, kw_only=True, rename="camel"):
    """The arguments as given; pools are read one by one."""

    api_version: str = VERSION
    kind: str = ""
    paused: Paused = False
    dry_run: DryRun = False
    evictable_namespaces: EvictableNamespaces = None
    node_selector: NodesSelected = None
    pod_selectors: PodSelectors = ()
    number_of_nodes: Annotated[
        Count, Meta(description="evict only while more than this many nodes are low")
    ] = 0
    usage_expiration_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=LONGEST_SECONDS)],
        Meta(description="the age from which usage of a node is unknown"),
    ] = msgspec.field(default=180, name="nodeMetricExpirationSeconds")
    node_fit: NodeFit = True
    use_deviation_thresholds: Annotated[
        bool,
        Meta(
            description="thresholds are distances from the mean of the pool; a pool does not take "
            "this from the top level"
        ),
    ] = False
    detector_cache_seconds: Annotated[
        Seconds,
        Meta(
            description="accepted; at least `deschedulingInterval`. Alerts forget nothing by time"
        ),
    ] = msgspec.field(default=300.0, name="detectorCacheTimeout")
    node_pools: Annotated[
        tuple[Any, ...],
        Meta(
            title="a list of `name`, `nodeSelector`, `useDeviationThresholds` and all keys that "
            "have thresholds, weights, runs of windows or usage",
            description="pools with their own values; the first that selects a node applies",
        ),
    ] = ()
