"""Run the calibrated predictor over a trace, beside the predictors that run in a bank."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from pipeline.errors import PredictorError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.calibrated.calibrated_pool import CalibratedPool
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_usage import PodUsage
from pipeline.processors.model.model_config import RESOURCES

CALIBRATED: Final = "calibrated-pool"
"""Name of the predictor: it predicts pools of nodes instead of entities, without a bank."""
_PREDICTIONS: Final = 12
"""At least so many predictions within a horizon, so that outcomes are learned before any is
scored."""
_UNITS: Final = np.array([1.0, MEBIBYTE])


class CalibratedRun:
    """Pools of all nodes of a trace, one for each of `resources`, and their predictions at steps.

    `risks` ascend; `at` are the steps of `predictions` (risks, k, q, 2), in millicores and bytes.
    With `moved_pods_known` a pod continues the history of the pod of its series that ended on
    another node when it began, as pods of one workload may.
    """

    def __init__(
        self,
        trace: Trace,
        horizon_seconds: float,
        risks: Sequence[float],
        at: IntArray,
        *,
        moved_pods_known: bool,
        prior: FloatArray | None = None,
        resources: Collection[str] = RESOURCES,
    ) -> None:
        try:
            horizon = Horizon(round(horizon_seconds / trace.step_seconds), trace.step_seconds)
        except ValueError as error:
            hint = "choose another --horizon, or resample the trace to a step that divides a day"
            raise PredictorError(f"calibrated: {error}", hint=hint) from error
        self._trace: Final = trace
        self._stays = np.zeros(0, np.int64)
        self._changes: Final = set(np.concatenate([trace.start, trace.end]).tolist())
        self._columns: Final = {step: column for column, step in enumerate(at.tolist())}
        self._every: Final = max(1, horizon.steps // _PREDICTIONS)
        # Names, not positions: what comes later may not change the random numbers of a pod.
        self._nodes: Final = np.array([entity_id(name) for name in trace.nodes], np.int64)
        starts = zip(trace.pods, trace.start.tolist(), strict=True)
        self._pods: Final = np.array(
            [entity_id(f"{pod} {start}") for pod, start in starts], np.int64
        )
        self._workloads: Final = _chains(trace, self._pods) if moved_pods_known else None
        most_departed = len(self._pods) if moved_pods_known else 0
        self.pools: Final = {
            r: CalibratedPool(horizon, risks, prior, most_departed=most_departed)
            for r, resource in enumerate(RESOURCES)
            if resource in trace.resources and resource in resources
        }
        self.predictions = np.full((len(risks), len(trace.nodes), len(at), 2), np.nan)

    def apply(self, step: int) -> None:
        """Learn the samples of `step`, the one after the last, and predict."""
        trace = self._trace
        if step in self._changes:
            self._stays = np.flatnonzero((trace.start <= step) & (step < trace.end))
        stays = self._stays
        samples = trace.usage[trace.first_sample[stays] + step - trace.start[stays]]
        column = self._columns.get(step)
        for r, pool in self.pools.items():
            usage = PodUsage(
                self._pods[stays],
                self._nodes[trace.node_index[stays]],
                samples[:, r] / _UNITS[r],
                trace.requests[stays, r] / _UNITS[r],
                trace.limits[stays, r] / _UNITS[r],
                None if self._workloads is None else self._workloads[stays],
            )
            pool.observe(step, usage)
            if column is not None or step % self._every == 0:
                peaks = pool.predict()
                if column is not None:
                    order = np.argsort(self._nodes)
                    nodes = order[np.searchsorted(self._nodes[order], peaks.nodes)]
                    self.predictions[:, nodes, column, r] = peaks.peaks.T * _UNITS[r]


def entity_id(name: str) -> int:
    """A number for a name, below 2^63, equal in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _chains(trace: Trace, pods: IntArray) -> IntArray:
    """For each stay, the id of the first one in its chain: each stay of a chain is one of its
    series that ended when the next one began."""
    chains, ended = pods.copy(), dict[tuple[int, int], int]()
    for stay in np.argsort(trace.start, kind="stable").tolist():
        series = int(trace.series_index[stay])
        chains[stay] = ended.get((series, int(trace.start[stay])), chains[stay])
        ended[series, int(trace.end[stay])] = int(chains[stay])
    return chains
