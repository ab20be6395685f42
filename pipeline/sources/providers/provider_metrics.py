"""What a provider counts."""

from typing import Final

from pipeline.metrics import counter, gauge, histogram
from pipeline.processors.provided.fetched_usage import FetchedUsage
from pipeline.processors.provided.usage_samples import SampledWindow

WINDOWS: Final = counter("provider_windows", "Windows, by what became of them.", ["result"])
LAST_WINDOW_END: Final = gauge(
    "provider_last_window_end_timestamp_seconds", "End of the last window that was published."
)
NODES: Final = gauge("provider_nodes", "Nodes in the last window that was published.")
REQUESTS: Final = counter(
    "provider_requests", "Requests to Prometheus, by their outcome.", ["status"]
)
FETCH_SECONDS: Final = histogram(
    "provider_fetch_seconds", "How long a window took to fetch.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100),
)  # fmt: skip
COLUMNS_FAILED: Final = counter(
    "provider_columns_failed", "Columns that a window had to do without.", ["column"]
)
BAD_VALUES: Final = counter(
    "provider_bad_values", "Numbers that were made null: NaN, negative, beyond belief.", ["column"]
)
LEFT_OUT: Final = counter("provider_left_out", "Entities and readings not used.", ["reason"])
CLOCK_AHEAD: Final = gauge(
    "provider_clock_ahead_seconds", "How far our clock is ahead of the source's, by its answers."
)


def count(fetched: FetchedUsage, sampled: SampledWindow) -> None:
    """Count what became of a window."""
    for column in fetched.failed:
        COLUMNS_FAILED.labels(column).inc()
    for column, number in fetched.bad_values.items():
        BAD_VALUES.labels(column).inc(number)
    for reason, number in (fetched.left_out + sampled.left_out).items():
        LEFT_OUT.labels(reason).inc(number)
    LEFT_OUT.labels("unknown node").inc(len(fetched.unknown_nodes))
    NODES.set(len(sampled.batches))
