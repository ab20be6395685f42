"""Usage of nodes, their pods and host applications over the last minutes.

Averages are over the windows within the aggregation time, which ends with the newest window. A pod
is averaged over the windows that list it, as 0 in the missing part of its first and last. Only
arrays of numbers are stored, because whole windows would take more memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.processors.slo.usage_percentiles import WindowStatistics, window_statistics
from pipeline.topics.entity_listings import Listing
from pipeline.topics.samples import KINDS, Origin
from pipeline.topics.windows import Window

_HOST_APP: Final = KINDS.index("host_app")
_NODE, _SYSTEM, _FIRST_POD = range(3)
_MEMORY: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class RollingUsage:
    """Averages of a node (2,), its system (2,), pods (n, 2) in order of `uids`, and host
    applications (m, 2) in order of `hosts`; cores and bytes, NaN is unknown. `span_ms` is the total
    length of the windows, which end at `end_ms`."""

    end_ms: int
    span_ms: int
    node: FloatArray
    system: FloatArray
    uids: tuple[str, ...]
    pods: FloatArray
    hosts: tuple[str, ...]
    host_apps: FloatArray


class _History(NamedTuple):
    """The windows of a node, oldest first: start and end (windows, 2), the part of each that was
    observed (windows,), and usage (windows, rows, 2): the node, the system, the pods of the newest
    window, its host applications; NaN where a row is unknown or not listed. Memory of windows that
    counted other pages than the newest is unknown. `recent` are statistics of windows for
    percentiles. `began_ms` is when the newest window began, by the broker's clock."""

    origin: Origin
    memory_policy: str
    began_ms: int = 0
    recent: WindowStatistics = WindowStatistics()
    uids: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    spans: IntArray = np.empty((0, 2), np.int64)
    coverages: FloatArray = np.empty(0)
    usage: FloatArray = np.empty((0, _FIRST_POD, 2))


