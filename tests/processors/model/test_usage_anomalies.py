"""Odd metrics: each oddity is found by itself, and nothing in what is as it should be."""

import math
from typing import Any

import numpy as np
import pytest

from pipeline.processors.model.usage_anomalies import ANOMALIES, ReportedUsage, find_anomalies

GOOD = {
    "usage": [2.0, 8.0], "mean": [1.9, 8.0], "deviation": [0.3, 0.0], "capacity": [4.0, 16.0],
    "coverage": 1.0, "since_gap_seconds": math.nan, "since_bad_value_seconds": 901.0,
    "is_disputed": False,
}  # fmt: skip


def found(fresh: bool = True, **changes: Any) -> set[str]:
    one = GOOD | changes
    reported = ReportedUsage(
        **{
            name: np.array([value, GOOD[name]], bool if name == "is_disputed" else float)
            for name, value in one.items()
        }
    )
    flags = find_anomalies(reported, np.array([fresh, True]))
    assert flags.keys() == ANOMALIES.keys()
    assert not any(where[1] for where in flags.values())
    return {name for name, where in flags.items() if where[0]}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, set()),
        ({"usage": [math.nan, 8.0]}, {"missing"}),
        ({"usage": [math.nan] * 2, "mean": [math.nan] * 2, "deviation": [math.nan] * 2},
         {"missing"}),
        ({"coverage": 0.5}, {"partial"}),
        ({"coverage": 0.51}, set()),
        ({"usage": [4.3, 8.0], "mean": [4.0, 8.0]}, {"beyond"}),
        ({"usage": [4.1, 8.0], "mean": [4.0, 8.0]}, set()),
        ({"usage": [2.0, 17.0], "mean": [1.9, 16.0]}, {"beyond"}),
        ({"deviation": [0.0, 0.0]}, {"frozen"}),
        # A machine that does nothing at all stands still.
        ({"usage": [0.0, 8.0], "mean": [0.0, 8.0], "deviation": [0.0, 0.0]}, set()),
        ({"usage": [3.9, 8.0], "mean": [1.0, 8.0]}, {"spike"}),
        ({"usage": [0.1, 8.0], "mean": [3.0, 8.0], "deviation": [0.1, 0.0]}, {"spike"}),
        # Six deviations of hardly anything are no spike.
        ({"usage": [1.3, 8.0], "mean": [1.0, 8.0], "deviation": [0.01, 0.0]}, set()),
        ({"capacity": [math.nan, math.nan]}, set()),
        ({"since_gap_seconds": 0.0}, {"gaps"}),
        ({"since_gap_seconds": 901.0}, set()),
        ({"since_bad_value_seconds": 900.0}, {"impossible"}),
        ({"is_disputed": True}, {"disputed"}),
    ],
)  # fmt: skip
def test_each_anomaly_is_found_alone(changes: dict[str, Any], names: set[str]) -> None:
    assert found(**changes) == names


def test_stale_node_has_no_other_anomaly() -> None:
    assert found(fresh=False, coverage=0.1, deviation=[0.0, 0.0]) == {"stale"}
