"""What a pool remembers of each pod: block maxima of 14 days and its peaks by horizon."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FleetExperience
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.model.column_store import Column

NO_STEP: Final = -(1 << 31)
NO_WORKLOAD: Final = -1


def pod_columns(horizon: Horizon) -> Mapping[str, Column]:
    """The columns of a pod. `maxima` and `at_node_peak` are rings by block: the pod's maximum, and
    its usage at the sample of the block in which its node used most. The sum of the latter over the
    pods of a node is the node's peak in a block, of those pods that are asked for."""
    ring = (horizon.ring_blocks,)
    return {
        "node": Column((), "<i8"),
        "workload": Column((), "<i8", NO_WORKLOAD),
        "first_step": Column((), "<i8", NO_STEP),  # of the history, which may be borrowed
        "arrived": Column((), "<i8", NO_STEP),  # of the pod itself
        "request": Column(),
        "limit": Column(),
        "usage": Column(),
        "sum": Column(),
        "samples": Column(),
        "peak": Column(),  # of the horizon that began last, counted from the first step
        "past_peak": Column(),  # before it
        "early_peak": Column(),  # while young
        "later_peak": Column(),  # after that
        "maxima": Column(ring, "<f4"),
        "at_node_peak": Column(ring, "<f4"),
    }


def history_bytes(horizon: Horizon) -> int:
    """Bytes of the history of one pod."""
    return sum(column.row_bytes for column in pod_columns(horizon).values())


def begin(pods: EntityRows, rows: IntArray, requests: FloatArray, step: int) -> None:
    """Begin the history of new pods in `rows`. Usage that is unknown from the first sample on
    counts as the request."""
    pods["usage"][rows] = requests
    pods["first_step"][rows] = step
    pods["arrived"][rows] = step


def continue_after_gap(
    pods: EntityRows, row: int, last_step: int, step: int, horizon: Horizon
) -> None:
    """Fill the blocks between `last_step`, the last of the history in `row`, and `step`: its last
    day is repeated, or all of it if it is shorter. An absence is not 0."""
    last, block = last_step // horizon.block_steps, step // horizon.block_steps
    if last == block:
        return
    first = int(pods["first_step"][row]) // horizon.block_steps
    period = min(last - first + 1, horizon.day_blocks)
    missing = np.arange(last + 1, block)
    known = last - (last - missing) % period
    for name in ("maxima", "at_node_peak"):
        ring = pods[name][row]
        ring[missing % len(ring)] = ring[known % len(ring)]
        ring[block % len(ring)] = 0.0


def record(
    pods: EntityRows,
    rows: IntArray,
    usage: FloatArray,
    is_node_peak: BoolArray,
    step: int,
    horizon: Horizon,
) -> None:
    """Add one sample of each pod in `rows`; `is_node_peak` tells whether its node used more than
    before in this block."""
    column = step // horizon.block_steps % horizon.ring_blocks
    maxima, at_peak = pods["maxima"], pods["at_node_peak"]
    maxima[rows, column] = np.maximum(maxima[rows, column], usage)
    at_peak[rows[is_node_peak], column] = usage[is_node_peak]
    pods["usage"][rows] = usage
    pods["sum"][rows] += usage
    pods["samples"][rows] += 1.0
    pods["peak"][rows] = np.maximum(pods["peak"][rows], usage)
    young = step - pods["first_step"][rows] < horizon.young_steps
    for name, some in (("early_peak", young), ("later_peak", ~young)):
        pods[name][rows[some]] = np.maximum(pods[name][rows[some]], usage[some])


def learn_horizons(
    pods: EntityRows, rows: IntArray, step: int, horizon: Horizon, experience: FleetExperience
) -> None:
    """Pass on to `experience` what became known at `step`, after its samples: pods in `rows` whose
    horizon ended, and young pods whose first later horizon did."""
    age = step + 1 - pods["first_step"][rows]
    ended = rows[age % horizon.steps == 0]
    if len(ended):
        histories = (step + 1 - pods["first_step"][ended]) // horizon.steps - 1
        first = histories == 0
        _add_first(pods, ended[first], horizon, experience)
        later = ended[~first]
        experience.add_horizons(
            histories[~first], pods["peak"][later], pods["past_peak"][later], pods["limit"][later]
        )
        pods["past_peak"][ended] = np.maximum(pods["past_peak"][ended], pods["peak"][ended])
        pods["peak"][ended] = 0.0
    if horizon.steps > horizon.young_steps:
        ended = rows[age == horizon.young_steps + horizon.steps]
        experience.add_horizons(
            np.zeros(len(ended), np.int64),
            pods["later_peak"][ended],
            pods["early_peak"][ended],
            pods["limit"][ended],
        )


def learn_ends(
    pods: EntityRows, rows: IntArray, step: int, horizon: Horizon, experience: FleetExperience
) -> None:
    """Pass on the first horizons of pods that ended before those did: after its end a pod uses
    nothing."""
    early = rows[step - pods["first_step"][rows] < horizon.steps]
    _add_first(pods, early, horizon, experience)


def _add_first(
    pods: EntityRows, rows: IntArray, horizon: Horizon, experience: FleetExperience
) -> None:
    """Pass on first horizons, but no borrowed ones: they count once."""
    rows = rows[(pods["request"][rows] > 0.0) & (pods["arrived"][rows] == pods["first_step"][rows])]
    blocks = pods["first_step"][rows, None] // horizon.block_steps + np.arange(horizon.blocks)
    usage = pods["maxima"][rows[:, None], blocks % horizon.ring_blocks]
    experience.add_first_windows(usage / pods["request"][rows, None])
