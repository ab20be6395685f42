"""Values of the metrics of this process."""

from typing import Any


def value_of(metric: Any) -> float:
    """Return the value of a counter or a gauge, or of one with its labels."""
    return float(next(iter(metric.collect())).samples[0].value)
