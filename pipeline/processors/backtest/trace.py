"""A trace: the usage of a fleet's pods on a grid of equal steps, and where each pod ran.

Step u covers the time from `start_seconds + u * step_seconds` on; its sample is the usage of that
step. Arrays with two columns have cpu in millicores and memory in bytes. NaN is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.model.model_config import RESOURCES

MEBIBYTE: Final = 2.0**20
RETURN_SECONDS: Final = 1800.0
"""A pod that runs on its node again within this time is the same pod: so long workers remember one
that is absent (`model.expiration_seconds`)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trace:
    """Usage of one scenario of a data set: k nodes, n stays of pods on nodes, s series of usage.

    Stays are ordered by node, start and pod. Stay i runs on node `node_index[i]` from step
    `start[i]` until before step `end[i]`, and uses what series `series_index[i]` used:
    `usage[first_sample[i] + u - start[i]]` (2,) at step u. Usage is at most the limit. `requests`
    and `limits` are (n, 2); a resource that a series does not have is 0 there, and its usage NaN.
    `allocatable` is (k, 2). A pod that moved to another node is another pod; one that returns to
    its node soon is the same (`earlier_stays`). `workloads` has the workload of each stay, ""
    without one, and `pools` the pool of each node, "" where unknown; they are empty if the data set
    has none. `has_assumed_limit` (n, 2), None without any, marks limits that nobody set: what is
    allocatable on the node stands for them. `notes` report what of the input is unknown or was left
    out.
    """

    dataset: str
    scenario: str
    step_seconds: int
    start_seconds: int
    steps: int
    nodes: tuple[str, ...]
    allocatable: FloatArray
    pods: tuple[str, ...]
    node_index: IntArray
    start: IntArray
    end: IntArray
    requests: FloatArray
    limits: FloatArray
    series: tuple[str, ...]
    series_index: IntArray
    first_sample: IntArray
    usage: FloatArray
    workloads: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    has_assumed_limit: BoolArray | None = None
    notes: tuple[str, ...] = ()

    @property
    def hours(self) -> float:
        """The length in hours."""
        return self.steps * self.step_seconds / 3600

    @property
    def node_starts(self) -> IntArray:
        """The first stay of each node, and the number of stays, (k + 1,)."""
        return np.searchsorted(self.node_index, np.arange(len(self.nodes) + 1))

    @property
    def set_limits(self) -> FloatArray:
        """The limits that were set, (n, 2), 0 without."""
        if self.has_assumed_limit is None:
            return self.limits
        return np.where(self.has_assumed_limit, 0.0, self.limits)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources that any stay uses."""
        return tuple(name for r, name in enumerate(RESOURCES) if self.limits[:, r].any())

    @property
    def copies(self) -> float:
        """How many pods use one series at a time, on average: 3 if a data set has three spreads of
        the same series. Machines of different spreads are not independent."""
        steps = np.zeros(len(self.series))
        np.add.at(steps, self.series_index, self.end - self.start)
        covered = [
            _union_length(self.start[own], self.end[own])
            for own in np.split(
                np.argsort(self.series_index, kind="stable"),
                np.searchsorted(np.sort(self.series_index), np.arange(1, len(self.series))),
            )
        ]
        return float(steps.sum() / max(sum(covered), 1))

    @property
    def earlier_stays(self) -> IntArray:
        """The stay (n,) that each stay continues: the last one of the same pod on the same node, if
        that ended at most `RETURN_SECONDS` before; else -1."""
        earlier = np.full(len(self.pods), -1)
        last: dict[tuple[int, str], int] = {}
        for stay, key in enumerate(zip(self.node_index.tolist(), self.pods, strict=True)):
            before = last.get(key, -1)
            absent = self.start[stay] - self.end[before] if before >= 0 else np.inf
            if absent * self.step_seconds <= RETURN_SECONDS:
                earlier[stay] = before
            last[key] = stay
        return earlier

    def stay_usage(self, stay: int) -> FloatArray:
        """The usage of a stay, (end - start, 2). A view: do not write to it."""
        first = int(self.first_sample[stay])
        return self.usage[first : first + int(self.end[stay] - self.start[stay])]


def _union_length(starts: IntArray, ends: IntArray) -> int:
    """The number of steps that some of these spans [start, end) cover."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    # Each span adds what lies beyond all spans before it.
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([starts[:1], np.maximum(reached[:-1], starts[1:])])
    return int(np.maximum(ends - before, 0).sum())
