"""Convert a trace, a table of a node's past usage, into the windows that a worker would have made.

Rows have the columns of samples and windows, and go through the join. So models learned offline are
those that a worker would have learned, bit for bit.
"""

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InvalidRecordError, UndecodableRecordError
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.times import format_time, parse_time
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import encode_arrays, read_rows
from pipeline.topics.samples import LIST_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, SampleHeader
from pipeline.topics.windows import POD_COLUMNS, Window

END: Final = "window_end"
_CLASS: Final = "pod_class"
_AMOUNTS: Final = (
    "request_cpu_millicores", "request_memory_bytes", "limit_cpu_millicores",
    "limit_memory_bytes", "created_seconds",
)  # fmt: skip
_FACTS: Final = {
    **dict.fromkeys(POD_COLUMNS, pa.string()),
    **dict.fromkeys(_AMOUNTS, pa.float64()),
    "deleting": pa.bool_(),
}
_SAMPLE: Final = {
    **dict.fromkeys(TEXT_COLUMNS, pa.string()),
    **dict.fromkeys(NUMBER_COLUMNS, pa.float64()),
    **dict.fromkeys(LIST_COLUMNS, pa.list_(pa.float64())),
}
TYPES: Final = {END: pa.string(), **_SAMPLE, **_FACTS}
"""The columns that a trace may have; times may be timestamps in UTC, too."""

_DEFAULTS: Final = {"kind": "node", "id": "", "coverage": 1.0}
"""The values of missing columns."""

_ROWS: Final = (
    "a window has one row of kind node, and one row at most of each pod and cgroup: "
    "docs/explanation/models.md"
)


def read_trace(table: pa.Table, node: str, strategy: Strategy) -> Iterator[Window]:
    """The windows of `node` in a trace, in order of time. Their length is the most frequent
    distance between them, and they have no machine. Facts about pods come from the rows alone.

    Raises InvalidRecordError for an invalid table.
    """
    if unknown := sorted(set(table.column_names) - TYPES.keys()):
        raise InvalidRecordError(
            f"unknown column {unknown[0]!r:.100}",
            hint=f"columns are {END} and those of samples and windows: docs/explanation/models.md",
        )
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidRecordError(
            "two columns of one name", hint="name every column once; others can be left out"
        )
    if END not in table.column_names:
        raise InvalidRecordError(
            f"a trace has a column {END}, which is not there",
            hint="add it, in RFC 3339 (2026-01-31T12:00:30Z), or rename the column with the times",
        )
    ends = _ends_ms(table.column(END))
    order = np.argsort(ends, kind="stable")
    places, starts = np.unique(ends[order], return_index=True)
    if len(places) < 2:
        raise InvalidRecordError(
            f"a trace has two windows at least, not {len(places)}",
            hint=f"each window has a {END} of its own",
        )
    distances, times = np.unique(np.diff(places), return_counts=True)
    length_ms = int(distances[times.argmax()])
    rows = _typed(table).take(pa.array(order)).combine_chunks()
    stops = [*starts[1:].tolist(), len(order)]
    for number, (end_ms, start, stop) in enumerate(
        zip(places.tolist(), starts.tolist(), stops, strict=True)
    ):
        header = SampleHeader(
            node=node, machine_id="", boot_id="", epoch=0, sequence=number,
            window_start_ms=end_ms - length_ms, window_end_ms=end_ms,
        )  # fmt: skip
        try:
            yield _window(header, rows.slice(start, stop - start), strategy)
        except (InvalidRecordError, UndecodableRecordError) as error:
            raise InvalidRecordError(
                f"window of {format_time(end_ms / 1000)}: {error.message}", hint=error.hint or _ROWS
            ) from error


def _window(header: SampleHeader, rows: pa.Table, strategy: Strategy) -> Window:
    """Encode and decode a sample, so that it is checked as any other."""
    columns = {name: rows.column(name) for name in rows.column_names if name in _SAMPLE}
    kinds = columns["kind"].to_pylist()
    node = kinds.index("node") if "node" in kinds else 0
    points = zip_longest(
        *(columns[name][node].as_py() or () if name in columns else () for name in LIST_COLUMNS)
    )
    sample = read_rows(
        encode_arrays(
            header,
            kinds=kinds,
            ids=columns["id"].to_pylist(),
            qos=columns["qos"].fill_null("").to_pylist() if "qos" in columns else (),
            statistics={
                name: columns[name].combine_chunks() for name in NUMBER_COLUMNS if name in columns
            },
            points=pa.array(chain.from_iterable(points), pa.float64()),
        )
    )
    objects = NodeObjects(None, _pods(rows))
    end_ms = header.window_end_ms
    return join(sample, objects, strategy, sample_offset=header.sequence, appended_ms=end_ms)


def _pods(rows: pa.Table) -> dict[str, PodRow]:
    """The facts about pods in the rows."""
    facts = [name for name in rows.column_names if name in _FACTS]
    if not facts:
        return {}
    columns: dict[str, list[Any]] = rows.select(["kind", "id", *facts]).to_pydict()
    pods = {}
    for row, (kind, uid) in enumerate(zip(columns["kind"], columns["id"], strict=True)):
        if kind == "pod":
            values = {name: columns[name][row] for name in facts}
            name = values.get(_CLASS) or "unknown"
            if name not in CLASS_CODES:
                raise InvalidRecordError(
                    f"{_CLASS} of {uid!r:.100} is {name!r:.40}",
                    hint=f"use {', '.join(CLASS_CODES)}",
                )
            pods[uid] = PodRow(**values | {_CLASS: CLASS_CODES[name], "uid": uid})
    return pods


def _typed(table: pa.Table) -> pa.Table:
    """All columns but the times with the types of their topics, and defaults for missing ones."""
    columns = {}
    for name in table.column_names:
        if name != END:
            try:
                columns[name] = table.column(name).cast(TYPES[name], safe=False)
            except (pa.ArrowException, ValueError) as error:
                raise InvalidRecordError(f"column {name}: {error!s:.200}") from error
    for name, default in _DEFAULTS.items():
        if name not in columns:
            columns[name] = pa.array([default] * len(table), TYPES[name])
    for name in ("kind", "id"):  # other tools leave both empty in the row of the node
        columns[name] = columns[name].fill_null(_DEFAULTS[name])
    return pa.table(columns)


def _ends_ms(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise InvalidRecordError(f"a row has no {END}", hint="fill it in, or leave the row out")
    if pa.types.is_timestamp(column.type):
        # To the nearest millisecond, as a parsed time.
        microseconds: npt.NDArray[np.int64] = (
            column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
        )
        return (microseconds + 500) // 1000
    try:
        # Each time occurs once per row.
        known = {text: round(parse_time(text) * 1000) for text in column.unique().to_pylist()}
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"{END}: {error}", hint="write it as 2026-01-31T12:00:30Z, or as a timestamp in UTC"
        ) from error
    return np.array([known[text] for text in column.to_pylist()], np.int64)
