"""Usage of a cluster by hour, the input of a report.

Arrays with two columns have cpu in millicores and memory in bytes. NaN is unknown usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES

HOUR_SECONDS: Final = 3600
WEEK_HOURS: Final = 168
MOST_SAMPLES: Final = 60_000_000
"""Hours of all pods: 16 bytes each, in all 960 MB. 50,000 pods in a week have 8.4 million."""

_PROD, _BATCH = CLASS_CODES["prod"], CLASS_CODES["batch"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClusterUsage:
    """k nodes, n pods and h hours, the last of which ends at `end_seconds`.

    A pod that was on two nodes is two pods. `highest` (n, h, 2) is the highest usage of a pod in
    each hour, NaN where unknown and where the pod did not run; `mean` (n, 2) is the mean over its
    hours, `last_mean` (n, 2) that of the last hour. `requests` and `limits` (n, 2) are 0 without
    one. `workloads` and `pools` are "" where unknown, `classes` are codes of `CLASS_CODES`. `runs`
    marks the pods that run at the end; the others have ended. `capacity` and `allocatable` (k, 2)
    are NaN where unknown. `node_usage` (k, h, 2) is the average usage of a node with all its
    processes, NaN where unknown. `notes` report what of the input is unknown or was left out.
    """

    end_seconds: int
    nodes: tuple[str, ...]
    pools: tuple[str, ...]
    capacity: FloatArray
    allocatable: FloatArray
    node_usage: FloatArray
    pods: tuple[str, ...]
    workloads: tuple[str, ...]
    classes: IntArray
    node_index: IntArray
    runs: BoolArray
    requests: FloatArray
    limits: FloatArray
    highest: FloatArray
    mean: FloatArray
    last_mean: FloatArray
    watched_seconds: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def hours(self) -> int:
        """The number of hours, h."""
        return int(self.highest.shape[1])

    @property
    def spans(self) -> tuple[IntArray, IntArray]:
        """The first hour of each pod with known usage, and the end (exclusive) of its stay, (n,)
        each: after its last hour, or `hours` if it runs. Both are `hours` for a pod without any."""
        known = ~(np.isnan(self.highest[:, :, 0]) & np.isnan(self.highest[:, :, 1]))
        has_any: BoolArray = np.logical_or.reduce(known, axis=1)
        first = np.where(has_any, known.argmax(axis=1), self.hours)
        last = self.hours - known[:, ::-1].argmax(axis=1)
        return first, np.where(self.runs | ~has_any, self.hours, last)

    @property
    def has_usage(self) -> BoolArray:
        """Whether usage of each pod is known in any hour, (n, 2)."""
        unknown = [np.isnan(self.highest[:, :, r]).all(axis=1) for r in range(2)]
        return ~np.stack(unknown, axis=1)


def default_classes(requests: FloatArray, limits: FloatArray) -> IntArray:
    """The class of pods without labels and priorities of Koordinator, (n,): Batch if a pod
    requests nothing and has no limit, else Prod."""
    is_best_effort = (requests <= 0.0).all(axis=1) & (limits <= 0.0).all(axis=1)
    return np.where(is_best_effort, _BATCH, _PROD).astype(np.int64)


def check_size(pods: int, hours: int) -> None:
    """Raise `InvalidRecordError` for more than `MOST_SAMPLES`."""
    if pods * hours > MOST_SAMPLES:
        raise InvalidRecordError(
            f"{pods:,} pods in {hours:,} hours, more than {MOST_SAMPLES:,} hours of pods",
            hint="shorten the history with --since",
        )


def usage_of_trace(trace: Trace) -> ClusterUsage:
    """The usage of a trace by hour. Usage of nodes, capacity and means of the last hour are
    unknown, and the last step of the trace is the end. Raises `InvalidRecordError` for steps of
    more than an hour, and for too many pods."""
    if trace.step_seconds > HOUR_SECONDS:
        raise InvalidRecordError(
            f"{trace.dataset}: steps are {trace.step_seconds:,} s long",
            hint="give a trace with steps of an hour or less",
        )
    end = trace.start_seconds + trace.steps * trace.step_seconds
    # Hours are counted back from the end.
    ends = trace.start_seconds + (1 + np.arange(trace.steps)) * trace.step_seconds
    hours = -((trace.start_seconds - end) // HOUR_SECONDS)
    hour_of = hours - 1 - (end - ends) // HOUR_SECONDS
    check_size(len(trace.pods), hours)
    highest = np.full((len(trace.pods), hours, 2), np.nan)
    mean = np.full((len(trace.pods), 2), np.nan)
    for stay, (first, last) in enumerate(
        zip(trace.start.tolist(), trace.end.tolist(), strict=True)
    ):
        usage, own = trace.stay_usage(stay), hour_of[first:last]
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        highest[stay, own[starts]] = np.fmax.reduceat(usage, starts, axis=0)
        counts = (~np.isnan(usage)).sum(axis=0)
        np.divide(np.nansum(usage, axis=0), counts, out=mean[stay], where=counts > 0)
    return ClusterUsage(
        end_seconds=end,
        nodes=trace.nodes,
        pools=trace.pools or ("",) * len(trace.nodes),
        capacity=np.full((len(trace.nodes), 2), np.nan),
        allocatable=trace.allocatable,
        node_usage=np.full((len(trace.nodes), hours, 2), np.nan),
        pods=trace.pods,
        workloads=trace.workloads or ("",) * len(trace.pods),
        classes=default_classes(trace.requests, trace.set_limits),
        node_index=trace.node_index,
        runs=trace.end == trace.steps,
        requests=trace.requests,
        limits=trace.set_limits,
        highest=highest,
        mean=mean,
        last_mean=np.full_like(mean, np.nan),
    )
