"""Predictions whose horizon runs, and the highest usage since then of the pods they were made for.

A prediction is made for the pods that run then. A pod that ends counts as zero afterwards; pods
that arrive later do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.model.column_store import Column

NEVER: Final = -(1 << 40)
TOLERANCE: Final = 1.0
"""Usage above a prediction by up to one millicore or MiB is no exceedance."""


def pending_columns(horizon: Horizon, risks: int) -> Mapping[str, Column]:
    """Columns of nodes: a ring of pending predictions. A place with a shape of 0 is free."""
    ring = horizon.audits
    return {
        "shapes": Column((ring,)),  # in the unit of usage
        "outcomes": Column((ring,)),
        "peaks": Column((ring, risks)),
        "risks": Column((ring, risks), "<f4"),  # at which the peak was predicted
    }


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became known of the predictions of one step: `nodes` are rows."""

    nodes: IntArray
    ratios: FloatArray  # outcome / shape
    exceeded: BoolArray  # (nodes, risks)
    risks: FloatArray  # (nodes, risks), at which the peaks were predicted


def follow(
    nodes: EntityRows,
    made_steps: IntArray,
    step: int,
    node_of_pod: IntArray,
    arrived: IntArray,
    usage: FloatArray,
    horizon: Horizon,
) -> None:
    """Raise the outcomes of running predictions by the samples of `step`. `node_of_pod` are rows
    of nodes; `made_steps` (ring) the steps at which the predictions of all nodes were made."""
    slots = np.flatnonzero((made_steps < step) & (made_steps >= step - horizon.steps))
    if not len(slots):
        return
    made = made_steps[slots]
    count = len(nodes["id"])
    total = np.bincount(node_of_pod, usage, minlength=count)
    cohort = np.repeat(total[:, None], len(slots), axis=1)
    late = np.flatnonzero(arrived > made.min())
    if len(late):
        after = np.where(arrived[late, None] > made, usage[late, None], 0.0)
        places = node_of_pod[late, None] * len(slots) + np.arange(len(slots))
        without = np.bincount(places.ravel(), after.ravel(), minlength=cohort.size)
        cohort -= without.reshape(cohort.shape)
    outcomes = nodes["outcomes"]
    outcomes[:, slots] = np.maximum(outcomes[:, slots], cohort)


def ended(
    nodes: EntityRows, made_steps: IntArray, step: int, horizon: Horizon
) -> list[tuple[int, Outcomes]]:
    """Take out the predictions whose horizon ends with `step` or has ended, oldest first, with the
    slot of each."""
    slots = np.flatnonzero((made_steps > NEVER) & (made_steps <= step - horizon.steps))
    oldest_first = slots[np.argsort(made_steps[slots])].tolist()
    return [(slot, _taken(nodes, made_steps, slot)) for slot in oldest_first]


def _taken(nodes: EntityRows, made_steps: IntArray, slot: int) -> Outcomes:
    rows = nodes.rows[nodes["shapes"][nodes.rows, slot] > 0.0]
    outcomes = nodes["outcomes"][rows, slot]
    result = Outcomes(
        rows,
        outcomes / nodes["shapes"][rows, slot],
        outcomes[:, None] > nodes["peaks"][rows, slot] + TOLERANCE,
        nodes["risks"][rows, slot].astype(np.float64),
    )
    made_steps[slot] = NEVER
    nodes["shapes"][:, slot] = 0.0
    return result


def expected_rates(nodes: EntityRows, made_steps: IntArray) -> tuple[IntArray, FloatArray]:
    """Slots of running predictions, and the rate of exceedances to expect of each, (slots, risks):
    1 for a node whose usage exceeded the prediction, else the risk that it was made with."""
    slots = np.flatnonzero(made_steps > NEVER)
    at = np.ix_(nodes.rows, slots)
    known = nodes["shapes"][at][:, :, None] > 0.0
    exceeded = nodes["outcomes"][at][:, :, None] > nodes["peaks"][at] + TOLERANCE
    rates = np.where(exceeded, 1.0, nodes["risks"][at].astype(np.float64))
    mean: FloatArray = np.where(known, rates, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return slots, mean


def enter(
    nodes: EntityRows,
    rows: IntArray,
    slot: int,
    shapes: FloatArray,
    peaks: FloatArray,
    risks: FloatArray,
) -> None:
    """Remember the predictions of the nodes in `rows`, (nodes,) and (nodes, risks), in `slot`."""
    nodes["shapes"][:, slot] = 0.0
    nodes["outcomes"][:, slot] = 0.0
    nodes["shapes"][rows, slot] = shapes
    nodes["peaks"][rows, slot] = peaks
    nodes["risks"][rows, slot] = risks
