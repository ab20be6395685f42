"""What a model bank keeps of one node beside its rows.

Owes the rest: a plain value; bank and learner change it, peaks and snapshots read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.model.entity_columns import NEVER
from pipeline.topics.nodes import Strategy

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class NodeModels:
    """`fixed` are the rows of ENTITIES, `rows` those of the pods of the last window. Arrays of pods
    are in the order of `uids`, which is ascending; NaN is unknown."""

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
    listing: tuple[str, ...] | None = None
    """UIDs as the last window gave them; while they stay the same, what follows does too."""
    order: IntArray = field(default_factory=lambda: _NO_ROWS)
    uids: tuple[str, ...] = ()
    rows: IntArray = field(default_factory=lambda: _NO_ROWS)
    absent: tuple[str, ...] = ()
    told: tuple[object, ...] | None = None
    """Arrays of the last window that classes, requests, active and ended were made of."""
    classes: ByteArray = field(default_factory=lambda: np.zeros(0, np.int8))
    requests: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    ages: FloatArray = field(default_factory=lambda: np.zeros(0))
    active: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    ended: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def all_rows(self) -> IntArray:
        """Every row of the node: entities, then all pods with a model, in no order."""
        return np.concatenate([self.fixed, np.array([*self.pods.values()], np.int64)])
