"""`springtide.node-state`: the row of a node in the state table, keyed by node.

The model agent writes a record after every applied window; the extender, `top` and actuators read
it. None is unknown. docs/how-to/add-a-node-state-field.md has the steps for a new field.
"""

from typing import Final

import msgspec

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

    `lost` counts windows that the models lack, because retention removed them, a checkpoint could
    not be used, or they could not be applied. Where the node's own number is unknown, offsets of
    its partition are counted, although other nodes share them. `last_gap_at` is the end of the last
    window after a gap, `last_bad_value_at` that of the last window with a value replaced by null;
    None if there was none.
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
    """Average and percentiles (rank floor(n*p)-1) of the node's usage points in a span."""

    avg: Usage = Usage()
    p50: Usage = Usage()
    p90: Usage = Usage()
    p95: Usage = Usage()
    p99: Usage = Usage()


class Fractions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fractions of allocatable (1 is all of it); None is unknown."""

    cpu: float | None = None
    memory: float | None = None


class UsageDeviation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mean and population standard deviation of the node's usage points in a span, as usage and as
    fractions of allocatable."""

    mean: Usage = Usage()
    stdev: Usage = Usage()
    mean_fractions: Fractions = Fractions()
    stdev_fractions: Fractions = Fractions()


class NodeStateRecord(Result, frozen=True, kw_only=True, gc=False):
    """Average usage of the last window, usage of the last half hour, and peaks of a node.

    Memory is, in every field, the figure that the node's `metricMemoryCollectPolicy` selects, else
    the setting `model.memory_collect_policy` (by default without page cache).

    `skew_seconds` is the broker's append time minus the window's end: transport delay plus the
    error of the node's clock. `peaks` has the node's peak by predictor; `predictor` is the deciding
    one. `peak_counts_requests`: its peak includes the requests of cold pods, so a reader must not
    add an estimate for a pod of the last window.

    `aggregated` and `deviation` are by span (`AGGREGATED`, `DEVIATION`) and end at `as_of`; unknown
    if first and last point are less than half the span apart.

    `rates` are average network and disk rates, by the names of `RATES`.

    `young_pods` has the usage of pods whose first window is less than `YOUNG_SECONDS` old, by the
    name of their cgroup. It is part of `usage`: a reader that counts an estimate for such a pod
    subtracts it.
    """

    window_seconds: float
    coverage: float
    simulated: bool = False
    node_known: bool = False
    skew_seconds: float | None = None
    allocatable: Usage = Usage()
    capacity: Usage = Usage()
    usage: Usage = Usage()
    system_usage: Usage = Usage()
    host_app_usage: Usage = Usage()
    rates: dict[str, float] = msgspec.field(default_factory=dict)
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
