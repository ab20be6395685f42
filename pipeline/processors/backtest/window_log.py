"""What windows of the log, in the columns of an archive, say about the pods of Prod: usage, and the
amounts stated for pods and nodes.

Pods of Prod are those that count as Prod elsewhere: also pods without a class and those whose class
is unknown. Rows may come in any order. Amounts are millicores and MiB, NaN is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.backtest.sample_grid import MOST_SAMPLES
from pipeline.processors.backtest.trace import MEBIBYTE
from pipeline.processors.backtest.trace_tables import AMOUNTS, implausible
from pipeline.processors.kubernetes.pod_classes import COUNTED_AS_PROD
from pipeline.processors.model.window_batch import usage_of_rows
from pipeline.topics.pod_columns import workload_of
from pipeline.topics.samples import STATISTICS, USAGES
from pipeline.topics.windows import NodeFacts, read_node_facts

_TITLES: Final = ("pod_namespace", "pod_name", "owner_kind", "owner_name")
_STATED: Final = (
    ("pod_request_cpu_millicores", 1.0),
    ("pod_limit_cpu_millicores", 1.0),
    ("pod_request_memory_bytes", MEBIBYTE),
    ("pod_limit_memory_bytes", MEBIBYTE),
)
"""The column of each of `AMOUNTS`, in their order, and how much one of its unit is."""
_OF_NODES: Final = (
    ("allocatable_cpu_millicores", 1.0),
    ("allocatable_memory_bytes", MEBIBYTE),
    ("capacity_cpu_cores", 1 / 1000),
    ("capacity_memory_bytes", MEBIBYTE),
)
COLUMNS: Final = (
    "type", "log_partition", "log_offset", "node", "window_start", "window_end", "kind", "id",
    *(f"{usage}_{statistic}" for usage in USAGES for statistic in STATISTICS),
    "pod_class", *_TITLES, *(name for name, _ in _STATED), *(name for name, _ in _OF_NODES),
    "node_facts", "sample_appended",
)  # fmt: skip
"""The columns of an archive that are read."""
_UNITS: Final = np.array([1000.0, 1 / MEBIBYTE])
"""Cores and bytes to millicores and MiB."""
_HINT: Final = "`springtide archive` does not write this: restore the archive"


class Samples(NamedTuple):
    """Usage (m, 2) of pods (m,), by number, in windows that ended at `end_ms` (m,)."""

    pods: IntArray
    end_ms: IntArray
    usage: FloatArray


class PodTitle(NamedTuple):
    """Names of a pod; empty where unknown, `workload` also without a controller."""

    node: str
    uid: str
    name: str = ""
    workload: str = ""


class WindowLog:
    """Collects windows. Pods and nodes have numbers, in the order in which they came.

    `lengths` counts the windows by length in milliseconds. `amounts` (pods, 4) are the highest of
    `AMOUNTS` that were stated, `allocatable` (nodes, 4) those of nodes, then their capacity.
    `last_ms` (nodes,) is the end of a node's last window, `gone_ms` (nodes,) when the log last said
    that the node is gone, NaN if never. `implausible` counts values that were too high or negative,
    and are unknown.
    """

    def __init__(self, statistic: str) -> None:
        self._statistic = statistic
        self._nodes, self._uids = _Numbers(), _Numbers()
        self._pods, self._others = _Numbers(), set[int]()
        self._titles: dict[int, PodTitle] = {}
        self._samples: list[Samples] = []
        self._windows: list[tuple[IntArray, IntArray]] = []
        self._amounts, self._allocatable = _Rows(len(_STATED)), _Rows(len(_OF_NODES))
        self._times = _Rows(2)
        self._count = 0
        self.lengths: Counter[int] = Counter()
        self.pools: dict[str, str] = {}
        self.implausible = 0

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [*self._nodes]

    @property
    def pods(self) -> list[PodTitle]:
        """The names of the pods."""
        return [self._titles[pod] for pod in range(len(self._pods))]

    @property
    def node_index(self) -> IntArray:
        """The number of the node of each pod."""
        return np.array([key >> 32 for key in self._pods], np.int64)

    @property
    def of_other_classes(self) -> int:
        """How many pods were never of Prod."""
        return len(self._others - self._pods.keys())

    @property
    def amounts(self) -> FloatArray:
        return self._amounts.first(len(self._pods))

    @property
    def allocatable(self) -> FloatArray:
        return self._allocatable.first(len(self._nodes))

    @property
    def last_ms(self) -> FloatArray:
        return self._times.first(len(self._nodes))[:, 0]

    @property
    def gone_ms(self) -> FloatArray:
        return self._times.first(len(self._nodes))[:, 1]

    def windows(self) -> tuple[IntArray, IntArray]:
        """The node of each window, by number, and the end of the window in milliseconds."""
        nodes, ends = (np.concatenate(column) for column in zip(*self._windows, strict=True))
        return nodes, ends

    def samples(self) -> Samples:
        """All samples."""
        if not self._samples:
            return Samples(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 2)))
        return Samples(*map(np.concatenate, zip(*self._samples, strict=True)))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add whole windows, in the columns `COLUMNS`. Raises InvalidRecordError for rows that are
        not of a log, and if there are more than `MOST_SAMPLES` samples."""
        if not len(batch):
            return
        is_window = _flags(pc.equal(batch["type"], "window").fill_null(False))
        _check_rows(batch, is_window)
        nodes = self._nodes.of(batch["node"])
        self._add_ends(batch, nodes, ~is_window)
        window = _window_of_rows(batch)
        is_node = is_window & _flags(pc.equal(batch["kind"], "node"))
        facts = self._add_nodes(_taken(batch, is_node), nodes[is_node], window[is_node])
        is_pod = is_window & _flags(pc.equal(batch["kind"], "pod"))
        pods = _taken(batch, is_pod)
        keys = nodes[is_pod] << 32 | self._uids.of(pods["id"])
        classes = pods["pod_class"].fill_null("unknown")
        is_prod = _flags(pc.is_in(classes, pa.array(COUNTED_AS_PROD)))
        self._others.update(np.unique(keys[~is_prod]).tolist())
        if is_prod.any():
            policies = [
                facts.get(each, NodeFacts()).strategy.memory_collect_policy
                for each in range(int(window[-1]) + 1)
            ]
            self._add_pods(_taken(pods, is_prod), keys[is_prod], policies, window[is_pod][is_prod])

    def _add_ends(self, batch: pa.RecordBatch, nodes: IntArray, is_end: BoolArray) -> None:
        gone_ms = self._times.first(len(self._nodes))[:, 1]
        np.fmax.at(gone_ms, nodes[is_end], _milliseconds(_taken(batch, is_end)["sample_appended"]))

    def _add_nodes(
        self, rows: pa.RecordBatch, nodes: IntArray, window: IntArray
    ) -> dict[int, NodeFacts]:
        """Add the rows of nodes; the facts about the node of each window."""
        if len(np.unique(window)) < len(window):
            raise InvalidRecordError("a window has two rows about its node", hint=_HINT)
        texts = rows["node_facts"].fill_null("{}").to_pylist()
        facts = {
            place: read_node_facts(text.encode())
            for place, text in zip(window.tolist(), texts, strict=True)
        }
        names = self.nodes
        for node, own in zip(nodes.tolist(), facts.values(), strict=True):
            if own.hot_nodes is not None:
                self.pools[names[node]] = own.hot_nodes.pool
        ends = _milliseconds(rows["window_end"])
        self.lengths.update((ends - _milliseconds(rows["window_start"])).astype(int).tolist())
        self._windows.append((nodes, ends.astype(np.int64)))
        np.fmax.at(self._times.first(len(self._nodes))[:, 0], nodes, ends)
        self._raise_amounts(self._allocatable.first(len(self._nodes)), nodes, rows, _OF_NODES)
        return facts

    def _add_pods(
        self, rows: pa.RecordBatch, keys: IntArray, policies: Sequence[str], window: IntArray
    ) -> None:
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        numbers = [self._pods[key] for key in unique.tolist()]
        self._add_titles(rows, unique.tolist(), numbers, first.tolist())
        pods = np.array(numbers, np.int64)[inverse]
        self._raise_amounts(self._amounts.first(len(self._pods)), pods, rows, _STATED)
        usage = usage_of_rows(lambda name: _floats(rows[name]), self._statistic, policies, window)
        usage *= np.tile(_UNITS, (len(usage), 1))
        for r in range(2):
            usage[:, r] = self._plausible(AMOUNTS[2 * r], usage[:, r])
        end_ms = _milliseconds(rows["window_end"]).astype(np.int64)
        self._samples.append(Samples(pods, end_ms, usage))
        self._count += len(rows)
        if self._count > MOST_SAMPLES:
            raise InvalidRecordError(
                f"the windows so far have more than {MOST_SAMPLES:,} samples of pods",
                hint="give a shorter span, by --since and --until",
            )

    def _add_titles(
        self, rows: pa.RecordBatch, keys: list[int], numbers: list[int], first: list[int]
    ) -> None:
        """Names of pods that have none yet, each from its first row."""
        new = [each for each, pod in enumerate(numbers) if not self._name_of(pod)]
        if not new:
            return
        nodes, uids = self.nodes, [*self._uids]
        chosen = rows.take(pa.array([first[each] for each in new]))
        columns = zip(*(chosen[name].to_pylist() for name in _TITLES), strict=True)
        for each, (namespace, name, kind, owner) in zip(new, columns, strict=True):
            workload = workload_of(namespace, kind, owner)
            self._titles[numbers[each]] = PodTitle(
                node=nodes[keys[each] >> 32],
                uid=uids[keys[each] & 0xFFFF_FFFF],
                name=f"{namespace}/{name}" if namespace and name else "",
                workload=str(workload) if workload and workload.name else "",
            )

    def _name_of(self, pod: int) -> str:
        title = self._titles.get(pod)
        return title.name if title else ""

    def _raise_amounts(
        self, highest: FloatArray, owners: IntArray, rows: pa.RecordBatch,
        columns: Sequence[tuple[str, float]],
    ) -> None:  # fmt: skip
        """Raise the `highest` amounts of owners (m,) to those of these columns of their rows."""
        for number, (name, unit) in enumerate(columns):
            kind = "mem" if "memory" in name else "cpu"
            np.fmax.at(
                highest[:, number], owners, self._plausible(kind, _floats(rows[name]) / unit)
            )

    def _plausible(self, column: str, values: FloatArray) -> FloatArray:
        wrong = implausible(column, values)
        self.implausible += int(wrong.sum())
        return np.where(wrong, np.nan, values)


