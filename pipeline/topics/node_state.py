"""`springtide.node-state`: the row of a node in the state table, keyed by node.

The model agent writes a record after every applied window; the extender, `top` and actuators read
it. None is unknown. docs/how-to/add-a-node-state-field.md has the steps for a new field.
"""

from typing import Final

import msgspec

from pipeline.topics.alerts import OpenAlert
from pipeline.topics.resource_amounts import Usage
from pipeline.topics.result_header import Result

AGGREGATED: Final = {"5m": 300, "10m": 600, "30m": 1800}
"""Spans of averages and percentiles in seconds, by their name in records."""
DEVIATION: Final = {"5m": 300, "10m": 600, "15m": 900}
"""Spans of mean and standard deviation in seconds, by their name in records."""
YOUNG_SECONDS: Final = 1800
"""How long after its first window a pod's own usage is in the record: longer than any reader counts
an estimate for the pod instead."""


class Counters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counts of this node's windows since its models began; all follow from the log.

    applied: Windows that the models learned.
    duplicate: Windows that were in the log twice.
    late: Windows that ended before one that was applied.
    second_exporter: Windows of another machine or source under the same name, which were not
      applied.
    gaps: Missing windows.
    untrained: Applied windows with too few measurements to learn from.
    bad_values: Values replaced by null, because they were impossible.
    lost: Windows that the models lack, because retention removed them, a checkpoint could not be
      used, or they could not be applied. Where the node's own number is unknown, offsets of its
      partition are counted, although other nodes share them.
    last_gap_at: End of the last window after a gap; null if there was none.
    last_bad_value_at: End of the last window with a value replaced by null; null if there was none.
    """

    applied: int = 0
    duplicate: int = 0
    late: int = 0
    second_exporter: int = 0
    gaps: int = 0
    untrained: int = 0
    bad_values: int = 0
    lost: int = 0
    last_gap_at: str | None = None
    last_bad_value_at: str | None = None


class AggregatedUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Average and percentiles (rank floor(n*p)-1) of the node's usage points in a span.

    avg: Average.
    p50: Median.
    p90: 90th percentile.
    p95: 95th percentile.
    p99: 99th percentile.
    """

    avg: Usage = Usage()
    p50: Usage = Usage()
    p90: Usage = Usage()
    p95: Usage = Usage()
    p99: Usage = Usage()


AGGREGATIONS: Final = AggregatedUsage.__struct_fields__
"""The keys of Koordinator's `AggregatedUsage.usage`. The maximum is not one: it may be an outlier.
"""


class Fractions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fractions of allocatable (1 is all of it); None is unknown.

    cpu: Of CPU.
    memory: Of memory.
    """

    cpu: float | None = None
    memory: float | None = None


class UsageDeviation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mean and population standard deviation of the node's usage points in a span.

    mean: Mean.
    stdev: Population standard deviation.
    mean_fractions: Mean as fractions of allocatable.
    stdev_fractions: Standard deviation as fractions of allocatable.
    """

    mean: Usage = Usage()
    stdev: Usage = Usage()
    mean_fractions: Fractions = Fractions()
    stdev_fractions: Fractions = Fractions()


class Dispute(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A second source whose usage of the node differs from the usage that counts.

    source: The provider that is not believed.
    usage: Its average usage in the last span that was compared.
    believed: Average usage in the same span by the source that is believed.
    is_more: Whether it reports more of the first resource that differs, so that `usage` of the node
      may be too low.
    since: End of the window from which on they differ.
    """

    source: str
    usage: Usage = Usage()
    believed: Usage = Usage()
    is_more: bool = False
    since: str = ""


class NodeStateRecord(Result, frozen=True, kw_only=True, gc=False):
    """Average usage of the last window, usage of the last half hour, and peaks of a node.

    Memory is, in every field, the figure that the node's `metricMemoryCollectPolicy` selects, else
    the setting `model.memory_collect_policy` (by default without page cache).

    window_seconds: Length of the window.
    coverage: Share of the window that was measured, 0 to 1.
    simulated: Whether the node is simulated.
    node_known: Whether the join knew the Node object.
    source: The provider whose usage counts; empty: an exporter.
    dispute: A second source that reports other usage; null if there is none.
    skew_seconds: Append time of the broker minus the end of the window: transport delay plus the
      error of the node's clock.
    allocatable: Allocatable of the node at the time of the window.
    capacity: Capacity of the node at the time of the window.
    usage: Average usage of the node.
    system_usage: Average usage outside of pods and host applications.
    host_app_usage: Average usage of host applications.
    rates: Average network and disk rates in bytes a second, by resource name.
    gauges: Other numbers of the node that its sample had under names of extended resources, each in
      the unit of the Node's capacity of it; an unknown one is missing.
    class_usage: Average usage of the pods of each class: prod, mid, batch, free, none, unknown.
    pods: Measured pods.
    unknown_pods: Measured pods of which no record was known; their class is unknown.
    young_pods: Average usage of pods whose first window is less than half an hour old, by the name
      of their cgroup. It is part of `usage`: a reader that counts an estimate for such a pod
      subtracts it.
    aggregated: Average and percentiles of usage over 5, 10 and 30 minutes that end at `as_of`;
      unknown if first and last point are less than half the span apart.
    deviation: Mean and standard deviation of usage over 5, 10 and 15 minutes, likewise.
    predictor: The predictor that decides for this node.
    peaks: Predicted peak of the node with the safety margin, by predictor.
    peak_counts_requests: Whether the peak of the deciding predictor includes the requests of cold
      pods; then a reader must not add an estimate for a pod of the last window.
    prod_reclaimable: Requests of Prod that it will not use.
    prod_peak: Predicted peak of Prod, with the system.
    counters: Counts of the node's windows.
    alerts: Alerts of the node that are open, because it is hot.
    compared_percent: Usage that is compared with the thresholds of hot nodes, by rule, in percent
      of allocatable before amplification and without the reservation; unknown usage is missing. Of
      rules about Prod, whose usage over a span nothing else states, and all rules of nodes whose
      thresholds are distances from the mean of their pool: the planner computes the means from it.
    """

    window_seconds: float
    coverage: float
    simulated: bool = False
    node_known: bool = False
    source: str = ""
    dispute: Dispute | None = None
    skew_seconds: float | None = None
    allocatable: Usage = Usage()
    capacity: Usage = Usage()
    usage: Usage = Usage()
    system_usage: Usage = Usage()
    host_app_usage: Usage = Usage()
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    gauges: dict[str, float] = msgspec.field(default_factory=dict)
    class_usage: dict[str, Usage] = msgspec.field(default_factory=dict)
    pods: int = 0
    unknown_pods: int = 0
    young_pods: dict[str, Usage] = msgspec.field(default_factory=dict)
    aggregated: dict[str, AggregatedUsage] = msgspec.field(default_factory=dict)
    deviation: dict[str, UsageDeviation] = msgspec.field(default_factory=dict)
    predictor: str = ""
    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    peak_counts_requests: bool = False
    prod_reclaimable: Usage = Usage()
    prod_peak: Usage = Usage()
    counters: Counters = Counters()
    alerts: tuple[OpenAlert, ...] = ()
    compared_percent: dict[str, float] = msgspec.field(default_factory=dict)
