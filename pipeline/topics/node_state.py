"""`springtide.node-state`: the row of the state table: one document per node, keyed by its name.

Written by the model agent after every applied window; read by the extender, `top`, and whoever
asks "how is this node, and how sure are we". None is unknown.
"""

from typing import Final

import msgspec

from pipeline.topics.resource_amounts import Usage
from pipeline.topics.result_header import Result

AGGREGATED: Final = {"5m": 300, "10m": 600, "30m": 1800}
"""Spans of averages and percentiles in seconds, by the text under which they are published."""
DEVIATION: Final = {"5m": 300, "10m": 600, "15m": 900}
"""Spans of mean and standard deviation."""
YOUNG_SECONDS: Final = 1800
"""For so long after its first window a pod's own usage is told: longer than anybody is told to
count what was estimated for it instead."""


class Counters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened to this node's windows since its models began; each a fact of the log.

    `lost` marks models that could not be brought up to date: offsets of the log that retention
    removed before they were applied, in the node's partition. `last_gap_at` is the end of the last
    window before which others are missing, `last_bad_value_at` that of the last one that was
    applied with a value made null; None where there was none.
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
    """The node's points of one span: average, and percentiles by rank floor(n*p)-1."""

    avg: Usage = Usage()
    p50: Usage = Usage()
    p90: Usage = Usage()
    p95: Usage = Usage()
    p99: Usage = Usage()


class Fractions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Parts of what pods may use, 1 being all of it; None is unknown."""

    cpu: float | None = None
    memory: float | None = None


class UsageDeviation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mean and population standard deviation of the node's points of one span, as usage and as
    fractions of allocatable."""

    mean: Usage = Usage()
    stdev: Usage = Usage()
    mean_fractions: Fractions = Fractions()
    stdev_fractions: Fractions = Fractions()


class NodeStateRecord(Result, frozen=True, kw_only=True, gc=False):
    """Usage of the last window (its average) and of the last half hour, peaks, and ages.

    Used memory is, in every field, the figure that the setting `model.memory_collect_policy` names
    (by default without page cache).

    `skew_seconds` is the broker's append time minus the window's end: transport delay plus the
    error of the node's clock. `peaks` maps predictor to the node's peak; `predictor` is the one
    that decides.

    `aggregated` and `deviation` are by span (`AGGREGATED`, `DEVIATION`), up to `as_of`; unknown
    where first and last point are less than half the span apart.

    `rates` are what else the node used on average, by the names of `RATES`.

    `young_pods` are the pods, by the name of their cgroup, that were first measured less than
    `YOUNG_SECONDS` ago, with what of `usage` is theirs: who reckons with what a pod was expected to
    use can tell how much of that has come.
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
    prod_reclaimable: Usage = Usage()
    prod_peak: Usage = Usage()
    counters: Counters = Counters()
