"""The containers of one node outside of the columns; `ContainerModels` changes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.processors.arrays import IntArray
from pipeline.processors.model.oom_peaks import PodOomKill
from pipeline.processors.model.workload_samples import Peaks
from pipeline.topics.workloads import Workload, WorkloadContainer

PodContainer = tuple[str, str]
"""UID of a pod and name of a container."""


@dataclass(slots=True)
class NodeContainers:
    """The containers of the pods of a node.

    `rows` are the models of containers of workloads, `only` the names of containers of workloads
    whose pods have one. `places` are the positions of containers of pods in the arrays `place_rows`
    (n,), rows of models, and `peaks`. Of the c containers in the last window whose model is known,
    `listed` (c,) are the places, `sources` (c,) the numbers in the window, `pods` (c,) the numbers
    of their pods. `kills` are the last OOM kills of containers of pods that counted.
    """

    rows: dict[WorkloadContainer, int] = field(default_factory=dict)
    only: dict[Workload, str] = field(default_factory=dict)
    places: dict[PodContainer, int] = field(default_factory=dict)
    place_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    peaks: Peaks = field(default_factory=lambda: Peaks(np.zeros(0), np.zeros(0, np.int64)))
    listed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    sources: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    pods: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    kills: dict[PodContainer, PodOomKill] = field(default_factory=dict)

    def without_pods(self) -> NodeContainers:
        """The same models, without containers of pods."""
        return NodeContainers(rows=self.rows, only=self.only)

    def model_rows(self) -> IntArray:
        """The rows of all models."""
        return np.array([*self.rows.values()], np.int64)
