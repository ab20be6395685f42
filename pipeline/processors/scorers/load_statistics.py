"""Usage of nodes as the plugins of scheduler-plugins' Trimaran read it: average and deviation.

Source: load-watcher's metrics are percent of capacity, the average of a quarter of an hour before
the latest value.
"""

from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray
from pipeline.processors.loadaware.usage_readings import usage_percent
from pipeline.processors.scorers.rounding import clamp
from pipeline.processors.scorers.scorer import USAGE_EXPIRES_SECONDS, NodesView

AVERAGED_SPAN: Final = "15m"
_MIB: Final = 2.0**20


class Load(NamedTuple):
    """Average and deviation of usage, (nodes,), in the unit of the capacity; NaN is unknown."""

    average: FloatArray
    deviation: FloatArray


class Shares(NamedTuple):
    """Mean and deviation as shares of capacity, (nodes,), each from 0 to 1."""

    mean: FloatArray
    deviation: FloatArray


def usage_of_capacity(nodes: NodesView, resource: str, column: str) -> FloatArray:
    """Usage in percent of capacity, (nodes,): NaN where it is unknown or expired, 0 of a new node.
    `column` is `usage`, or its mean or deviation over a span."""
    name = f"compared percent {resource} {column}"
    return nodes.cached(name, lambda: _usage_of_capacity(nodes, resource, column))


def _usage_of_capacity(nodes: NodesView, resource: str, column: str) -> FloatArray:
    capacity = nodes.allocatable(resource, "capacity").astype(np.float64)
    used = nodes.usage(column, [resource])[:, 0]
    fresh = nodes.is_fresh(USAGE_EXPIRES_SECONDS)
    percent = np.where(fresh, usage_percent(used, capacity), np.nan)
    return np.where(nodes.is_new() & (capacity > 0), 0.0, percent)


def average_percent(nodes: NodesView, resource: str) -> FloatArray:
    """The average over a quarter of an hour in percent of capacity, (nodes,); the last window where
    there is no average yet."""
    average = usage_of_capacity(nodes, resource, f"usage_mean_{AVERAGED_SPAN}")
    return np.where(np.isfinite(average), average, usage_of_capacity(nodes, resource, "usage"))


def load(nodes: NodesView, resource: str, capacity: FloatArray) -> Load:
    """The load of nodes in the unit of `capacity`, (nodes,)."""
    deviation = usage_of_capacity(nodes, resource, f"usage_stdev_{AVERAGED_SPAN}")
    return load_from_percent(capacity, average_percent(nodes, resource), deviation)


def load_from_percent(capacity: FloatArray, average: FloatArray, deviation: FloatArray) -> Load:
    """The load of nodes whose usage is known in percent of `capacity`. An unknown deviation counts
    as the highest that is known of any node, 0 without any, where the average is known."""
    known = np.isfinite(average)
    highest = np.fmax.reduce(deviation, initial=0.0)
    spread = np.where(known, np.nan_to_num(deviation, nan=highest), np.nan)
    return Load(average * capacity / 100, spread * capacity / 100)


def shares(capacity: FloatArray, load: Load, requested: FloatArray | float = 0.0) -> Shares:
    """The load plus `requested` as shares of capacity; both 0 where capacity is 0."""
    with np.errstate(all="ignore"):
        mean = clamp((load.average + requested) / capacity)
        deviation = clamp(load.deviation / capacity)
    has_capacity = capacity > 0
    return Shares(np.where(has_capacity, mean, 0.0), np.where(has_capacity, deviation, 0.0))


def resource_unit(resource: str) -> float:
    """The unit in which Trimaran's plugins calculate: MiB of memory, else the amount itself."""
    return _MIB if resource == "memory" else 1.0
