"""Metrics of a provider."""

from typing import Final

from pipeline.metrics import counter, gauge, histogram
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage
from pipeline.processors.imported_usage.usage_samples import SampledWindow

WINDOWS: Final = counter("provider_windows", "Windows, by result.", ["result"])
LAST_WINDOW_END: Final = gauge(
    "provider_last_window_end_timestamp_seconds", "End of the last published window."
)
NODES: Final = gauge("provider_nodes", "Nodes in the last published window.")
FETCH_SECONDS: Final = histogram(
    "provider_fetch_seconds", "Time to fetch a window.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100),
)  # fmt: skip
COLUMNS_FAILED: Final = counter(
    "provider_columns_failed", "Columns missing because their query failed.", ["column"]
)
BAD_VALUES: Final = counter(
    "provider_bad_values", "Values replaced by null: NaN, negative or implausible.", ["column"]
)
LEFT_OUT: Final = counter("provider_left_out", "Ignored entities and readings.", ["reason"])


def count(fetched: FetchedUsage, sampled: SampledWindow) -> None:
    """Count the results of a window."""
    for column in fetched.failed:
        COLUMNS_FAILED.labels(column).inc()
    for column, number in fetched.bad_values.items():
        BAD_VALUES.labels(column).inc(number)
    for reason, number in (fetched.left_out + sampled.left_out).items():
        LEFT_OUT.labels(reason).inc(number)
    LEFT_OUT.labels("unknown node").inc(len(fetched.unknown_nodes))
    NODES.set(len(sampled.batches))