class Rolling:
    """The last windows of many nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _History] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def apply(
        self,
        windows: Sequence[Window],
        aggregate_seconds: Sequence[int],
        percentile_seconds: int = 0,
    ) -> list[bool]:
        """Apply windows in their order, and drop what lies before the aggregation time of each
        window's node. Returns for each window whether it was applied. `percentile_seconds` is the
        longest time that `aggregated` will be asked for.

        A window that does not end after the last of its node is refused. So is a window of another
        machine until the first machine is silent; after that the node starts over. A retraction
        or departure removes a node, unless it is older than the node's newest window. The newest
        window stays, however long it is.
        """
        applied = []
        measured = [window for window in windows if window.type == "window"]
        usages = iter(_usages(measured, with_statistics=percentile_seconds > 0))
        for window, seconds in zip(windows, aggregate_seconds, strict=True):
            if window.type != "window":
                applied.append(self._end(window))
            else:
                applied.append(self._put(window, next(usages), seconds, percentile_seconds))
        return applied

    def read(self, node: str) -> RollingUsage | None:
        """The averages of a node, None without a window."""
        history = self._nodes.get(node)
        if history is None:
            return None
        lengths = history.spans[:, 1] - history.spans[:, 0]
        averages = _averages(history.usage, lengths * history.coverages)
        first_host = _FIRST_POD + len(history.uids)
        return RollingUsage(
            end_ms=int(history.spans[-1, 1]),
            span_ms=int(lengths.sum()),
            node=averages[_NODE],
            system=averages[_SYSTEM],
            uids=history.uids,
            pods=averages[_FIRST_POD:first_host],
            hosts=history.hosts,
            host_apps=averages[first_host:],
        )

    def aggregated(self, node: str, seconds: float) -> FloatArray:
        """Average and percentiles of a node and its system over the last `seconds`, (2, 5, 2)."""
        history = self._nodes.get(node)
        return (WindowStatistics() if history is None else history.recent).aggregated(seconds)

    def _end(self, end: Window) -> bool:
        history = self._nodes.get(end.header.node)
        if history is not None and history.began_ms > end.appended_ms:
            return False
        self._nodes.pop(end.header.node, None)
        return True

    def _put(
        self, window: Window, usage: "_WindowUsage", aggregate_seconds: int, percentile_seconds: int
    ) -> bool:
        header, history = window.header, self._nodes.get(window.header.node)
        if history is not None:
            start_ms, end_ms = history.spans[-1]
            if header.window_end_ms <= end_ms:
                return False
            if not window.may_follow(history.origin, history.began_ms, end_ms - start_ms):
                return False
            if history.origin != header.origin:
                history = None
        policy = window.node.strategy.memory_collect_policy
        history = history or _History(header.origin, policy)
        history = _aligned(history, window.rows.listing)
        if history.memory_policy != policy:
            history = _without_memory(history)._replace(memory_policy=policy)
        recent = history.spans[:, 0] >= header.window_end_ms - 1000 * aggregate_seconds
        span = np.array([header.window_start_ms, header.window_end_ms])
        if usage.statistics is not None:
            statistics = history.recent.with_window(
                span, usage.coverage, usage.statistics, percentile_seconds
            )
            history = history._replace(recent=statistics)
        self._nodes[header.node] = history._replace(
            began_ms=max(history.began_ms, window.began_ms),
            spans=np.concatenate([history.spans[recent], span[None]]),
            coverages=np.append(history.coverages[recent], usage.coverage),
            usage=np.concatenate([history.usage[recent], usage.rows[None]]),
        )
        return True


class _WindowUsage(NamedTuple):
    """Averages of one window, `rows` (2 + pods + host applications, 2), and statistics (2, 4, 2) of
    the node and its system."""

    coverage: float
    rows: FloatArray
    statistics: FloatArray | None


def _usages(windows: Sequence[Window], *, with_statistics: bool) -> list[_WindowUsage]:
    if not windows:
        return []
    batch = WindowBatch(windows)
    average = batch.average
    statistics = window_statistics(batch) if with_statistics else [None] * len(batch)
    return [
        _WindowUsage(
            coverage,
            np.concatenate(
                [average.node[i, None], average.system[i, None], average.pods[pods],
                 average.hosts[hosts]]
            ),
            own,
        )
        for i, (coverage, pods, hosts, own) in enumerate(
            zip(
                batch.coverage.tolist(), batch.pod_slices, batch.host_slices, statistics,
                strict=True,
            )
        )
    ]  # fmt: skip


def _without_memory(history: _History) -> _History:
    """The history in which memory is unknown."""
    usage, statistics = history.usage.copy(), history.recent.statistics.copy()
    usage[..., _MEMORY] = statistics[..., _MEMORY] = np.nan
    return history._replace(usage=usage, recent=history.recent._replace(statistics=statistics))


def _aligned(history: _History, listing: Listing) -> _History:
    """The history with the rows of a listing, without deleted pods; new pods are unknown."""
    hosts = _hosts_of(listing)
    if history.uids is listing.uids and history.hosts == hosts:
        return history
    rows = _rows_of(listing.uids, hosts)
    usage = np.full((len(history.usage), _FIRST_POD + len(rows), 2), np.nan)
    usage[:, :_FIRST_POD] = history.usage[:, :_FIRST_POD]
    for name, row in _rows_of(history.uids, history.hosts).items():
        if name in rows:
            usage[:, rows[name]] = history.usage[:, row]
    return history._replace(uids=listing.uids, hosts=hosts, usage=usage)


def _rows_of(uids: tuple[str, ...], hosts: tuple[str, ...]) -> dict[tuple[str, str], int]:
    names = [("pod", uid) for uid in uids] + [("host", name) for name in hosts]
    return {name: row for row, name in enumerate(names, _FIRST_POD)}


def _hosts_of(listing: Listing) -> tuple[str, ...]:
    """Host applications in order of their rows, as `AverageUsage.hosts` has them."""
    return tuple(listing.ids[row] for row in np.flatnonzero(listing.kinds == _HOST_APP).tolist())


def _averages(usage: FloatArray, weights: FloatArray) -> FloatArray:
    """The average (rows, 2) of the known usage (windows, rows, 2), by weight of windows."""
    known = ~np.isnan(usage)
    weight = np.where(known, weights[:, None, None], 0.0)
    total = weight.sum(axis=0)
    sums = (np.where(known, usage, 0.0) * weight).sum(axis=0)
    averages: FloatArray = np.divide(
        sums, total, out=np.full(total.shape, np.nan), where=total > 0.0
    )
    return averages
