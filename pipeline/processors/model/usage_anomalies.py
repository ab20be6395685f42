"""Find anomalies in the usage that nodes report, over all nodes at once.

An anomaly hides nothing: usage counts as long as it is fresh. Idea: the metrics analyser in KEP-61
of kubernetes-sigs/scheduler-plugins.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray

ODDITIES: Final[Mapping[str, str]] = {
    "stale": "no recent window",
    "missing": "the last window has no CPU or no memory usage",
    "partial": "at most half of the last window was measured",
    "beyond": "usage exceeds the capacity of the machine",
    "frozen": "CPU usage was exactly constant for 15 minutes",
    "spike": "usage differs sharply from that of the last 15 minutes",
    "gaps": "windows were missing in the last 15 minutes",
    "impossible": "an invalid value was replaced by null in the last 15 minutes",
}

_LEAST_COVERAGE: Final = 0.5
# Clocks of a kernel and of an exporter differ, by less than this.
_MOST_SHARE: Final = 1.05
_DEVIATIONS: Final = 6.0
_LEAST_JUMP: Final = 0.2
_LATELY_SECONDS: Final = 900.0


class Told(NamedTuple):
    """The usage that nodes report.

    Arrays (nodes, 2) hold cpu and memory in the unit of `capacity`, NaN is unknown; `mean` and
    `deviation` cover 15 minutes. `coverage` (nodes,) is that of the last window. Seconds from the
    last missing window, and from the last invalid value, to the end of the last window are
    (nodes,), NaN for never.
    """

    usage: FloatArray
    mean: FloatArray
    deviation: FloatArray
    capacity: FloatArray
    coverage: FloatArray
    since_gap_seconds: FloatArray
    since_bad_value_seconds: FloatArray


def oddities(told: Told, is_fresh: BoolArray) -> dict[str, BoolArray]:
    """The nodes with each anomaly, (nodes,) by name. A stale node has no other one."""
    with np.errstate(invalid="ignore"):
        jump = np.abs(told.usage - told.mean)
        jumped = (jump > _DEVIATIONS * told.deviation) & (jump > _LEAST_JUMP * told.capacity)
        found = {
            "missing": np.isnan(told.usage).any(axis=1),
            "partial": told.coverage <= _LEAST_COVERAGE,
            "beyond": (told.usage > _MOST_SHARE * told.capacity).any(axis=1),
            # Memory may be constant; CPU usage of a running machine never is.
            "frozen": (told.deviation[:, 0] == 0) & (told.mean[:, 0] > 0),
            "spike": jumped.any(axis=1),
            "gaps": told.since_gap_seconds <= _LATELY_SECONDS,
            "impossible": told.since_bad_value_seconds <= _LATELY_SECONDS,
        }
    return {"stale": ~is_fresh} | {name: where & is_fresh for name, where in found.items()}
