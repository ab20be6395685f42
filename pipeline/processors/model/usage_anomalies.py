"""Find anomalies in the usage that nodes report, over all nodes at once.

Usage with an anomaly of `DOUBTFUL`, or below that of a second source, may be too low: the extender
counts the estimates of the pods on the node instead, if these are higher, and such a node never
scores better than others. Other anomalies hide nothing: a spike may be real, and what is missing is
unknown anyway. Idea: the metrics analyser in KEP-61 of kubernetes-sigs/scheduler-plugins.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.topics.node_state import NodeStateRecord, UsageDeviation

ANOMALIES: Final[Mapping[str, str]] = {
    "stale": "no recent window",
    "missing": "the last window has no CPU or no memory usage",
    "partial": "at most half of the last window was measured",
    "beyond": "usage exceeds the capacity of the machine",
    "frozen": "CPU usage was exactly constant for 15 minutes",
    "spike": "usage differs sharply from that of the last 15 minutes",
    "gaps": "windows were missing in the last 15 minutes",
    "impossible": "an invalid value was replaced by null in the last 15 minutes",
    "disputed": "a second source reports other usage",
}

DOUBTFUL: Final = ("partial", "beyond", "frozen")

_LEAST_COVERAGE: Final = 0.5
MOST_SHARE: Final = 1.05
"""The most that a machine uses of its capacity: clocks of a kernel and of an exporter differ."""
_DEVIATIONS: Final = 6.0
_LEAST_JUMP: Final = 0.2
_RECENT_SECONDS: Final = 900.0


class ReportedUsage(NamedTuple):
    """The usage that nodes report.

    Arrays (nodes, 2) hold cpu and memory in the unit of `capacity`, NaN is unknown; `mean` and
    `deviation` cover 15 minutes. `coverage` (nodes,) is that of the last window. Seconds from the
    last missing window, and from the last invalid value, to the end of the last window are
    (nodes,), NaN for never. `is_disputed` (nodes,): a second source reports other usage.
    """

    usage: FloatArray
    mean: FloatArray
    deviation: FloatArray
    capacity: FloatArray
    coverage: FloatArray
    since_gap_seconds: FloatArray
    since_bad_value_seconds: FloatArray
    is_disputed: BoolArray


def is_doubtful(state: NodeStateRecord) -> bool:
    """Whether a node state has an anomaly of `DOUBTFUL`, or a second source reports more. Simulated
    nodes may be constant."""
    if state.dispute is not None and state.dispute.is_more:
        return True
    used, capacity = state.usage, state.capacity
    deviation = state.deviation.get("15m", UsageDeviation())
    is_frozen = deviation.stdev.cpu_cores == 0 and (deviation.mean.cpu_cores or 0) > 0
    is_beyond = any(
        amount is not None and most is not None and amount > MOST_SHARE * most
        for amount, most in (
            (used.cpu_cores, capacity.cpu_cores), (used.memory_bytes, capacity.memory_bytes)
        )
    )  # fmt: skip
    is_partial = state.coverage <= _LEAST_COVERAGE
    return not state.simulated and (is_frozen or is_beyond or is_partial)


def find_anomalies(reported: ReportedUsage, is_fresh: BoolArray) -> dict[str, BoolArray]:
    """The nodes with each anomaly, (nodes,) by name. A stale node has no other one."""
    with np.errstate(invalid="ignore"):
        jump = np.abs(reported.usage - reported.mean)
        jumped = (jump > _DEVIATIONS * reported.deviation) & (
            jump > _LEAST_JUMP * reported.capacity
        )
        flags = {
            "missing": np.isnan(reported.usage).any(axis=1),
            "partial": reported.coverage <= _LEAST_COVERAGE,
            "beyond": (reported.usage > MOST_SHARE * reported.capacity).any(axis=1),
            # Memory may be constant; CPU usage of a running machine never is.
            "frozen": (reported.deviation[:, 0] == 0) & (reported.mean[:, 0] > 0),
            "spike": jumped.any(axis=1),
            "gaps": reported.since_gap_seconds <= _RECENT_SECONDS,
            "impossible": reported.since_bad_value_seconds <= _RECENT_SECONDS,
            "disputed": reported.is_disputed,
        }
    return {"stale": ~is_fresh} | {name: where & is_fresh for name, where in flags.items()}
