"""What a calibrated pool has learned, and its saved form."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.calibrated import (
    borrowed_history,
    pending_outcomes,
    pod_history,
    pooled_margins,
    shape,
)
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FLEET, SINGLE_NODE, FleetExperience
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.outcome_tally import OutcomeTally
from pipeline.processors.calibrated.pending_outcomes import NEVER
from pipeline.processors.model.column_store import Column

_STEPS: Final = ("step", "last_made", "learned_step")


@dataclass(slots=True)
class PoolState:
    """Everything that a pool of nodes has learned of one resource, as of `step`.

    `debt` (risks,) is the risk that predictions took and did not spend, in steps, negative if they
    spent more. Each pending prediction has a slot in `made_steps`, `known_steps` and `intervals`,
    the steps that it stands for. A pool of a single node has a `tally`; its `pool_margins` come
    from records and are not saved.
    """

    pods: EntityRows
    departed: EntityRows
    nodes: EntityRows
    experience: FleetExperience
    tally: OutcomeTally | None
    pool_margins: FloatArray
    debt: FloatArray
    intervals: FloatArray
    made_steps: IntArray
    known_steps: IntArray
    step: int = NEVER
    last_made: int = NEVER
    learned_step: int = NEVER

    @classmethod
    def empty(cls, horizon: Horizon, risks: int, *, single_node: bool) -> Self:
        """A pool that has not seen any usage yet."""
        return cls(
            pods=EntityRows(pod_history.pod_columns(horizon)),
            departed=borrowed_history.departed_rows(horizon),
            nodes=EntityRows(_node_columns(horizon, risks)),
            experience=FleetExperience(horizon.blocks, SINGLE_NODE if single_node else FLEET),
            tally=OutcomeTally() if single_node else None,
            pool_margins=np.zeros(pooled_margins.BINS),
            debt=np.zeros(risks),
            intervals=np.zeros(horizon.audits),
            made_steps=np.full(horizon.audits, NEVER, np.int64),
            known_steps=np.zeros(horizon.audits, np.int64),
        )

    def pack(self) -> dict[str, Any]:
        """The state as bytes, integers and mappings."""
        return {
            "pods": self.pods.pack(),
            "departed": self.departed.pack(),
            "nodes": self.nodes.pack(),
            "experience": self.experience.state(),
            "tally": None if self.tally is None else self.tally.state(),
            **{name: array.tobytes() for name, array in self._arrays()},
            **{name: int(getattr(self, name)) for name in _STEPS},
        }

    def restore(self, packed: Mapping[str, Any]) -> None:
        """Take over what `pack` gave, of a pool with the same horizon and number of risks. Raises
        CheckpointError or ValueError if it is damaged or of another pool."""
        for name, array in self._arrays():
            array[:] = np.frombuffer(packed[name], array.dtype).reshape(array.shape)
        pods = dict(packed["pods"])
        if "departed" not in packed:  # the pool did not know workloads yet
            unknown = np.full(len(pods["id"]) // 8, pod_history.NO_WORKLOAD)
            pods["workload"] = self.pods.columns.columns["workload"].pack(unknown)
        self.pods.restore(pods)
        self.departed.restore(packed.get("departed", {}))
        self.nodes.restore(packed["nodes"])
        self.experience.restore(packed["experience"])
        if self.tally is not None and "tally" in packed:  # else the pool stated no outcomes yet
            self.tally.restore(packed["tally"])
        for name in _STEPS:
            setattr(self, name, int(packed[name]))

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        if self.tally is None:
            yield "pool_margins", self.pool_margins
        for name in ("debt", "intervals", "made_steps", "known_steps"):
            yield name, getattr(self, name)


def _node_columns(horizon: Horizon, risks: int) -> dict[str, Column]:
    return {
        "last_step": Column((), "<i8"),  # with pods
        "block": Column((), "<i8", -1.0),
        "block_peak": Column(),
        "shares": Column((shape.week_blocks(horizon),), "<f4"),  # used of requests
        "margins": Column((pooled_margins.BINS,), "<f4"),
        **pending_outcomes.pending_columns(horizon, risks),
    }
