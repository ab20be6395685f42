"""Save the models of the containers of one node as part of a state, and restore them.

Older releases ignore this part. A state without it, as they write, has no containers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import CheckpointError
from pipeline.processors.arrays import IntArray
from pipeline.processors.model.entity_models import NO_ROW, EntityModels
from pipeline.processors.model.model_config import RESOURCES, VPA
from pipeline.processors.model.node_containers import NodeContainers
from pipeline.processors.model.state_codec import (
    WORKLOAD_COLUMNS,
    ContainerState,
    SparseHistograms,
    WorkloadState,
    pack,
    pack_columns,
    pack_histograms,
    stored_histograms,
    unpack,
    workload_columns,
)
from pipeline.processors.model.workload_samples import Peaks


def capture(own: NodeContainers, models: EntityModels) -> ContainerState | None:
    """The containers of a node; None if it has none. Equal ones are equal states."""
    if not own.rows and not own.only and not own.places:
        return None
    names = sorted(own.rows)
    rows = np.array([own.rows[name] for name in names], np.int64)
    position = {row: i for i, row in enumerate(rows.tolist())}
    places = sorted(own.places)
    order = np.array([own.places[place] for place in places], np.int64)
    place_names = [position.get(row, NO_ROW) for row in own.place_rows[order].tolist()]
    return ContainerState(
        names=tuple(names),
        models=WorkloadState(
            **pack_columns({name: getattr(models, name)[rows] for name in WORKLOAD_COLUMNS}),
            columns={},
            **pack_histograms(models.sparse(rows, r) for r in range(len(RESOURCES))),
        ),
        only=tuple(sorted(own.only.items())),
        places=tuple(places),
        place_names=pack(np.array(place_names, np.int64), "<i4"),
        peaks=pack(own.peaks.bytes[order], "<f8"),
        peak_ends_ms=pack(own.peaks.end_ms[order], "<i8"),
        kills=tuple(sorted(own.kills.items())),
    )


@dataclass(frozen=True, slots=True)
class CheckedContainers:
    """A state of containers that is whole, and its arrays."""

    state: ContainerState
    columns: dict[str, npt.NDArray[Any]]
    histograms: list[SparseHistograms]
    place_names: IntArray
    peaks: Peaks


def read(state: ContainerState | None) -> CheckedContainers | None:
    """The state, checked for `install`; None if there is none. Raises CheckpointError."""
    if state is None:
        return None
    count, places = len(state.names), len(state.places)
    for values in (state.names, state.places):
        if [*values] != sorted({*values}):
            raise CheckpointError("containers of the node state are not in ascending order")
    place_names = unpack(state.place_names, "<i4", places).astype(np.int64)
    if ((place_names < NO_ROW) | (place_names >= count)).any():
        raise CheckpointError("the node state has a container without a model")
    histograms = [stored_histograms(state.models, r, count) for r in range(len(RESOURCES))]
    for layout, (_, buckets, _) in zip(VPA.layouts, histograms, strict=True):
        if (buckets >= layout.num_buckets).any():
            raise CheckpointError("the node state has a bucket outside the layout of containers")
    if {place for place, _ in state.kills} - {*state.places}:
        raise CheckpointError("the node state has OOM kills of no container")
    return CheckedContainers(
        state,
        workload_columns(state.models, count),
        histograms,
        place_names,
        Peaks(unpack(state.peaks, "<f8", places), unpack(state.peak_ends_ms, "<i8", places)),
    )


def install(checked: CheckedContainers | None, models: EntityModels) -> NodeContainers:
    """Write a state that `read` has checked into new rows."""
    if checked is None:
        return NodeContainers()
    state = checked.state
    rows = models.allocate(np.zeros(len(state.names), np.int8))
    for name, column in checked.columns.items():
        getattr(models, name)[rows] = column
    for histograms, sparse in zip(models.histograms, checked.histograms, strict=True):
        histograms.load(rows, *sparse)
    return NodeContainers(
        rows=dict(zip(state.names, rows.tolist(), strict=True)),
        only=dict(state.only),
        places={place: number for number, place in enumerate(state.places)},
        place_rows=np.append(rows, NO_ROW)[checked.place_names],
        peaks=checked.peaks,
        kills=dict(state.kills),
    )
