"""Cap the CPU of best-effort work while other pods wait for CPU.

An addition to Koordinator. Usage shows too late that CPU is short: a pod that waits uses less. The
kernel's pressure stall information shows the waiting itself.
"""

from collections.abc import Iterator
from math import exp
from typing import Final

from pipeline.processors.node_qos.best_effort_room import Room
from pipeline.processors.node_qos.node_state import NodeState

_RELEASE: Final = 0.5
"""The cap rises below this part of the threshold. In between it stays."""
_DECREASE: Final = 0.8
_INCREASE_PERCENT: Final = 1
_LEAST_CAUSE_PERCENT: Final = 1
_MEAN_SECONDS: Final = 10.0
_KERNEL_INTERVAL_SECONDS: Final = 2.0
"""The kernel updates its means after this time; an equal one says nothing new."""


class PressureReaction:
    """A cap that falls under pressure and rises slowly without, as a congestion window does.

    Each second in which a pod waits for more than `threshold_percent` of the time, by the mean of
    the last 10 seconds as well as by the part that was added last, the cap becomes 80% of what
    best-effort work uses. While the mean is below half of the threshold it rises by 1% of the node
    per second. Without a measured pressure it stays as it is.
    """

    def __init__(self, threshold_percent: float) -> None:
        self._threshold_percent = threshold_percent
        self.reset()

    def reset(self) -> None:
        """Forget the cap."""
        self._cap: float | None = None
        self._at: float | None = None
        self._mean: float | None = None
        self._mean_at = 0.0
        self._added = 0.0

    def cap_millicores(self, state: NodeState, room: Room) -> int | None:
        """The most CPU for best-effort work, after a step if `state` has another time than the
        last one; None without pressure."""
        pressures = list(_pressures(state))
        capacity = state.capacity.cpu_millicores
        if pressures and capacity and state.at != self._at:
            self._at = state.at
            mean = max(pressures)
            self._observe(mean, state.at)
            self._step(mean, room, capacity)
        return None if self._cap is None else int(self._cap)

    def _observe(self, mean: float, at: float) -> None:
        """Derive the pressure since the last update from how the decaying mean moved."""
        if mean == self._mean:
            return
        elapsed = min(at - self._mean_at, _KERNEL_INTERVAL_SECONDS)
        # There is no elapsed time after the first mean, or if the clock was set back.
        if self._mean is None or elapsed <= 0:
            self._added = mean
        else:
            self._added = self._mean + (mean - self._mean) / (1 - exp(-elapsed / _MEAN_SECONDS))
        self._mean, self._mean_at = mean, at

    def _step(self, mean: float, room: Room, capacity: int) -> None:
        used = None if room.best_effort_cores is None else room.best_effort_cores * 1000
        may_be_cause = used is None or used * 100 > capacity * _LEAST_CAUSE_PERCENT
        if mean < self._threshold_percent * _RELEASE or not may_be_cause:
            self._raise(room, capacity)
        elif min(mean, self._added) > self._threshold_percent:
            known = [room.allowed_millicores, *(v for v in (used, self._cap) if v is not None)]
            self._cap = max(min(known), 0) * _DECREASE

    def _raise(self, room: Room, capacity: int) -> None:
        if self._cap is not None:
            self._cap += capacity * _INCREASE_PERCENT / 100
            if self._cap >= room.allowed_millicores:
                self._cap = None


def _pressures(state: NodeState) -> Iterator[float]:
    """CPU pressure of pods that best-effort work may be in the way of.

    That excludes LSE pods with CPUs of their own. The kernel counts throttled tasks as waiting, so
    the share of throttled periods, which bounds that of throttled time, is subtracted.
    """
    for pod in state.pods:
        if pod.is_best_effort or pod.cpu_pressure is None or (pod.qos == "LSE" and pod.own_cpus):
            continue
        ratios = (pod.throttled_ratio, *(c.throttled_ratio for c in pod.containers))
        throttled = sum(ratio for ratio in ratios if ratio is not None)
        yield max(pod.cpu_pressure.some_percent - 100 * throttled, 0.0)
