"""Which pod to kill when memory is about to run out, before the kernel chooses one.

An eviction takes seconds, and a node without memory does not have them. A pod is killed only while
nearly no memory is available and all tasks wait for memory for a part of the time, both for two
seconds. One pod is killed at a time. Pods of Prod and Mid are never killed.
"""

from typing import Final, NamedTuple

from pipeline.processors.node_qos.eviction_victims import is_evictable
from pipeline.processors.node_qos.node_evictions import MEMORY_COOL_DOWN_SECONDS
from pipeline.processors.node_qos.node_state import NodeState, PodState

NAME: Final = "memory_emergency"
FLOOR_PERCENT: Final = 2
"""Available memory, in percent of capacity, below which pods may be killed."""
FULL_PRESSURE_PERCENT: Final = 10.0
"""Share of the last ten seconds in which all tasks waited for memory."""
SUSTAINED_SECONDS: Final = 2.0
_LONGEST_STEP_SECONDS: Final = 5.0
_KILLED_CLASSES: Final = frozenset({"batch", "free"})


class Kill(NamedTuple):
    """A pod to kill, and why."""

    pod: PodState
    why: str


class MemoryEmergency:
    """Decides once a second. Times are those of the usage."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last_at = self._killed_at = float("-inf")

    def victim(self, state: NodeState) -> Kill | None:
        """The pod to kill now; None in all doubt. A pod that is returned counts as killed."""
        step, self._last_at = state.at - self._last_at, state.at
        if not 0 <= step <= _LONGEST_STEP_SECONDS:
            # Nobody saw what was in between, or the clock was set.
            self._since, self._killed_at = None, state.at
        why = _emergency(state)
        if not why:
            self._since = None
            return None
        self._since = state.at if self._since is None else self._since
        is_sustained = state.at - self._since >= SUSTAINED_SECONDS
        if not is_sustained or state.at - self._killed_at < MEMORY_COOL_DOWN_SECONDS:
            return None
        pods = [pod for pod in state.pods if _may_be_killed(pod)]
        if not pods:
            return None
        self._killed_at = state.at
        pod = min(pods, key=lambda pod: (pod.priority or 0, -(pod.memory_bytes or 0), pod.uid))
        return Kill(pod, f"{why}; it uses {int(pod.memory_bytes or 0)} bytes")


def _emergency(state: NodeState) -> str:
    """Why memory is about to run out; empty if it is not, or if that is not known."""
    slo = state.slo
    thresholds = None if slo is None else slo.resource_used_threshold_with_be
    capacity, available = state.capacity.memory_bytes, state.memory_available_bytes
    full = None if state.memory_pressure is None else state.memory_pressure.full_percent
    if thresholds is None or not thresholds.enable:
        return ""
    if capacity is None or available is None or full is None:
        return ""
    is_low = 0 <= available * 100 < FLOOR_PERCENT * capacity
    if not (is_low and full >= FULL_PRESSURE_PERCENT):
        return ""
    return (
        f"{int(available)} of {capacity} bytes of memory are available, below {FLOOR_PERCENT}%, "
        f"and all tasks wait for memory for {full:.1f}% of the time"
    )


def _may_be_killed(pod: PodState) -> bool:
    """Whether the pod is of Batch or Free, and uses memory."""
    return is_evictable(pod) and pod.pod_class in _KILLED_CLASSES and (pod.memory_bytes or 0) > 0
