"""Write windows into the columns of an archive."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pipeline.processors.archive.archive_schema import ARCHIVE_SCHEMA, COLUMNS, POD_NAMES
from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.topics.pod_columns import PodColumns
from pipeline.topics.resource_amounts import LARGEST_QUANTITY
from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS
from pipeline.topics.windows import POD_COLUMNS, Window, encode_node_facts

_ROW_OF_STATISTIC: Final = {name: row for row, name in enumerate(NUMBER_COLUMNS)}
_json = msgspec.json.Encoder(order="deterministic")


class LoggedWindow(NamedTuple):
    """A record of `springtide.windows` with its place in the topic."""

    partition: int
    offset: int
    window: Window


def archive_rows(records: Sequence[LoggedWindow]) -> pa.RecordBatch:
    """The rows of these records in the columns of `ARCHIVE_SCHEMA`, in their order.

    Statistics that this version does not know are left out.
    """
    windows = [record.window for record in records]
    lengths = [len(window.rows) for window in windows]
    starts = np.cumsum([0, *lengths])[:-1]
    of_row = pa.array(np.repeat(np.arange(len(windows)), lengths))
    node_rows = starts + [window.rows.listing.node for window in windows]
    of_node_row = _index(sum(lengths), node_rows, np.arange(len(windows)))
    columns = {
        **{name: values.take(of_row) for name, values in _window_columns(records).items()},
        **_entity_columns(windows),
        **_statistic_columns(windows, sum(lengths)),
        "gauges": _gauges(windows),
        **_point_columns(windows, of_node_row),
        **_pod_fact_columns(windows, starts, sum(lengths)),
        **_container_columns(windows, starts, sum(lengths)),
        **{name: values.take(of_node_row) for name, values in _node_columns(windows).items()},
    }
    return pa.record_batch([columns[name] for name in ARCHIVE_SCHEMA.names], schema=ARCHIVE_SCHEMA)


def _index(size: int, rows: IntArray, positions: IntArray) -> pa.Array:
    """An array (size,) with these positions at `rows`, and null elsewhere."""
    index = np.zeros(size, np.int64)
    index[rows] = positions
    is_null = np.ones(size, np.bool_)
    is_null[rows] = False
    return pa.array(index, mask=is_null)


def _array(name: str, values: Iterable[Any]) -> pa.Array:
    return pa.array(list(values), COLUMNS[name].type)


def _window_columns(records: Sequence[LoggedWindow]) -> dict[str, pa.Array]:
    """A value for each window, for all its rows."""
    heads = [record.window.header for record in records]
    has_times = [record.window.type == "window" for record in records]
    starts, ends = (
        [getattr(head, name) if has else None for head, has in zip(heads, has_times, strict=True)]
        for name in ("window_start_ms", "window_end_ms")
    )
    return {
        "type": _array("type", (record.window.type for record in records)),
        "log_partition": _array("log_partition", (record.partition for record in records)),
        "log_offset": _array("log_offset", (record.offset for record in records)),
        "node": _array("node", (head.node for head in heads)),
        "window_start": _array("window_start", starts),
        "window_end": _array("window_end", ends),
    }


def _entity_columns(windows: Sequence[Window]) -> dict[str, pa.Array]:
    listings = [window.rows.listing for window in windows]
    kinds = np.concatenate([listing.kinds for listing in listings])
    return {
        "kind": pa.array(KINDS).take(pa.array(kinds)),
        "id": _array("id", chain.from_iterable(listing.ids for listing in listings)),
        "qos": _array("qos", chain.from_iterable(window.rows.sample.qos for window in windows)),
    }


def _statistic_columns(windows: Sequence[Window], rows: int) -> dict[str, pa.Array]:
    values: FloatArray = np.zeros((len(NUMBER_COLUMNS), rows))
    is_null: BoolArray = np.ones((len(NUMBER_COLUMNS), rows), np.bool_)
    start = 0
    for window in windows:
        sample = window.rows.sample
        own, target = _known_rows(sample.statistic_rows)
        place = slice(start, start := start + len(sample))
        values[target, place] = sample.numbers[own]
        is_null[target, place] = sample.null[own]
    return {
        name: pa.array(values[row], mask=is_null[row]) for name, row in _ROW_OF_STATISTIC.items()
    }


def _known_rows(statistic_rows: Any) -> tuple[list[int], list[int]]:
    """Rows of the sample that are columns of their own here, and the numbers of these columns."""
    known = [(row, _ROW_OF_STATISTIC[name]) for name, row in statistic_rows.items()
             if name in _ROW_OF_STATISTIC]  # fmt: skip
    return [own for own, _ in known], [target for _, target in known]


def _gauges(windows: Sequence[Window]) -> pa.Array:
    values: list[list[tuple[str, float]] | None] = []
    for window in windows:
        sample = window.rows.sample
        gauges = [name for name in sample.statistic_rows if name not in _ROW_OF_STATISTIC]
        if not gauges:
            values += [None] * len(sample)
            continue
        for row in range(len(sample)):
            known = [
                (name, float(sample.numbers[index, row]))
                for name in gauges
                if not sample.null[index := sample.statistic_rows[name], row]
            ]
            values.append(known or None)
    return _array("gauges", values)


def _point_columns(windows: Sequence[Window], of_node_row: pa.Array) -> dict[str, pa.Array]:
    samples = [window.rows.sample for window in windows]
    points = np.concatenate([sample.points for sample in samples])
    is_null = np.concatenate([sample.null_points for sample in samples])
    offsets = pa.array(np.cumsum([0, *(len(sample.points) for sample in samples)]), pa.int32())
    return {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(points[:, column].copy(), mask=is_null[:, column].copy())
        ).take(of_node_row)
        for column, name in enumerate(LIST_COLUMNS)
    }


def _pod_fact_columns(
    windows: Sequence[Window], starts: IntArray, rows: int
) -> dict[str, pa.Array]:
    """Facts are decoded once for windows that share them."""
    first: dict[PodColumns, int] = {}
    count = 0
    for window in windows:
        if window.rows.pods not in first:
            first[window.rows.pods] = count
            count += len(window.rows.pods)
    pods = [window.rows.listing.pods + start for window, start in zip(windows, starts, strict=True)]
    facts = [first[window.rows.pods] + np.arange(len(window.rows.pods)) for window in windows]
    of_row = _index(rows, np.concatenate(pods), np.concatenate(facts))
    decoded = [columns.decode() for columns in first]
    return {
        POD_NAMES[name]: _array(
            POD_NAMES[name], chain.from_iterable(columns.column(name) for columns in decoded)
        ).take(of_row)
        for name in POD_COLUMNS
    }


def _container_columns(
    windows: Sequence[Window], starts: IntArray, rows: int
) -> dict[str, pa.Array]:
    """A list for each pod that has containers in its sample."""
    places, ids = [], []
    for window, start in zip(windows, starts.tolist(), strict=True):
        listing = window.rows.listing
        for row, of_pod in zip(listing.pods.tolist(), listing.container_ids, strict=False):
            if of_pod:
                places.append(row + start)
                ids.append(of_pod)
    usage = np.concatenate([window.rows.sample.container_usage for window in windows])
    offsets = pa.array(np.cumsum([0, *map(len, ids)]), pa.int32())
    values = {
        "container_ids": pa.array([*chain.from_iterable(ids)], pa.string()),
        "container_cpu_cores": pa.array(usage[:, 0].copy(), from_pandas=True),
        "container_memory_bytes": pa.array(usage[:, 1].copy(), from_pandas=True),
    }
    of_row = _index(rows, np.array(places, np.int64), np.arange(len(places)))
    return {
        name: pa.ListArray.from_arrays(offsets, each).take(of_row) for name, each in values.items()
    }


def _int64(amount: int | None) -> int | None:
    """The amount, None if no column has room for it: `node_facts` has the exact number."""
    return (
        amount if amount is not None and -LARGEST_QUANTITY <= amount <= LARGEST_QUANTITY else None
    )


_OF_NODE: Final[dict[str, Callable[[Window], Any]]] = {
    "node_known": lambda window: window.node.known,
    "allocatable_cpu_millicores": lambda window: _int64(window.node.allocatable.cpu_millicores),
    "allocatable_memory_bytes": lambda window: _int64(window.node.allocatable.memory_bytes),
    "node_facts": lambda window: encode_node_facts(window.node),
    "machine_id": lambda window: window.header.machine_id,
    "source": lambda window: window.header.source,
    "boot_id": lambda window: window.header.boot_id,
    "epoch": lambda window: window.header.epoch,
    "sequence": lambda window: window.header.sequence,
    "simulated": lambda window: window.header.simulated,
    "statistics": lambda window: _json.encode([*window.rows.sample.statistic_rows]),
    "bad_values": lambda window: _json.encode(window.bad_values) if window.bad_values else None,
}


def _node_columns(windows: Sequence[Window]) -> dict[str, pa.Array]:
    """A value for each window, for its node's row; the end of a node has no facts."""
    return {
        "sample_offset": _array("sample_offset", (window.sample_offset for window in windows)),
        "sample_appended": _array("sample_appended", (window.appended_ms for window in windows)),
        **{
            name: _array(name, (value(w) if w.type == "window" else None for w in windows))
            for name, value in _OF_NODE.items()
        },
    }
