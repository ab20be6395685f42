"""Tables of traces for tests: from plain Python values, and random ones."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

METADATA: Final = {"dataset": "made", "step_s": "300", "t0_unix": "1700000100", "steps": "40"}
SERIES: Final = {
    "series": pa.string(),
    "start": pa.int32(),
    "cpu_request_m": pa.int32(),
    "cpu_limit_m": pa.int32(),
    "mem_request_mi": pa.int32(),
    "mem_limit_mi": pa.int32(),
    "cpu_m": pa.list_(pa.int32()),
    "mem_mi": pa.list_(pa.int32()),
}
PLACEMENT: Final = {
    "scenario": pa.string(),
    "node": pa.string(),
    "pod": pa.string(),
    "series": pa.string(),
    "start": pa.int32(),
    "end": pa.int32(),
    "allocatable_m": pa.int32(),
}
Row = dict[str, Any]


def series_row(name: str, cpu: Sequence[int | None], **changes: Any) -> Row:
    row = {
        "series": name, "start": 0, "cpu_request_m": 500, "cpu_limit_m": 1000,
        "mem_request_mi": 0, "mem_limit_mi": 0, "cpu_m": list(cpu), "mem_mi": None,
    }  # fmt: skip
    return row | changes


def stay_row(pod: str, series: str, start: int, end: int, **changes: Any) -> Row:
    row = {
        "scenario": "std", "node": "node-0", "pod": pod, "series": series, "start": start,
        "end": end, "allocatable_m": 8000,
    }  # fmt: skip
    return row | changes


def table_of(
    rows: Sequence[Row], types: Mapping[str, pa.DataType], metadata: Mapping[str, str] = METADATA
) -> pa.Table:
    """A table with these rows; a column that the first row lacks is missing."""
    columns = {name: kind for name, kind in types.items() if not rows or name in rows[0]}
    table = pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in columns.items()}
    )
    return table.replace_schema_metadata(dict(metadata))


def random_tables(
    random: np.random.Generator, steps: int, nodes: int, series: int, step_seconds: int = 300
) -> tuple[pa.Table, pa.Table]:
    """Series with and without memory, some of them late or short, and pods that move. Some pods are
    absent for a while and return to their node."""
    metadata = METADATA | {"steps": str(steps), "step_s": str(step_seconds)}
    series_rows, stays = [], []
    for number in range(series):
        start = int(random.integers(0, steps)) if random.random() < 0.5 else 0
        length = steps - start
        if random.random() < 0.5:
            length = int(random.integers(1, length + 1))
        has_memory = random.random() < 0.6
        limit, memory_limit = int(random.integers(1, 900)), int(random.integers(1, 900))
        row = series_row(
            f"series-{number}",
            random.integers(0, 1000, length).tolist(),
            start=start,
            cpu_request_m=int(random.integers(0, limit + 1)),
            cpu_limit_m=limit,
        )
        if has_memory:
            memory = random.integers(0, 1000, length).tolist()
            request = int(random.integers(0, memory_limit + 1))
            row |= {"mem_mi": memory, "mem_request_mi": request, "mem_limit_mi": memory_limit}
        series_rows.append(row)
        returns, home = random.random() < 0.4, random.integers(0, nodes)
        cuts = np.sort(random.integers(0, length + 1, 6 if returns else 4)).tolist()
        for stay, (begin, end) in enumerate(pairwise(cuts)):
            if begin < end and not (returns and stay % 2):
                node = f"node-{home if returns else random.integers(0, nodes)}"
                name = f"pod-{number}" if returns else f"pod-{number}.{stay}"
                stays.append(
                    stay_row(name, f"series-{number}", start + begin, start + end, node=node)
                )
    if not stays:
        first = series_rows[0]["start"]
        stays.append(stay_row("pod", "series-0", first, first + 1))
    return table_of(series_rows, SERIES, metadata), table_of(stays, PLACEMENT, metadata)


def with_gaps(random: np.random.Generator, series: pa.Table) -> pa.Table:
    """The series with runs of missing samples, some of them at an end."""
    for column in ("cpu_m", "mem_mi"):
        rows = series[column].to_pylist()
        for row in rows:
            for _ in range(random.integers(0, 4) if row else 0):
                first = int(random.integers(0, len(row)))
                for step in range(first, min(first + int(random.integers(1, 9)), len(row))):
                    row[step] = None
        place = series.column_names.index(column)
        series = series.set_column(place, column, pa.array(rows, SERIES[column]))
    return series
