"""A trace from windows of the log: a series is a pod of Prod on a node while windows list it.

A step has the length of most windows, on the grid of UTC. A window counts in the step in which it
ended. A pod ends when its node has a window without it, and may return. Usage is unknown, not 0,
where windows are missing, and where a node fell silent before the end of the trace, unless the log
says that the node is gone. Pods without a record are left out, because their requests are unknown.
docs/reference/backtest.md describes what windows know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.sample_grid import SampleGrid, step_grid
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import AMOUNTS, WORKLOAD, read_traces
from pipeline.processors.backtest.window_log import PodTitle, Samples, WindowLog
from pipeline.processors.model.model_config import RESOURCES

_SCENARIO: Final = "std"


class _Stays(NamedTuple):
    """The n stays of pods that have a record: their names, nodes (n,), `AMOUNTS` (n, 4), and their
    samples, whose `pods` are numbers of stays."""

    titles: Sequence[PodTitle]
    node_index: IntArray
    stated: FloatArray
    samples: Samples


def window_trace(dataset: str, log: WindowLog) -> Trace:
    """The trace of these windows. Raises InvalidRecordError without a pod of Prod that has a
    record, or for a trace that is too long."""
    stays = _split(log, _recorded(dataset, log))
    silent = _silent_nodes(log)
    grid = _grid(log, stays, silent)
    usage = np.stack([grid.spread(stays.samples.usage[:, r]) for r in range(2)], axis=1)
    amounts, is_assumed = _amounts(log, stays, usage, grid)
    names = _unique_names(stays.titles)
    trace = _trace(dataset, log, stays, grid, (names, amounts, usage))
    assumed = dict(zip(names, is_assumed.tolist(), strict=True))
    notes = _notes(log, len({*names}), amounts, is_assumed, silent)
    return replace(
        trace,
        has_assumed_limit=np.array([assumed[pod] for pod in trace.pods], np.bool_),
        pools=tuple(log.pools.get(node, "") for node in trace.nodes) if log.pools else (),
        notes=(*notes, *trace.notes),
    )


def _recorded(dataset: str, log: WindowLog) -> _Stays:
    """The pods that have a record, as one stay each."""
    chosen = np.flatnonzero(~np.isnan(log.amounts[:, 0::2]).all(axis=1))
    if not len(chosen):
        raise InvalidRecordError(
            f"{dataset}: no window has a pod of Prod with a record",
            hint="run `springtide watcher`, or give a longer span",
        )
    number = np.full(len(log.amounts), -1)
    number[chosen] = np.arange(len(chosen))
    samples = log.samples()
    own = number[samples.pods] >= 0
    titles = log.pods
    return _Stays(
        [titles[pod] for pod in chosen.tolist()],
        log.node_index[chosen],
        log.amounts[chosen],
        Samples(number[samples.pods[own]], samples.end_ms[own], samples.usage[own]),
    )


def _split(log: WindowLog, pods: _Stays) -> _Stays:
    """The stays of these pods: a new one begins after a step in which the node has a window without
    the pod."""
    step_ms = 1000 * _step_seconds(log)
    samples = pods.samples
    step, (nodes, ends_ms) = -(-samples.end_ms // step_ms), log.windows()
    low, span = int(step.min()), int(np.ptp(step)) + 1
    order = np.argsort(samples.pods * span + step - low, kind="stable")
    owner, step = samples.pods[order], step[order] - low
    seen = -(-ends_ms // step_ms) - low
    is_within = (seen >= 0) & (seen < span)
    windows = np.unique(nodes[is_within] * span + seen[is_within])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = owner[1:] != owner[:-1]
    gaps = np.flatnonzero(~is_new[1:] & (step[1:] - step[:-1] > 1))
    begin = pods.node_index[owner[gaps]] * span
    after, before = begin + step[gaps], begin + step[gaps + 1]
    is_new[gaps + 1] = np.searchsorted(windows, after, "right") < np.searchsorted(windows, before)
    stay = np.empty(len(order), np.int64)
    stay[order] = np.cumsum(is_new) - 1
    own = owner[is_new]
    return _Stays(
        [pods.titles[pod] for pod in own.tolist()],
        pods.node_index[own],
        pods.stated[own],
        samples._replace(pods=stay),
    )


def _trace(
    dataset: str, log: WindowLog, stays: _Stays, grid: SampleGrid,
    columns: tuple[list[str], FloatArray, FloatArray],
) -> Trace:  # fmt: skip
    """The trace of stays of pods with these names, `AMOUNTS` and usage, checked as one of files."""
    names, amounts, usage = columns
    starts = zip(names, grid.first_step.tolist(), strict=True)
    keys = [f"{name} from step {start}" for name, start in starts]
    series = {
        "series": keys,
        "start": grid.first_step,
        **dict(zip(AMOUNTS, amounts.T, strict=True)),
        "cpu_m": _lists(usage[:, 0], np.zeros(len(keys), np.bool_), grid),
        "mem_mi": _lists(usage[:, 1], amounts[:, 3] == 0.0, grid),
    }
    placement = {
        "scenario": [_SCENARIO] * len(names),
        "node": [pod.node for pod in stays.titles],
        "pod": names,
        "series": keys,
        "start": grid.first_step,
        "end": grid.first_step + grid.lengths,
        "allocatable_m": np.nan_to_num(_allocatable(log)[stays.node_index, 0]),
        WORKLOAD: [pod.workload for pod in stays.titles],
    }
    metadata = {
        "step_s": str(grid.step_seconds),
        "steps": str(grid.steps),
        "t0_unix": str(grid.start_seconds),
    }
    tables = (pa.table(each).replace_schema_metadata(metadata) for each in (series, placement))
    (trace,) = read_traces(dataset, *tables)
    return trace


def _step_seconds(log: WindowLog) -> int:
    ((length_ms, _),) = log.lengths.most_common(1)
    return max(-(-length_ms // 1000), 1)


def _silent_nodes(log: WindowLog) -> BoolArray:
    """Which nodes have no window in the last step and the one before it, and are not known to be
    gone."""
    last_ms = log.last_ms
    is_late = last_ms < np.nanmax(last_ms) - 1000 * _step_seconds(log)
    return np.asarray(is_late & ~(log.gone_ms >= last_ms))


def _grid(log: WindowLog, stays: _Stays, silent: BoolArray) -> SampleGrid:
    """The steps of all pods. Those that were in the last window of a silent node last to the end,
    where their usage is unknown."""
    step_ms = 1000 * _step_seconds(log)
    step = -(-stays.samples.end_ms // step_ms) - 1
    start = int(step.min())
    grid = step_grid(
        stays.samples.pods,
        step - start,
        len(stays.titles),
        step_ms // 1000,
        start * step_ms // 1000,
    )
    node_last = -(-log.last_ms[stays.node_index] // step_ms) - 1 - start
    is_cut = silent[stays.node_index] & (grid.first_step + grid.lengths - 1 == node_last)
    return grid.extended(is_cut)


def _allocatable(log: WindowLog) -> FloatArray:
    """Allocatable millicores and MiB of nodes (k, 2), or their capacity where it is unknown."""
    stated = log.allocatable
    return np.where(np.isnan(stated[:, :2]), stated[:, 2:], stated[:, :2])


def _amounts(
    log: WindowLog, stays: _Stays, usage: FloatArray, grid: SampleGrid
) -> tuple[FloatArray, BoolArray]:
    """`AMOUNTS` of pods (n, 4), and which limits (n, 2) nobody set: what is allocatable on the node
    limits these pods. Requests and limits of a resource that no pod is known to use are 0."""
    amounts = np.nan_to_num(stays.stated)
    is_assumed = amounts[:, 1::2] == 0.0
    highest = np.fmax.reduceat(usage, np.cumsum(grid.lengths) - grid.lengths, axis=0)
    assumed = np.fmax(np.fmax(_allocatable(log)[stays.node_index], highest), 1.0)
    limits = np.fmax(np.where(is_assumed, assumed, amounts[:, 1::2]), amounts[:, 0::2])
    is_measured = ~np.isnan(highest).all(axis=0)
    amounts[:, 1::2] = limits * is_measured
    amounts[:, 0::2] *= is_measured
    return amounts, is_assumed


def _unique_names(titles: Sequence[PodTitle]) -> list[str]:
    """Names of pods with their UIDs: a pod of a StatefulSet has the name of the one before it. A
    pod that the log has on two nodes is two."""
    count = Counter(uid for _, uid in {(pod.node, pod.uid) for pod in titles})
    return [
        f"{pod.name} {pod.uid}".strip() + (f"@{pod.node}" if count[pod.uid] > 1 else "")
        for pod in titles
    ]


def _lists(values: FloatArray, is_absent: BoolArray, grid: SampleGrid) -> pa.Array:
    """The samples of each series, NaN in gaps; null for series without the resource."""
    offsets = np.concatenate([[0], np.cumsum(grid.lengths)])
    if not is_absent.any():
        return pa.LargeListArray.from_arrays(offsets, values)
    return pa.LargeListArray.from_arrays(offsets, values, mask=pa.array(is_absent))


def _notes(
    log: WindowLog, count: int, amounts: FloatArray, is_assumed: BoolArray, silent: BoolArray
) -> Iterator[str]:
    """What is unknown or left out of a trace of so many pods."""
    if without := len(log.pods) - count:
        yield f"left out: pods without a record, whose requests are unknown: {without:,}"
    if log.of_other_classes:
        yield f"left out: pods of Mid, Batch and Free: {log.of_other_classes:,}"
    for r, resource in enumerate(RESOURCES):
        limits = amounts[:, 2 * r + 1]
        if not limits.any():
            yield f"no usage of {resource} is known"
            continue
        if without := int((amounts[:, 2 * r] == 0.0).sum()):
            yield f"pods without a request for {resource}: {without:,}"
        if assumed := int(is_assumed[:, r].sum()):
            yield f"pods without a limit of {resource}, for which allocatable stands: {assumed:,}"
    if silent.any():
        yield f"nodes that fell silent, and whose usage is unknown from then on: {silent.sum():,}"
    if log.implausible:
        yield f"negative or absurd values, which count as unknown: {log.implausible:,}"
