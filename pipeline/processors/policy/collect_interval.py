"""Interval and aggregation span of a node's reports: defaults and limits."""

from typing import Final, NamedTuple

DEFAULT_REPORT_SECONDS: Final = 60
MIN_REPORT_SECONDS: Final = 30
DEFAULT_AGGREGATE_SECONDS: Final = 300
MIN_AGGREGATE_SECONDS: Final = 60
LONGEST_SECONDS: Final = 86_400
"""The largest interval and span."""


class CollectInterval(NamedTuple):
    """Effective seconds between reports, and seconds over which usage is averaged."""

    report_seconds: int
    aggregate_seconds: int


def collect_interval(report_seconds: int | None, aggregate_seconds: int | None) -> CollectInterval:
    """The values in force if a policy sets these; None is not set."""
    report = DEFAULT_REPORT_SECONDS if report_seconds is None else report_seconds
    span = DEFAULT_AGGREGATE_SECONDS if aggregate_seconds is None else aggregate_seconds
    return CollectInterval(
        min(max(report, MIN_REPORT_SECONDS), LONGEST_SECONDS),
        min(max(span, MIN_AGGREGATE_SECONDS), LONGEST_SECONDS),
    )
