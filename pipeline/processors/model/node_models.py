"""The state of one node's models outside of the columns; `Bank` and `Learner` change it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.entity_columns import NEVER
from pipeline.processors.model.training_batch import NO_PODS, ListedPods
from pipeline.topics.nodes import Strategy

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class NodeModels:
    """`fixed` are the rows of ENTITIES, `rows` those of the pods in `listed`, the pods of the last
    window; `ages` are theirs, too."""

    machine_id: str
    epoch: int
    fixed: IntArray
    slot: int
    """Its row in the columns that are kept per node."""
    reference_ms: list[list[int | None]]
    """Of the decay, by profile and resource; None until something was learned."""
    end_ms: int = NEVER
    window_ms: int = 0
    coverage: float = 0.0
    strategy: Strategy = field(default_factory=Strategy)
    applied: int = 0
    gaps: int = 0
    allocatable: FloatArray = field(default_factory=lambda: np.full(2, np.nan))
    pods: dict[str, int] = field(default_factory=dict)
    """Every pod with a model -> its row, listed in the last window or not."""
    listed: ListedPods = NO_PODS
    rows: IntArray = field(default_factory=lambda: _NO_ROWS)
    absent: tuple[str, ...] = ()
    ages: FloatArray = field(default_factory=lambda: np.zeros(0))

    def all_rows(self) -> IntArray:
        """Every row of the node: entities, then all pods with a model, in no order."""
        return np.concatenate([self.fixed, np.array([*self.pods.values()], np.int64)])
