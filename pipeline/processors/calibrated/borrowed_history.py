"""What history a new pod takes over: its own after an absence, or that of a pod of its workload.

A pod that ended leaves its history for some days. A new pod borrows the first that there is:

1. its own history, if it returns;
2. the history of the pod of its workload that ended last, within the last hour: it replaces it;
3. a copy of the longest history among the running pods of its workload;
4. the history of the pod of its workload that ended last, however long ago;
5. what a pod of its workload used on another node, hour by hour (`workload_history`).

Usage is taken over as it is, not in proportion to the request: another request does not change what
the same program uses.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.calibrated import pod_history, workload_history
from pipeline.processors.calibrated.entity_rows import EntityRows
from pipeline.processors.calibrated.fleet_experience import FleetExperience
from pipeline.processors.calibrated.horizon import Horizon
from pipeline.processors.calibrated.pod_history import NO_WORKLOAD
from pipeline.processors.calibrated.workload_history import HourlyPeaks
from pipeline.processors.model.column_store import Column

_RETAINED_DAYS: Final = 7.0
"""How long the history of a pod that ended stays: the shape looks back as far."""
_REPLACEMENT_SECONDS: Final = 3600


def departed_rows(horizon: Horizon) -> EntityRows:
    """Empty rows for pods that ended: the columns of pods, and the last step at which they ran."""
    return EntityRows(
        {**pod_history.pod_columns(horizon), "last_step": Column((), "<i8", pod_history.NO_STEP)}
    )


def keep(
    departed: EntityRows,
    pods: EntityRows,
    rows: IntArray,
    last_step: int,
    most: int,
    horizon: Horizon,
) -> None:
    """Add the histories of the pods in `rows`, which ran last at `last_step`, to those of departed
    ones, of which `most` stay (see `_surplus`)."""
    if not most:
        return
    added = departed.add(pods["id"][rows])
    _copy(pods, rows, departed, added)
    departed["last_step"][added] = last_step
    surplus = _surplus(departed, most, horizon)
    if len(surplus):
        departed.remove(surplus)


def expire(departed: EntityRows, step: int, horizon: Horizon) -> None:
    """Drop histories of pods that ended too long ago."""
    oldest = step - horizon.steps_of_days(_RETAINED_DAYS)
    expired = departed.rows[departed["last_step"][departed.rows] < oldest]
    if len(expired):
        departed.remove(expired)


def _surplus(departed: EntityRows, most: int, horizon: Horizon) -> IntArray:
    """The rows beyond the `most` that stay: the newest of each workload, then the second newest of
    each, and so on, so that a job with ever new pods does not push out the others; last of all pods
    that were young, because jobs may have new names for ever, and pods without a workload, which
    seldom return."""
    if len(departed) <= most:
        return np.zeros(0, np.int64)
    rows = departed.rows
    workloads, last = departed["workload"][rows], departed["last_step"][rows]
    newest_first = np.lexsort((departed["id"][rows], -last, workloads))
    rows, workloads = rows[newest_first], workloads[newest_first]
    _, first = np.unique(workloads, return_index=True)
    rank = np.arange(len(rows)) - first[np.searchsorted(workloads[first], workloads)]
    last = departed["last_step"][rows]
    was_young = last - departed["first_step"][rows] < horizon.young_steps
    order = np.lexsort((-last, rank, was_young | (workloads == NO_WORKLOAD)))
    surplus: IntArray = rows[order[most:]]
    return surplus


def take_over(
    pods: EntityRows, rows: IntArray, present: IntArray, departed: EntityRows, step: int,
    horizon: Horizon, elsewhere: Mapping[int, HourlyPeaks], experience: FleetExperience,
) -> None:  # fmt: skip
    """Give the new pods in `rows`, whose history is empty, the history that they borrow, if there
    is any. `present` are the rows of the pods that ran before and still run, `elsewhere` the
    histories of workloads on other nodes, from which `experience` learns how pods grow."""
    if not (len(present) or len(departed) or elsewhere):
        return
    claimed: BoolArray = np.zeros(len(departed["id"]), np.bool_)
    recent = step - _REPLACEMENT_SECONDS // horizon.step_seconds
    present_workloads = pods["workload"][present]
    departed_workloads = departed["workload"][departed.rows]
    taught = set()  # each history teaches growth once, however many pods begin with it
    returned = departed.find(pods["id"][rows])
    claimed[returned[returned >= 0]] = True
    for row, own in zip(rows.tolist(), returned.tolist(), strict=True):
        workload = int(pods["workload"][row])
        if own < 0 and workload != NO_WORKLOAD:
            siblings = present[present_workloads == workload]
            gone = departed.rows[departed_workloads == workload]
            own, sibling = _donor(pods, siblings, departed, gone, claimed, recent)
            if sibling >= 0:
                _borrow(pods, sibling, pods, row, step)
                continue
            if own < 0 and workload in elsewhere:
                workload_history.begin_with(pods, row, elsewhere[workload], step, horizon)
                if workload not in taught:
                    workload_history.learn_growth(pods, row, step, horizon, experience)
                    taught.add(workload)
        if own >= 0:
            claimed[own] = True
            _borrow(departed, own, pods, row, step)
            pod_history.continue_after_gap(
                pods, row, int(departed["last_step"][own]), step, horizon
            )
    if claimed.any():
        departed.remove(np.flatnonzero(claimed))


def highest_usage(
    pods: EntityRows,
    departed: EntityRows,
    workloads: IntArray,
    elsewhere: Mapping[int, HourlyPeaks],
) -> FloatArray:
    """The highest usage of pods of each workload, (n,), on other nodes where none has a history;
    NaN where that is unknown, too."""
    both = (pods, departed)
    owners = np.concatenate([of_pods["workload"][of_pods.rows] for of_pods in both])
    usage = np.concatenate([of_pods["maxima"][of_pods.rows].max(axis=1) for of_pods in both])
    known, places = np.unique(owners, return_inverse=True)
    highest = np.zeros(len(known) + 1)
    np.maximum.at(highest, places, usage)
    highest[-1] = np.nan
    at = np.searchsorted(known, workloads)
    is_known = np.isin(workloads, known)
    others = [elsewhere[w].peaks.max() if w in elsewhere else np.nan for w in workloads.tolist()]
    return np.where(is_known, highest[np.where(is_known, at, -1)], others)


def _donor(
    pods: EntityRows,
    siblings: IntArray,
    departed: EntityRows,
    gone: IntArray,
    claimed: BoolArray,
    recent: int,
) -> tuple[int, int]:
    """Choose from `siblings`, rows of running pods of a workload, and `gone`, rows of departed
    ones: the row in `departed` or that in `pods` to borrow from; -1 for the other one, or both."""
    # The newest, then the longest history, then the lowest id.
    order = np.lexsort((departed["first_step"][gone], -departed["last_step"][gone], claimed[gone]))
    gone = gone[order]
    if len(gone) and not claimed[gone[0]] and departed["last_step"][gone[0]] >= recent:
        return int(gone[0]), -1
    if len(siblings):
        return -1, int(siblings[np.argmin(pods["first_step"][siblings])])
    return (int(gone[0]) if len(gone) else -1), -1


def _borrow(donors: EntityRows, donor: int, pods: EntityRows, row: int, step: int) -> None:
    """Copy the history of the donor; what is known of the heir itself stays."""
    own = {name: pods[name][row] for name in ("node", "request", "limit", "workload")}
    _copy(donors, donor, pods, row)
    for name, value in own.items():
        pods[name][row] = value
    pods["arrived"][row] = step


def _copy(
    source: EntityRows, source_rows: IntArray | int, target: EntityRows, rows: IntArray | int
) -> None:
    for name in source.columns.columns:
        if name != "id" and name in target.columns:
            target[name][rows] = source[name][source_rows]
