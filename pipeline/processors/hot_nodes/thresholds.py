"""The thresholds of many nodes as arrays, from the policies of their windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.hot_nodes.pool_thresholds import deviation_percents, is_unused
from pipeline.processors.model.model_config import RESOURCES
from pipeline.topics.alerts import RULES
from pipeline.topics.hot_node_policy import HotNodePolicy

WHOLE_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of n nodes in percent of allocatable.

    `watched` (n, rules) marks the rules that the policy compares. Usage above `marks` (n, rules,
    levels) is hot or critical. `deviates` (n,) marks nodes whose thresholds are distances from the
    mean of their pool, `means` (n, rules); mean and marks are NaN where it is not known.
    `hysteresis` (n,) is in points. `open_windows` and `close_windows` (n,) are the windows in a row
    that open and close.
    """

    watched: BoolArray
    marks: FloatArray
    means: FloatArray
    deviates: BoolArray
    hysteresis: FloatArray
    open_windows: IntArray
    close_windows: IntArray

    @property
    def calm(self) -> FloatArray:
        """Usage at or below it is below the level, (n, rules, levels): so many points below the
        mark, but not below half of it, because an alert of a low threshold must be able to
        close."""
        return np.maximum(self.marks - self.hysteresis[:, None, None], self.marks / 2.0)


def thresholds(policies: Sequence[HotNodePolicy]) -> Thresholds:
    """The thresholds of these policies, at least one.

    Critical is usage above the middle between the threshold and 100%, and all hot usage where the
    threshold is 100% or more.
    """
    rows: dict[int, tuple[float, ...]] = {}  # nodes of a pool often share one policy object
    values = np.array([rows.get(id(p)) or rows.setdefault(id(p), _row(p)) for p in policies])
    named, numbers = values[:, : len(RULES)], values[:, len(RULES) :]
    deviates = numbers[:, 0] > 0.0
    hysteresis, open_windows, close_windows = numbers[:, 1:].T
    watched, high, means = ~np.isnan(named), named, np.full_like(named, np.nan)
    if deviates.any():
        own = np.flatnonzero(deviates)
        means[own], low = _distances([policies[i] for i in own.tolist()])
        watched[own] &= ~is_unused(low, named[own])
        high = named.copy()
        high[own] = deviation_percents(means[own], low, named[own])[1]
    marks = np.stack([high, np.maximum(high, (high + WHOLE_PERCENT) / 2.0)], axis=2)
    return Thresholds(
        watched=watched,
        marks=marks,
        means=means,
        deviates=deviates,
        hysteresis=hysteresis,
        open_windows=open_windows.astype(np.int64),
        close_windows=close_windows.astype(np.int64),
    )


def _row(policy: HotNodePolicy) -> tuple[float, ...]:
    return (
        *_by_resource(policy.high_percent),
        *_by_resource(policy.prod_high_percent),
        float(policy.use_deviation_thresholds),
        policy.hysteresis_percent,
        policy.open_windows,
        policy.close_windows,
    )


def _distances(policies: Sequence[HotNodePolicy]) -> FloatArray:
    """The means of the pools, and the distances of low thresholds below them, (2, k, rules)."""
    rows = [
        (
            [policy.mean_percent.get(rule, math.nan) for rule in RULES],
            [*_by_resource(policy.low_percent), *_by_resource(policy.prod_low_percent)],
        )
        for policy in policies
    ]
    return np.array(rows).transpose(1, 0, 2)


def _by_resource(percents: Mapping[str, float]) -> list[float]:
    return [percents.get(resource, math.nan) for resource in RESOURCES]
