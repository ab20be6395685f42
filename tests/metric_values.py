"""Values of the metrics of this process."""

from typing import Any


def value_of(metric: Any) -> float:
    """Return the value of a counter or a gauge, or of one with its labels."""
    return float(next(iter(metric.collect())).samples[0].value)


def sum_of(counter: Any, **labels: str) -> float:
    """Return the sum of a counter over all its series with these labels."""
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return float(
        sum(
            sample.value
            for sample in samples
            if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
        )
    )
