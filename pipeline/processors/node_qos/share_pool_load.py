"""How busy the CPUs are that pods without CPUs of their own share."""

from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

from pipeline.processors.node_qos.node_state import NodeState, PodState

ROUNDS: Final = 5
SECONDS: Final = 10.0
COOLING: Final = 0.9
"""Share of the threshold from which the pool is not idle."""

_OWN_CPUS: Final = ("LSE", "LSR")


class PoolLoad(StrEnum):
    """Load of the shared CPUs: unknown without a sample, cooling just below overload."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"


class _Sample(NamedTuple):
    at: float
    used_cores: float


class SharePoolLoad:
    """Mean load of the shared CPUs over the last 5 rounds, at most 10 seconds."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=ROUNDS)

    def load(self, state: NodeState, threshold_percent: int) -> PoolLoad:
        """Take the usage of a round and compare it with the threshold.

        Usage of pods with CPUs of their own (LSE, LSR) and of best-effort pods does not count. An
        unknown usage of such a pod is not subtracted, so the pool seems busier.
        """
        if state.cpu_cores is None or state.capacity.cpu_millicores is None:
            return PoolLoad.UNKNOWN
        others = (pod.cpu_cores or 0.0 for pod in state.pods if _is_outside(pod))
        self._add(_Sample(state.at, max(state.cpu_cores - sum(others), 0.0)))
        used_cores = sum(sample.used_cores for sample in self._samples) / len(self._samples)
        owned = sum(pod.requests.cpu_millicores or 0 for pod in state.pods if pod.qos in _OWN_CPUS)
        pool_cores = (state.capacity.cpu_millicores - owned) / 1000
        ratio = used_cores / pool_cores if pool_cores > 0 else 1.0
        threshold = threshold_percent / 100
        if ratio >= threshold:
            return PoolLoad.OVERLOAD
        return PoolLoad.COOLING if ratio >= COOLING * threshold else PoolLoad.IDLE

    def _add(self, sample: _Sample) -> None:
        # Also drops samples of a clock that was set back.
        recent = [old for old in self._samples if 0 < sample.at - old.at <= SECONDS]
        self._samples.clear()
        self._samples.extend((*recent, sample))


def _is_outside(pod: PodState) -> bool:
    return pod.qos in _OWN_CPUS or pod.is_best_effort
