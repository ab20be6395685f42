"""Average usage of nodes, their pods and host applications over the last minutes.

Averages are over the windows within the aggregation time, which ends with the newest window. A pod
is averaged over the windows that list it, as 0 in the missing part of its first and last. Only
arrays of numbers are kept, not the windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.join.window_batch import WindowBatch
from pipeline.topics.entity_listings import Listing
from pipeline.topics.samples import KINDS
from pipeline.topics.windows import Window

_HOST_APP: Final = KINDS.index("host_app")
_NODE, _SYSTEM, _FIRST_POD = range(3)


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


class _Kept(NamedTuple):
    """The windows of a node, oldest first: start and end (windows, 2), the part of each that was
    observed (windows,), and usage (windows, rows, 2): the node, the system, the pods of the newest
    window, its host applications; NaN where a row is unknown or was not there."""

    machine_id: str
    uids: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    spans: IntArray = np.empty((0, 2), np.int64)
    coverages: FloatArray = np.empty(0)
    usage: FloatArray = np.empty((0, _FIRST_POD, 2))


class Rolling:
    """The last windows of many nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Kept] = {}

    def __len__(self) -> int:
        """The number of nodes with a window."""
        return len(self._nodes)

    def apply(
        self, windows: Sequence[Window], aggregate_seconds: Sequence[int], memory_policy: str
    ) -> list[bool]:
        """Apply windows in their order, and drop what lies before the aggregation time of each
        window's node. `memory_policy` says which pages count as used. Returns which windows were
        applied.

        A window that does not end after the last of its node is refused. So is a window of another
        machine until the first machine is silent; after that the node starts over. A departure
        removes a node. The newest window stays, however long it is.
        """
        taken = []
        measured = [window for window in windows if window.type == "window"]
        usages = iter(_usages(measured, memory_policy))
        for window, seconds in zip(windows, aggregate_seconds, strict=True):
            if window.type == "departure":
                self.forget(window.header.node)
                taken.append(True)
            else:
                taken.append(self._put(window, next(usages), 1000 * seconds))
        return taken

    def forget(self, node: str) -> None:
        """Remove a node, if it exists."""
        self._nodes.pop(node, None)

    def read(self, node: str) -> RollingUsage | None:
        """The averages of a node, None without a window."""
        kept = self._nodes.get(node)
        if kept is None:
            return None
        lengths = kept.spans[:, 1] - kept.spans[:, 0]
        averages = _averages(kept.usage, lengths * kept.coverages)
        first_host = _FIRST_POD + len(kept.uids)
        return RollingUsage(
            end_ms=int(kept.spans[-1, 1]),
            span_ms=int(lengths.sum()),
            node=averages[_NODE],
            system=averages[_SYSTEM],
            uids=kept.uids,
            pods=averages[_FIRST_POD:first_host],
            hosts=kept.hosts,
            host_apps=averages[first_host:],
        )

    def _put(self, window: Window, usage: "_WindowUsage", aggregate_ms: int) -> bool:
        header, kept = window.header, self._nodes.get(window.header.node)
        if kept is not None:
            start_ms, end_ms = kept.spans[-1]
            if header.window_end_ms <= end_ms:
                return False
            if kept.machine_id != header.machine_id:
                # As in the models: two machines of one name must not alternate.
                if header.window_start_ms - end_ms < end_ms - start_ms:
                    return False
                kept = None
        kept = kept or _Kept(header.machine_id)
        kept = _laid_out(kept, window.rows.listing)
        recent = kept.spans[:, 0] >= header.window_end_ms - aggregate_ms
        span = np.array([[header.window_start_ms, header.window_end_ms]])
        self._nodes[header.node] = kept._replace(
            spans=np.concatenate([kept.spans[recent], span]),
            coverages=np.append(kept.coverages[recent], usage.coverage),
            usage=np.concatenate([kept.usage[recent], usage.rows[None]]),
        )
        return True


class _WindowUsage(NamedTuple):
    """Averages of one window, `rows` (2 + pods + host applications, 2)."""

    coverage: float
    rows: FloatArray


def _usages(windows: Sequence[Window], memory_policy: str) -> list[_WindowUsage]:
    if not windows:
        return []
    batch = WindowBatch(windows, memory_policy)
    average = batch.average
    return [
        _WindowUsage(
            coverage,
            np.concatenate(
                [average.node[i, None], average.system[i, None], average.pods[pods],
                 average.hosts[hosts]]
            ),
        )
        for i, (coverage, pods, hosts) in enumerate(
            zip(batch.coverage.tolist(), batch.pod_slices, batch.host_slices, strict=True)
        )
    ]  # fmt: skip


def _laid_out(kept: _Kept, listing: Listing) -> _Kept:
    """What is kept with the rows of a listing: a pod that is gone goes, one that is new was not
    there."""
    hosts = _hosts_of(listing)
    if kept.uids is listing.uids and kept.hosts == hosts:
        return kept
    now = _rows_of(listing.uids, hosts)
    usage = np.full((len(kept.usage), _FIRST_POD + len(now), 2), np.nan)
    usage[:, :_FIRST_POD] = kept.usage[:, :_FIRST_POD]
    for one, row in _rows_of(kept.uids, kept.hosts).items():
        if one in now:
            usage[:, now[one]] = kept.usage[:, row]
    return kept._replace(uids=listing.uids, hosts=hosts, usage=usage)


def _rows_of(uids: tuple[str, ...], hosts: tuple[str, ...]) -> dict[tuple[str, str], int]:
    """The row of each pod and host application."""
    names = [("pod", uid) for uid in uids] + [("host", name) for name in hosts]
    return {name: row for row, name in enumerate(names, _FIRST_POD)}


def _hosts_of(listing: Listing) -> tuple[str, ...]:
    """Host applications in order of their rows, as `AverageUsage.hosts` has them."""
    return tuple(listing.ids[row] for row in np.flatnonzero(listing.kinds == _HOST_APP).tolist())


def _averages(usage: FloatArray, weights: FloatArray) -> FloatArray:
    """The average (rows, 2) of what is known of usage (windows, rows, 2), by weight of windows."""
    known = ~np.isnan(usage)
    weight = np.where(known, weights[:, None, None], 0.0)
    total = weight.sum(axis=0)
    sums = (np.where(known, usage, 0.0) * weight).sum(axis=0)
    averages: FloatArray = np.divide(
        sums, total, out=np.full(total.shape, np.nan), where=total > 0.0
    )
    return averages
