"""Usage of the pods of each node over the last windows.

A node's pods share one array, so that a window of a hundred pods costs one copy. A deleted pod
stays until the last window that listed it is forgotten. Belongs to one event loop.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.model.rank_percentiles import row_percentiles
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.table.usage_history import Series
from pipeline.topics.pod_columns import PodColumns
from pipeline.topics.samples import Origin
from pipeline.topics.windows import Window

MAX_PODS: Final = 8192
"""Pods of one node with a history; of more, deleted ones are forgotten first."""

_Usage = npt.NDArray[np.float32]


class _LastWindow(NamedTuple):
    origin: Origin
    began_ms: int
    length_ms: int


class _Windows(NamedTuple):
    """Windows of a node, oldest first: their ends (n,), and usage (n, pods, 2) in cores and bytes,
    NaN where a pod is not listed or unknown. `names` are namespace and name of each pod. `last` is
    the last window without its rows: origin, begin by the broker's clock, length."""

    uids: tuple[str, ...]
    ends: FloatArray
    usage: _Usage
    names: dict[str, str]
    pods: PodColumns
    last: _LastWindow


class PodHistory:
    """Series by node and pod, of at most `windows` windows."""

    def __init__(self, windows: int) -> None:
        self.windows = windows
        self._nodes: dict[str, _Windows] = {}

    def __len__(self) -> int:
        """Nodes."""
        return len(self._nodes)

    def get(self, node: str, pod: str) -> Series | None:
        """The windows of a pod, called `namespace/name` or by its UID; None if it is unknown. Of
        pods of one name the newest counts."""
        windows = self._nodes.get(node)
        if windows is None:
            return None
        uids = [uid for uid in windows.uids if pod in (uid, windows.names[uid])]
        if not uids:
            return None
        newest = max(uids, key=lambda uid: self._last_window(windows, uid))
        usage = windows.usage[:, windows.uids.index(newest)].astype(np.float64)
        listed = ~np.isnan(usage).all(axis=1)
        return Series(windows.ends[listed], usage[listed, 0], usage[listed, 1])

    def usage(self, node: str, span_seconds: float, percent: int | None) -> dict[str, FloatArray]:
        """Usage of the pods that the last window of a node lists, by UID of their cgroup: (2,)
        cores and bytes over the windows in a span up to it, NaN is unknown. The average, or with
        `percent` that percentile of the windows' averages; 100 is the largest."""
        windows = self._nodes.get(node)
        if windows is None:
            return {}
        recent = windows.ends > windows.ends[-1] - span_seconds
        recent[-1] = True  # also of a span that is shorter than a window
        usage = windows.usage[recent].astype(np.float64)
        known = ~np.isnan(usage)
        counts = known.sum(axis=0)
        if percent is None:
            values = np.where(known, usage, 0.0).sum(axis=0) / np.maximum(counts, 1)
            values[counts == 0] = np.nan
        else:
            samples = usage.reshape(len(usage), -1).T
            values = row_percentiles(samples, [percent]).reshape(usage.shape[1:])
        # What a pod used before is no usage of a pod that is gone.
        values[~known[-1]] = np.nan
        return dict(zip(windows.uids, values, strict=True))

    @staticmethod
    def _last_window(windows: _Windows, uid: str) -> int:
        known = ~np.isnan(windows.usage[:, windows.uids.index(uid)]).all(axis=1)
        return int(np.flatnonzero(known).max(initial=-1))

    def put(self, window: Window) -> bool:
        """Take a window; False if it does not end after the newest of its node, or is of another
        machine and the first is not silent. A retraction or departure removes the node; False if it
        is older than the newest window."""
        header = window.header
        node, end = header.node, header.window_end_ms / 1000
        old = self._nodes.get(node)
        if window.type != "window":
            if old is not None and old.last.began_ms > window.appended_ms:
                return False
            self._nodes.pop(node, None)
            return True
        length_ms = header.window_end_ms - header.window_start_ms
        last = _LastWindow(header.origin, window.began_ms, length_ms)
        if old is None:
            empty = np.empty((0, 0, 2), np.float32)
            old = _Windows((), np.empty(0), empty, {}, window.rows.pods, last)
        elif not end > old.ends[-1] or not window.may_follow(
            old.last.origin, old.last.began_ms, old.last.length_ms
        ):
            return False
        listed = window.rows.listing.uids
        kept = old.usage[-self.windows + 1 :] if self.windows > 1 else old.usage[:0]
        uids = _all_uids(listed, old.uids, kept)
        usage = np.full((len(kept) + 1, len(uids), 2), np.nan, np.float32)
        place = {uid: position for position, uid in enumerate(uids)}
        known = [position for position, uid in enumerate(old.uids) if uid in place]
        usage[:-1, [place[old.uids[position]] for position in known]] = kept[:, known]
        usage[-1, : len(listed)] = WindowBatch([window]).average.pods
        names = old.names
        if old.pods is not window.rows.pods or old.uids != uids:
            names = {uid: old.names.get(uid, uid) for uid in uids} | _names(window)
        ends = np.append(old.ends[len(old.ends) - len(kept) :], end)
        self._nodes[node] = _Windows(uids, ends, usage, names, window.rows.pods, last)
        return True

    def forget(self, node: str) -> None:
        """Forget the windows of a node."""
        self._nodes.pop(node, None)

    def adopt(self, other: "PodHistory") -> None:
        """Become `other` in one step; `other` gets empty."""
        self.windows, self._nodes, other._nodes = other.windows, other._nodes, {}


def _all_uids(listed: tuple[str, ...], old: tuple[str, ...], usage: _Usage) -> tuple[str, ...]:
    """The listed pods, then those that an older window lists."""
    if old == listed:
        return listed
    current = set(listed)
    has_usage: BoolArray = np.asarray((~np.isnan(usage)).any(axis=(0, 2)))
    known = (uid for uid, is_known in zip(old, has_usage, strict=True) if is_known)
    others = [uid for uid in known if uid not in current]
    return (*listed, *others)[: max(MAX_PODS, len(listed))]


def _names(window: Window) -> dict[str, str]:
    """`namespace/name` by UID; the UID where the pod's record is unknown."""
    pods = window.rows.pods.decode()
    columns = zip(pods.column("namespace"), pods.column("name"), strict=True)
    return {
        uid: f"{namespace}/{name}" if namespace and name else uid
        for uid, (namespace, name) in zip(window.rows.listing.uids, columns, strict=True)
    }
