"""What windows teach: the samples of pods, classes, system and node, and how much each weighs.

Owes the rest: functions over windows and the models of their nodes, side by side. What they give
for a node depends on its own window and models alone; sums run in UID order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.processors import drift, points, reclaimable, system_usage
from pipeline.processors.classes import CLASS_CODES, CLASSES
from pipeline.processors.histogram import decay_factor
from pipeline.processors.node import BoolArray, ByteArray, NodeModels
from pipeline.processors.pairs import pairs
from pipeline.processors.rows import IntArray, Rows
from pipeline.processors.store import Columns
from pipeline.processors.window import (
    ENTITIES,
    FIRST_CLASS,
    NODE,
    PLAUSIBLE,
    RESOURCES,
    SYSTEM,
    UNKNOWN,
    FloatArray,
    NodeWindow,
)

Pair = tuple[NodeWindow, NodeModels]
"""A window, and the models of its node when they have been brought up to it."""

UNKNOWN_CLASS: Final = CLASS_CODES["unknown"]
_T = TypeVar("_T", bound=np.generic)
_LARGEST: Final = float(np.finfo(np.float64).max)


def describe_pods(admitted: Sequence[Pair]) -> tuple[ByteArray, FloatArray]:
    """Keep what the windows say of their pods, in UID order; gives the classes (n,) and the usage
    (n, 2) of all."""
    windows = [window for window, _ in admitted]
    starts = np.cumsum([0, *(len(window.pod_uids) for window in windows)])
    counts = [len(node.order) for _, node in admitted]
    order = np.concatenate([node.order for _, node in admitted])
    order += np.repeat(starts[:-1], counts)
    classes = np.concatenate([window.pod_classes for window in windows]).take(order)
    known_class = (classes >= 0) & (classes < len(CLASSES))
    classes = np.where(known_class, classes, np.int8(UNKNOWN_CLASS)).astype(np.int8)
    requests = _clean(np.concatenate([window.requests for window in windows]).take(order, axis=0))
    ages = np.concatenate([window.pod_ages for window in windows]).take(order)
    ages = np.where(np.isnan(ages), np.nan, ages)
    active = np.concatenate([window.pod_active for window in windows]).take(order)
    ended = np.concatenate([_ended(window) for window in windows]).take(order)
    allocatable = _clean(stacked([window.allocatable for window in windows]))
    ends = np.cumsum(counts).tolist()
    for i, (_, node) in enumerate(admitted):
        own = slice(ends[i] - counts[i], ends[i])
        node.classes, node.requests = classes[own], requests[own]
        node.ages, node.active, node.ended = ages[own], active[own], ended[own]
        node.allocatable = allocatable[i]
    usage = np.concatenate([window.pods for window in windows]).take(order, axis=0)
    return classes, _clean(usage, PLAUSIBLE)


def coverages(taught: Sequence[Pair]) -> tuple[FloatArray, FloatArray]:
    """Of all pods, (pods, 2): the share of the window in which each was seen, and the share of the
    time in which its node was."""
    counts = [len(node.order) for _, node in taught]
    nodes = np.repeat([window.coverage for window, _ in taught], counts)
    own = [_seen(window).take(node.order) for window, node in taught]
    seen = np.concatenate(own)
    seen = np.where(np.isnan(seen), nodes, seen)
    seen_of_node = np.minimum(seen, nodes)
    shares = np.divide(seen_of_node, nodes, out=np.ones(len(nodes)), where=nodes > 0.0)
    return pairs(seen), pairs(shares)


def _seen(window: NodeWindow) -> FloatArray:
    seen = window.pod_coverages
    return np.full(len(window.pod_uids), np.nan) if seen is None else seen


def entity_values(
    windows: Sequence[NodeWindow],
    unknown_begun: BoolArray,
    window_of: IntArray,
    pods: FloatArray,
    classes: ByteArray,
) -> FloatArray:
    """The samples of node, system and classes, (windows, entities, 2), from what each pod used
    over the whole window; sums run in UID order. A pod whose usage is not known is skipped in
    its class, and leaves the system unknown: what it used would pass for the system's.
    `unknown_begun` (windows,) says which nodes have a model of class unknown.
    """
    count = len(windows)
    node = _clean(stacked([window.node_usage for window in windows]), PLAUSIBLE)
    host = _clean(stacked([window.host_apps for window in windows]), PLAUSIBLE)
    usage = np.where(np.isnan(pods), 0.0, pods)
    by_class = reclaimable.sum_by(
        window_of * len(CLASSES) + classes, usage, count * len(CLASSES)
    ).reshape(count, len(CLASSES), 2)
    values = np.empty((count, len(ENTITIES), 2))
    values[:, NODE] = node
    remainder = system_usage.remainder(node, reclaimable.sum_by(window_of, pods, count), host)
    given = [r if w.system_usage is None else w.system_usage
             for w, r in zip(windows, remainder, strict=True)]  # fmt: skip
    values[:, SYSTEM] = stacked(given)
    values[:, FIRST_CLASS:] = by_class
    # A node that never had a pod of unknown class has no model for it: an idle model would
    # cost a bucket of every node's Prod peak.
    unknown_pods = np.bincount(window_of[classes == UNKNOWN_CLASS], minlength=count)
    values[(unknown_pods == 0) & ~unknown_begun, UNKNOWN] = np.nan
    # Of what is plausible a sum may not be.
    return _clean(values.reshape(-1, 2), PLAUSIBLE).reshape(values.shape)


def factors(node: NodeModels, half_life_ms: Sequence[tuple[int, int]]) -> list[list[float]]:
    """The weight of a sample of now, by profile and resource."""
    return [
        [
            decay_factor(node.end_ms, reference, half_life)
            for reference, half_life in zip(references, half_lives, strict=True)
            if reference is not None
        ]
        for references, half_lives in zip(node.reference_ms, half_life_ms, strict=True)
    ]


def keep_points(slots: Columns, admitted: Sequence[Pair]) -> None:
    """Keep what was measured of the nodes themselves: a point is as good in a window of little
    coverage as in any other."""
    points.observe(
        slots["points"],
        slots["points_second"],
        np.array([node.slot for _, node in admitted], np.int64),
        np.array([window.start_ms for window, _ in admitted], np.int64),
        np.array([window.end_ms for window, _ in admitted], np.int64),
        [window.points for window, _ in admitted],
    )


def watch(
    rows: Rows, slots: Columns, nodes: Sequence[NodeModels], values: FloatArray, shorten: bool
) -> None:
    """Look for changes of level before these `values` (nodes, entities, 2) are learned: where
    there is one, `shorten` makes what the model holds weigh less, but never the new sample."""
    changed = drift.observe(
        slots,
        np.array([node.slot for node in nodes], np.int64),
        values,
        stacked([node.allocatable for node in nodes]) / reclaimable.TO_KUBERNETES,
        np.array([node.end_ms for node in nodes], np.int64),
    )
    if shorten:
        fixed = stacked([node.fixed for node in nodes])
        for r in range(len(RESOURCES)):
            rows.shift(fixed[changed[:, :, r]], r, drift.SHORTENED)


def stacked(rows: list[npt.NDArray[_T]]) -> npt.NDArray[_T]:
    """`np.stack` in a fifth of its time: rows of one length."""
    return np.concatenate(rows).reshape(len(rows), -1)


def _ended(window: NodeWindow) -> BoolArray:
    ended = window.pod_ended
    return np.zeros(len(window.pod_uids), np.bool_) if ended is None else ended


def _clean(values: FloatArray, largest: FloatArray | float = _LARGEST) -> FloatArray:
    """Bad values (NaN, negative, infinite, beyond belief) as NaN, unknown."""
    values = np.asarray(values, dtype=np.float64)
    if np.ndim(largest):
        largest = np.tile(largest, (len(values), 1))
    return np.where((values >= 0.0) & (values <= largest), values, np.nan)
