"""The calibrated state of one node in a worker: its pods of Prod are a pool of one node, for cpu
and for memory, which uses the outcomes of a larger pool where windows have them.

Steps are five minutes of event time; a prediction comes every third one, and after each in which
the pods changed. A pod without a request counts its highest usage in place of
it. Amounts are cores and bytes; NaN is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np

from pipeline.errors import CheckpointError, RecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.limits import DEPARTED_BYTES, HISTORY_BYTES
from pipeline.processors.calibrated.pod_history import NO_WORKLOAD, history_bytes
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.calibrated.pool_fold import margins
from pipeline.processors.calibrated.workload_history import HourlyPeaks, hourly_peaks, stated
from pipeline.topics import workloads as topics
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pool_outcomes import LONGEST_MS, NodeOutcomes, PoolOutcomesRecord
from pipeline.topics.windows import MOST_HISTORIES
from pipeline.topics.workload_histories import LONGEST_MS as LONGEST_HISTORY_MS
from pipeline.topics.workload_histories import HistoryHours, WorkloadHistoryRecord
from pipeline.topics.workloads import Workload

STEP_SECONDS: Final = 300
_STEPS_PER_PREDICTION: Final = 3
SHORTEST_SECONDS: Final = 21_600
"""Histories for shorter horizons have too many blocks to keep them for each pod of a fleet."""
_UNITS: Final = np.array([1e-3, 2.0**20])
"""Pools count millicores and MiB."""
_LIMIT_FACTOR: Final = 4.0
"""Models do not know the limits of pods: a pod may grow to so many times its request or usage."""


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """The prediction after a step: the peak as a share of the requests, these requests, and the
    weight of the node's own outcomes in horizons, (2,) each, NaN without pods. It was made for the
    pods that are `included`, (n, 2)."""

    share: FloatArray
    requests: FloatArray
    outcomes: FloatArray
    included: BoolArray


class NodePools:
    """Pools of one node with a declared risk. `open_step` is the step that has samples and is not
    learned yet, -1 if there is none; `pool_outcomes` are those of the node's pool. Raises
    ValueError for a horizon that they do not have."""

    def __init__(self, horizon_seconds: float, risk: float) -> None:
        self.horizon_seconds, self._risk = float(horizon_seconds), risk
        horizon = horizon_of(horizon_seconds)
        pod_bytes = len(_UNITS) * history_bytes(horizon)
        self._most_pods: Final = HISTORY_BYTES // pod_bytes
        most_departed = DEPARTED_BYTES // pod_bytes
        self._pools: Final = [
            CalibratedPool(horizon, (risk,), single_node=True, most_departed=most_departed)
            for _ in range(len(_UNITS))
        ]
        self.open_step = -1
        self.pool_outcomes: PoolOutcomesRecord | None = None
        self._outcomes: NodeOutcomes | None = None
        self._elsewhere: dict[int, WorkloadHistoryRecord] = {}  # by workload
        self._predicted_pods = b""  # digest of those of the last prediction
        self._uids: tuple[str, ...] = ()
        self._ids: IntArray = np.zeros(0, np.int64)

    def close(
        self,
        uids: tuple[str, ...],
        workloads: tuple[Workload | None, ...],
        of_prod: BoolArray,
        of_unknown_class: BoolArray,
        requests: FloatArray,
        usage: FloatArray,
    ) -> StepPeaks | None:
        """Learn the open step, and predict if it is time to; else return None.

        The pods have `requests` and their highest `usage` in the step, (n, 2). Pods that are
        neither `of_prod` nor `of_unknown_class`, (n,), or not listed, have ended. One of unknown
        class counts if it was of Prod before: a lost record must not cost what a pod has learned.
        No `workloads` are known if there are none.
        """
        ids, step = self._ids_of(uids), self.open_step
        workload_ids = _workload_ids(workloads) if workloads else np.full(len(ids), NO_WORKLOAD)
        self.open_step, self._outcomes = -1, None
        self._use_pool(step)
        included = np.zeros((len(uids), 2), np.bool_)
        elsewhere = self._peaks_elsewhere(step)
        for r, pool in enumerate(self._pools):
            used = usage[:, r] / _UNITS[r]
            known, highest = pool.knows(ids), np.fmax(pool.highest_usage(ids), used)
            is_new = ~known & (workload_ids != NO_WORKLOAD)
            if is_new.any():
                others = pool.highest_usage_of_workloads(workload_ids[is_new], elsewhere[r])
                highest[is_new] = np.fmax(highest[is_new], others)
            request = np.where(requests[:, r] > 0.0, requests[:, r] / _UNITS[r], highest)
            counts = (of_prod | (of_unknown_class & known)) & (known | ~np.isnan(used))
            counts = self._with_history(ids, counts & ~np.isnan(request), known, request)
            included[:, r] = counts
            limit = _LIMIT_FACTOR * np.fmax(request, highest)
            pods = ids[counts]
            nodes = np.zeros(len(pods), np.int64)
            pool.observe(
                step,
                PodUsage(
                    pods,
                    nodes,
                    used[counts],
                    request[counts],
                    limit[counts],
                    workload_ids[counts],
                ),
                elsewhere[r],
            )
        waiting = {*workload_ids[~included.all(axis=1)].tolist()}
        self._elsewhere = {w: own for w, own in self._elsewhere.items() if w in waiting}
        present = b"".join(ids[of_resource].tobytes() for of_resource in included.T)
        digest = blake2b(present, digest_size=8).digest()
        if step % _STEPS_PER_PREDICTION and digest == self._predicted_pods:
            return None
        self._predicted_pods = digest
        return self._predict(included)

    def remember(self, histories: Sequence[WorkloadHistoryRecord]) -> None:
        """Let the pods to come of these workloads begin with their histories, until the next step
        that lists no such pod without a history."""
        for history in histories:
            self._elsewhere[_workload_id(history.workload)] = history
        for surplus in [*self._elsewhere][:-MOST_HISTORIES]:
            del self._elsewhere[surplus]

    def histories(
        self, workloads: Sequence[Workload]
    ) -> Iterator[tuple[Workload, HistoryHours | None, HistoryHours | None]]:
        """The longest histories of these workloads, of cpu and memory, for other nodes."""
        cpu, memory = (pool.workload_histories() for pool in self._pools)
        for workload in workloads:
            own = _workload_id(workload)
            if own in cpu or own in memory:
                both = zip((cpu.get(own), memory.get(own)), _UNITS.tolist(), strict=True)
                of_cpu, of_memory = (None if h is None else stated(h, unit) for h, unit in both)
                yield workload, of_cpu, of_memory

    def _peaks_elsewhere(self, step: int) -> list[dict[int, HourlyPeaks]]:
        """The histories that new pods may begin with, by resource and workload."""
        end_ms = 1000 * STEP_SECONDS * (step + 1)
        known = [(w, (own.cpu, own.memory)) for w, own in self._elsewhere.items()]
        return [
            {
                workload: hourly_peaks(own, unit)
                for workload, both in known
                if (own := both[r]) and abs(end_ms - own.until_ms) <= LONGEST_HISTORY_MS
            }
            for r, unit in enumerate(_UNITS.tolist())
        ]

    def _use_pool(self, step: int) -> None:
        """Use the outcomes of the pool, unless they are old or of another horizon. Its level is one
        of its declared risk."""
        pooled, end_ms = self.pool_outcomes, 1000 * STEP_SECONDS * (step + 1)
        if (
            pooled is None
            or pooled.horizon_seconds != self.horizon_seconds
            or abs(end_ms - pooled.at_ms) > LONGEST_MS
        ):
            for pool in self._pools:
                pool.use_pool(None, None)
            return
        for pool, own in zip(self._pools, (pooled.cpu, pooled.memory), strict=True):
            pool.use_pool(margins(own), own.level if pooled.risk == self._risk else None)

    def outcomes(self) -> NodeOutcomes:
        """The outcomes of this node for its pool, after the last step that was closed."""
        if self._outcomes is None:
            cpu, memory = (pool.outcomes() for pool in self._pools)
            seconds = round(self.horizon_seconds)
            self._outcomes = NodeOutcomes(
                horizon_seconds=seconds, risk=self._risk, cpu=cpu, memory=memory
            )
        return self._outcomes

    def _with_history(
        self, ids: IntArray, counts: BoolArray, known: BoolArray, request: FloatArray
    ) -> BoolArray:
        """Those of the pods that count which a pool has room for: first those it knows, because
        an outcome is of all pods of its prediction, then those with the largest requests."""
        rows = np.flatnonzero(counts)
        order = np.lexsort((ids[rows], -request[rows], ~known[rows]))
        chosen = np.zeros_like(counts)
        chosen[rows[order[: self._most_pods]]] = True
        return chosen

    def _predict(self, included: BoolArray) -> StepPeaks:
        share, total, outcomes = (np.full(2, np.nan) for _ in range(3))
        for r, pool in enumerate(self._pools):
            peaks = pool.predict()
            if len(peaks.nodes):
                asked = float(peaks.requests[0])
                share[r] = float(peaks.peaks[0, 0]) / asked if asked > 0.0 else 1.0
                total[r] = asked * _UNITS[r]
                outcomes[r] = pool.outcome_weights(peaks.nodes)[0]
        return StepPeaks(share, total, outcomes, included)

    def _ids_of(self, uids: tuple[str, ...]) -> IntArray:
        # Windows of a node share one tuple until one of its pods changes.
        if uids is not self._uids:
            self._uids, self._ids = uids, np.array([_id_of(uid) for uid in uids], np.int64)
        return self._ids

    def pack(self) -> bytes:
        """Everything that was learned."""
        state = {
            "horizon_seconds": self.horizon_seconds,
            "risk": self._risk,
            "open_step": self.open_step,
            "predicted_pods": self._predicted_pods,
            "pool_outcomes": self.pool_outcomes and encode_json(self.pool_outcomes),
            "elsewhere": [encode_json(history) for history in self._elsewhere.values()],
            "pools": [pool.state() for pool in self._pools],
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def restored(cls, packed: bytes, risk: float | None = None) -> NodePools:
        """The pools that `pack` gave. With another risk they keep what they know of pods and
        outcomes, and drop pending predictions. Raises CheckpointError if they are damaged."""
        try:
            state: dict[str, Any] = msgspec.msgpack.decode(packed)
            risk = state["risk"] if risk is None else risk
            pools = cls(state["horizon_seconds"], risk)
            pools.open_step = int(state["open_step"])
            pools._predicted_pods = bytes(state["predicted_pods"])
            if state.get("pool_outcomes") is not None:
                pools.pool_outcomes = decode_json(PoolOutcomesRecord, state["pool_outcomes"])
            known = state.get("elsewhere", ())
            pools.remember([decode_json(WorkloadHistoryRecord, history) for history in known])
            for pool, saved in zip(pools._pools, state["pools"], strict=True):
                pool.restore(saved)
                if state["risk"] != risk:
                    pool.forget_predictions()
        except (KeyError, TypeError, ValueError, RecordError, msgspec.MsgspecError) as error:
            raise CheckpointError(
                f"the calibrated state of a node is damaged: {error!r:.200}"
            ) from error
        return pools


def horizon_of(horizon_seconds: float) -> Horizon:
    """The horizon of pools. Raises ValueError if they do not have it."""
    if horizon_seconds < SHORTEST_SECONDS:
        raise ValueError(f"the horizon is shorter than {SHORTEST_SECONDS} s")
    if horizon_seconds % STEP_SECONDS:
        raise ValueError(f"the horizon is not a multiple of {STEP_SECONDS} s")
    return Horizon(round(horizon_seconds) // STEP_SECONDS, STEP_SECONDS)


@lru_cache(maxsize=4096)  # windows of a node share one tuple until one of its pods changes
def _workload_ids(workloads: tuple[Workload | None, ...]) -> IntArray:
    """A number for the workload of each pod, `NO_WORKLOAD` where it has none or it is unknown."""
    return np.array([_workload_id(each) for each in workloads], np.int64)


def _workload_id(workload: Workload | None) -> int:
    return NO_WORKLOAD if workload in (None, topics.NO_WORKLOAD) else _id_of(str(workload))


def _id_of(name: str) -> int:
    """A number for a pod or workload, below 2^63, equal in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
