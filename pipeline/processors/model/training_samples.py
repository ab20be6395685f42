"""What windows teach: the samples of pods, classes, system and node, and how much each weighs.

Owes the rest: functions over windows and the models of their nodes, side by side. What they give
for a node depends on its own window and models alone; sums run in UID order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np

from pipeline.processors.arrays import BoolArray, ByteArray, FloatArray, IntArray
from pipeline.processors.join import system_usage
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES, CLASSES
from pipeline.processors.model import drift, reclaimable, usage_points
from pipeline.processors.model.column_store import Columns
from pipeline.processors.model.entity_columns import Rows
from pipeline.processors.model.histogram import decay_factor
from pipeline.processors.model.model_config import (
    ENTITIES,
    FIRST_CLASS,
    NODE,
    PLAUSIBLE,
    RESOURCES,
    SYSTEM,
    UNKNOWN,
    NodeWindow,
)
from pipeline.processors.model.node_models import NodeModels
from pipeline.processors.model.pairs import stacked

Pair = tuple[NodeWindow, NodeModels]
"""A window, and the models of its node when they have been brought up to it."""

UNKNOWN_CLASS: Final = CLASS_CODES["unknown"]
_LARGEST: Final = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Described:
    """What windows say of their n pods, in UID order: `window_of` (n,) numbers the window of each,
    `usage` is (n, 2), and `seen` (n,) the share of the window in which the pod was, NaN unknown."""

    window_of: IntArray
    classes: ByteArray
    usage: FloatArray
    seen: FloatArray

    def of(self, windows: Sequence[bool]) -> Described:
        """That of some of the windows, which are numbered anew."""
        chosen = np.array(windows)
        pods = chosen.take(self.window_of)
        number = np.cumsum(chosen) - 1
        return Described(
            number[self.window_of[pods]], self.classes[pods], self.usage[pods], self.seen[pods]
        )


def describe_pods(admitted: Sequence[Pair]) -> Described:
    """Keep what the windows say of their pods."""
    news = [pair for pair in admitted if not _is_told(*pair)]
    if news:
        _tell(news)
    order, counts = _order(admitted)
    ages = np.concatenate([window.pod_ages for window, _ in admitted]).take(order)
    ages = np.where(np.isnan(ages), np.nan, ages)
    allocatable = _clean(stacked([window.allocatable for window, _ in admitted]))
    ends = accumulate(counts, initial=0)
    for i, ((_, node), (start, end)) in enumerate(zip(admitted, pairwise(ends), strict=True)):
        node.ages, node.allocatable = ages[start:end], allocatable[i]
    usage = np.concatenate([window.pods for window, _ in admitted]).take(order, axis=0)
    return Described(
        window_of=np.arange(len(admitted)).repeat(counts),
        classes=np.concatenate([node.classes for _, node in admitted]),
        usage=_clean(usage, PLAUSIBLE),
        seen=np.concatenate([_seen(window) for window, _ in admitted]).take(order),
    )


def _order(pairs: Sequence[Pair]) -> tuple[IntArray, list[int]]:
    """Where the pods in UID order are among those of all windows as these give them, and how many
    each window has."""
    counts = [len(node.order) for _, node in pairs]
    given = [0, *accumulate(len(window.pod_uids) for window, _ in pairs[:-1])]
    return np.concatenate([node.order for _, node in pairs]) + np.repeat(given, counts), counts


def _facts(window: NodeWindow) -> tuple[object, ...]:
    return window.pod_classes, window.requests, window.pod_active, window.pod_ended


def _is_told(window: NodeWindow, node: NodeModels) -> bool:
    """Whether these very arrays were told before, of the same pods. Nobody writes to them."""
    return node.told is not None and all(map(operator.is_, node.told, _facts(window)))


def _tell(news: Sequence[Pair]) -> None:
    """Keep what is seldom another than in the window before: classes, requests, who is active and
    who has ended."""
    order, counts = _order(news)
    windows = [window for window, _ in news]
    classes = np.concatenate([window.pod_classes for window in windows]).take(order)
    known_class = (classes >= 0) & (classes < len(CLASSES))
    classes = np.where(known_class, classes, np.int8(UNKNOWN_CLASS)).astype(np.int8)
    requests = _clean(np.concatenate([window.requests for window in windows]).take(order, axis=0))
    active = np.concatenate([window.pod_active for window in windows]).take(order)
    ended = np.concatenate([_ended(window) for window in windows]).take(order)
    for (window, node), (start, end) in zip(
        news, pairwise(accumulate(counts, initial=0)), strict=True
    ):
        # Copies, for what is kept should not hold that of other nodes.
        node.classes, node.requests = classes[start:end].copy(), requests[start:end].copy()
        node.active, node.ended = active[start:end].copy(), ended[start:end].copy()
        node.told = _facts(window)


def shares(pods: Described, coverage: FloatArray) -> FloatArray:
    """The share of its node's time in which each pod was seen, (n,), by the `coverage` (windows,)
    of their nodes; as long as the node where it is not known."""
    nodes = coverage.take(pods.window_of)
    seen = np.fmin(pods.seen, nodes)
    return np.divide(seen, nodes, out=np.ones(len(nodes)), where=nodes > 0.0)


def _seen(window: NodeWindow) -> FloatArray:
    seen = window.pod_coverages
    return np.full(len(window.pod_uids), np.nan) if seen is None else seen


def entity_values(
    windows: Sequence[NodeWindow],
    unknown_begun: BoolArray,
    pods: Described,
    usage: FloatArray,
    slight: BoolArray,
) -> FloatArray:
    """The samples of node, system and classes, (windows, entities, 2), from what each pod used
    over the whole window, `usage` (n, 2); sums run in UID order. A pod whose usage is not known
    leaves the system unknown, for what it used would pass for the system's, and its class, which
    would seem to use less than it does, unless the pod is `slight` (n,): has ended, or was there
    for a moment only. `unknown_begun` (windows,) says which nodes have a model of class unknown.
    """
    count, classes = len(windows), len(CLASSES)
    measured = [window.node_usage for window in windows] + [window.host_apps for window in windows]
    both = _clean(stacked(measured), PLAUSIBLE)
    node, host = both[:count], both[count:]
    groups = pods.window_of * classes + pods.classes
    missing = np.isnan(usage)
    by_class = reclaimable.sum_by(groups, np.where(missing, 0.0, usage), count * classes)
    if (missing := missing & ~slight[:, None]).any():
        for r, of_resource in enumerate(missing.T):
            by_class[groups[of_resource], r] = np.nan
    values = np.empty((count, len(ENTITIES), 2))
    values[:, NODE] = node
    remainder = system_usage.remainder(node, reclaimable.sum_by(pods.window_of, usage, count), host)
    given = [r if w.system_usage is None else w.system_usage
             for w, r in zip(windows, remainder, strict=True)]  # fmt: skip
    values[:, SYSTEM] = stacked(given)
    values[:, FIRST_CLASS:] = by_class.reshape(count, classes, 2)
    # A node that never had a pod of unknown class has no model for it: an idle model would
    # cost a bucket of every node's Prod peak.
    unknown_pods = np.bincount(groups, minlength=count * classes)[UNKNOWN_CLASS::classes]
    values[(unknown_pods == 0) & ~unknown_begun, UNKNOWN] = np.nan
    # Of what is plausible a sum may not be.
    return _clean(values, PLAUSIBLE)


def factors(nodes: Sequence[NodeModels], half_life_ms: Sequence[tuple[int, int]]) -> FloatArray:
    """The weight of a sample of now, (nodes, profiles, 2)."""
    half_lives = list(chain.from_iterable(half_life_ms))
    # Many nodes began within the same half-life, and their windows end together.
    found: dict[tuple[int | None, ...], list[float]] = {}
    weights = []
    for node in nodes:
        key = (node.end_ms, *chain.from_iterable(node.reference_ms))
        own = found.get(key)
        if own is None:
            own = found[key] = [
                decay_factor(node.end_ms, reference, half_life)
                for reference, half_life in zip(key[1:], half_lives, strict=True)
                if reference is not None
            ]
        weights.append(own)
    return np.array(weights).reshape(len(nodes), -1, 2)


def keep_points(slots: Columns, admitted: Sequence[Pair]) -> None:
    """Keep what was measured of the nodes themselves: a point is as good in a window of little
    coverage as in any other."""
    usage_points.observe(
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


def _ended(window: NodeWindow) -> BoolArray:
    ended = window.pod_ended
    return np.zeros(len(window.pod_uids), np.bool_) if ended is None else ended


def _clean(values: FloatArray, largest: FloatArray | float = _LARGEST) -> FloatArray:
    """Bad values (NaN, negative, infinite, beyond belief) as NaN, unknown."""
    values = np.asarray(values, dtype=np.float64)
    # Filled in, for numpy compares rows with a row of two at ten times the cost.
    limits = np.empty(values.shape)
    limits[:] = largest
    return np.where((values >= 0.0) & (values <= limits), values, np.nan)
