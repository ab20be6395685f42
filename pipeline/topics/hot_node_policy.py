"""The thresholds above which a node counts as hot: part of a node's record, and so of its windows.

The watcher resolves them from the `LowNodeLoad` arguments of Koordinator's DeschedulerConfiguration
for the node's pool.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

DEFAULT_POOL: Final = "__default_node_pool__"
"""The name of the pool of the arguments' top level, as in Koordinator."""

SHORT_SPAN_SECONDS: Final = 60
"""A span of averages alone: node states have no statistics over it."""

UsageKind = Literal["average", "p50", "p90", "p95", "p99", "peak"]
Percent = Annotated[float, Meta(ge=0, le=1000)]
Windows = Annotated[int, Meta(ge=1, le=1000)]
SpanSeconds = Annotated[int, Meta(ge=1, le=1800)]


class HotNodePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The thresholds of a node in percent of its capacity, by resource: `cpu` and `memory`.

    pool: The node pool.
    use_deviation_thresholds: Whether thresholds are distances from the mean of the pool.
    high_percent: The node is hot above it.
    low_percent: The node may take pods of hot ones up to it.
    prod_high_percent: Likewise for the usage of its Prod pods.
    prod_low_percent: Likewise for the usage of its Prod pods.
    usage: The usage that is compared; `peak` is that of the deciding predictor.
    span_seconds: The span of averages and percentiles.
    open_windows: An alert opens with this many hot windows in a row.
    close_windows: An alert closes with this many calm windows in a row.
    hysteresis_percent: A window is calm below the threshold minus this.
    mean_percent: Mean usage of the pool's nodes by rule, as known at the join, which sets it in
      windows if `use_deviation_thresholds`; an unknown mean is missing.
    """

    pool: str = DEFAULT_POOL
    use_deviation_thresholds: bool = False
    high_percent: dict[str, Percent] = msgspec.field(default_factory=dict)
    low_percent: dict[str, Percent] = msgspec.field(default_factory=dict)
    prod_high_percent: dict[str, Percent] = msgspec.field(default_factory=dict)
    prod_low_percent: dict[str, Percent] = msgspec.field(default_factory=dict)
    usage: UsageKind = "average"
    span_seconds: SpanSeconds = 300
    open_windows: Windows = 5
    close_windows: Windows = 3
    hysteresis_percent: Percent = 5.0
    mean_percent: dict[str, Percent] = msgspec.field(default_factory=dict)