class _Numbers(dict[Any, int]):
    """A number for each name, in the order in which they come."""

    def __missing__(self, name: Any) -> int:
        return self.setdefault(name, len(self))

    def of(self, names: pa.Array) -> IntArray:
        """The numbers of these names."""
        encoded = names.dictionary_encode()
        numbers = np.array([self[name] for name in encoded.dictionary.to_pylist()], np.int64)
        return np.asarray(numbers[encoded.indices.to_numpy()])


class _Rows:
    """Rows (n, width), NaN until they are written, of which there are more and more."""

    def __init__(self, width: int) -> None:
        self._rows = np.full((64, width), np.nan)

    def first(self, count: int) -> FloatArray:
        """The first rows, (count, width), to be written to."""
        if count > len(self._rows):
            rows = np.full((2 * count, self._rows.shape[1]), np.nan)
            rows[: len(self._rows)] = self._rows
            self._rows = rows
        return self._rows[:count]


def _window_of_rows(batch: pa.RecordBatch) -> IntArray:
    """The number of the window of each row, from 0 on."""
    places = [batch[name].to_numpy() for name in ("log_partition", "log_offset")]
    is_new = np.zeros(len(batch), np.bool_)
    for place in places:
        is_new[1:] |= place[1:] != place[:-1]
    return np.cumsum(is_new)


def _check_rows(batch: pa.RecordBatch, is_window: BoolArray) -> None:
    """Raise InvalidRecordError for a row that lacks what each row has."""
    windows = _taken(batch, is_window)
    pods = _taken(windows, _flags(pc.equal(windows["kind"], "pod").fill_null(False)))
    for rows, names in (
        (batch, ("type", "log_partition", "log_offset", "node")),
        (windows, ("window_start", "window_end", "kind")),
        (pods, ("id",)),
    ):
        for name in names:
            if rows[name].null_count:
                raise InvalidRecordError(f"a row has no {name}", hint=_HINT)


def _taken(batch: pa.RecordBatch, chosen: BoolArray) -> pa.RecordBatch:
    return batch.filter(pa.array(chosen))


def _flags(values: pa.Array) -> BoolArray:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)


def _floats(values: pa.Array) -> FloatArray:
    """Numbers, NaN where null."""
    return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _milliseconds(times: pa.Array) -> FloatArray:
    return _floats(times.cast(pa.int64()))
