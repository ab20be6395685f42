"""The join: what is known of a node and its pods, put beside one sample.

Pure: a sample and the inventory's view of its node in, one self-contained `Window` out. This is
where bad values become null and are counted, and where a pod of which nothing is known gets the
class `unknown`. The outcome is written to the log, so nothing after it depends on luck.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import FutureWindowError
from pipeline.processors.classes import CLASS_CODES
from pipeline.processors.window import PLAUSIBLE
from pipeline.times import parse_time
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.pods import PodFacts, PodRecord
from pipeline.topics.resources import Resources
from pipeline.topics.samples import LIST_COLUMNS, NUMBER_COLUMNS, SampleHeader
from pipeline.topics.windows import CLASSES, FIELDS, POD_FIELDS, NodeFacts, Window

Bools = npt.NDArray[np.bool_]

_MAX_CPU_CORES, _MAX_BYTES = PLAUSIBLE.tolist()
_MAX_SECONDS: Final = 86_400.0 * 1e4


def _largest(column: str) -> float:
    if column.startswith(("coverage", "pressure_")) or column.endswith("_ratio"):
        return 1.0
    if "cpu_cores" in column:
        return float(_MAX_CPU_CORES)
    if column.endswith("_cpu_millicores"):
        return float(_MAX_CPU_CORES) * 1000
    return _MAX_SECONDS if column.endswith("_seconds") else float(_MAX_BYTES)


_AMOUNTS: Final = (
    "request_cpu_millicores", "request_memory_bytes",
    "limit_cpu_millicores", "limit_memory_bytes",
)  # fmt: skip
_LARGEST: Final[Mapping[str, float]] = {
    name: _largest(name) for name in (*NUMBER_COLUMNS, *LIST_COLUMNS, *_AMOUNTS)
}


class PodRow(NamedTuple):
    """What a window says of a pod, by column; `created_at` in Unix seconds gives its age, and
    `uid` tells it from another pod with the same cgroup."""

    pod_class: int | None = None
    namespace: str | None = None
    name: str | None = None
    koordinator_qos: str | None = None
    phase: str | None = None
    owner_kind: str | None = None
    owner_name: str | None = None
    request_cpu_millicores: float | None = None
    request_memory_bytes: float | None = None
    limit_cpu_millicores: float | None = None
    limit_memory_bytes: float | None = None
    created_at: float | None = None
    deleting: bool | None = None
    uid: str | None = None


_NO_POD: Final = PodRow()
_UNKNOWN_POD: Final = PodRow(pod_class=CLASS_CODES["unknown"])


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of one node at this moment: `record` is None where no source speaks of it,
    `pods` are its pods by the uid in their cgroup's name."""

    record: NodeRecord | None
    pods: Mapping[str, PodRow]


def check_not_future(header: SampleHeader, appended_ms: int, tolerance_seconds: float) -> None:
    """Raise `FutureWindowError` if the window ends too far ahead of the broker's append time."""
    ahead = (header.window_end_ms - appended_ms) / 1000
    if ahead > tolerance_seconds:
        raise FutureWindowError(
            f"{header.node}: window ends {ahead:.3f} s after the broker received it, "
            f"more than the {tolerance_seconds:g} s allowed"
        )


def join(
    header: SampleHeader,
    rows: pa.RecordBatch,
    view: NodeView,
    default_strategy: Strategy,
    *,
    sample_offset: int,
    appended_ms: int,
) -> Window:
    """The window for one sample; `rows` are those of `read_samples`, in `FIELDS` order after."""
    pods = pod_columns(
        rows.column("kind").to_pylist(), rows.column("id").to_pylist(), view.pods,
        header.window_end_ms / 1000,
    )  # fmt: skip
    joined = pa.RecordBatch.from_arrays([*rows.columns, *pods], schema=pa.schema(FIELDS))
    clean, bad_values = without_bad_values(joined)
    return Window(
        type="window",
        header=header,
        rows=clean,
        node=node_facts(view.record, clean, default_strategy),
        sample_offset=sample_offset,
        appended_ms=appended_ms,
        bad_values=bad_values,
    )


def without_bad_values(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
    """`rows` with every number that is NaN, negative, infinite or beyond belief made null.

    Gives the number of such values per column, too; columns without any are not copied.
    """
    bad_values: dict[str, int] = {}
    columns = list(rows.columns)
    for at, name in enumerate(rows.schema.names):
        column = columns[at]
        if name not in _LARGEST or column.null_count == len(column):
            continue
        # Of a list, what counts is what its rows hold: not values of null rows, nor of a slice.
        flat = column.flatten() if name in LIST_COLUMNS else column
        bad = _bad(flat, _LARGEST[name])
        if not bad.any():
            continue
        bad_values[name] = int(bad.sum())
        mended = pa.array(flat.to_numpy(zero_copy_only=False), mask=bad | _null(flat))
        columns[at] = _as_lists(column, mended) if name in LIST_COLUMNS else mended
    if not bad_values:
        return rows, bad_values
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), bad_values


def _as_lists(like: pa.ListArray, values: pa.DoubleArray) -> pa.ListArray:
    """`values` in lists of the lengths that those of `like` have, null where they are."""
    lengths = like.value_lengths().fill_null(0).to_numpy()
    offsets = np.zeros(len(like) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=like.is_null())


def _bad(column: pa.DoubleArray, largest: float) -> Bools:
    values = np.frombuffer(column.buffers()[1], np.float64, len(column), column.offset * 8)
    # Written so that NaN, which compares false with everything, is bad.
    bad = ~((values >= 0.0) & (values <= largest))
    # What lies in the place of a null may be anything; it rarely is, and asking costs.
    return bad & ~_null(column) if column.null_count and bad.any() else bad


def _null(column: pa.Array) -> Bools:
    nulls: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def pod_row(pod: PodFacts | PodRecord) -> PodRow:
    """What a window says of this pod."""
    return PodRow(
        pod_class=CLASS_CODES.get(pod.pod_class, CLASS_CODES["unknown"]),
        namespace=sys.intern(pod.namespace),
        name=pod.name,
        koordinator_qos=sys.intern(pod.qos),
        phase=sys.intern(pod.phase),
        owner_kind=sys.intern(pod.owner.kind) if pod.owner else None,
        owner_name=pod.owner.name if pod.owner else None,
        # A pod that is known and asks for nothing asks for 0, which is not unknown.
        request_cpu_millicores=_number(pod.requests.cpu_millicores or 0),
        request_memory_bytes=_number(pod.requests.memory_bytes or 0),
        limit_cpu_millicores=_number(pod.limits.cpu_millicores),
        limit_memory_bytes=_number(pod.limits.memory_bytes),
        created_at=_seconds(pod.created_at),
        deleting=pod.deleted_at is not None,
        uid=pod.uid,
    )


def pod_columns(
    kinds: Sequence[str], ids: Sequence[str], pods: Mapping[str, PodRow], end: float
) -> list[pa.Array]:
    """The columns `POD_FIELDS` for rows of these kinds and ids; `end` in Unix seconds.

    Rows that are no pods are null. A pod that is not in `pods` has the class unknown, and nothing
    else is said of it.
    """
    rows = [
        pods.get(uid, _UNKNOWN_POD) if kind == "pod" else _NO_POD
        for kind, uid in zip(kinds, ids, strict=True)
    ]
    columns = dict(zip(PodRow._fields, zip(*rows, strict=True), strict=True))
    codes = pa.array(columns["pod_class"], pa.int8())
    created = np.array(columns["created_at"], dtype=np.float64)
    ages = np.maximum(end - created, 0.0)
    columns["age_seconds"] = pa.array(ages, pa.float64(), mask=np.isnan(ages))
    others = [
        column
        if isinstance(column := columns[field.name], pa.Array)
        else pa.array(column, field.type)
        for field in POD_FIELDS[1:]
    ]
    return [pa.DictionaryArray.from_arrays(codes, pa.array(CLASSES)), *others]


def _seconds(time: str | None) -> float | None:
    try:
        return None if time is None else parse_time(time)
    except ValueError:
        return None


def _number(amount: int | None) -> float | None:
    # Whole numbers of a record may have any size; those that no float holds are as bad as these.
    return None if amount is None else float(min(max(amount, -1), 2**63))


def node_facts(
    record: NodeRecord | None, rows: pa.RecordBatch, default_strategy: Strategy
) -> NodeFacts:
    """What the window says of its node; without a record, the capacity of its own row serves."""
    if record is not None:
        return NodeFacts(
            known=True,
            allocatable=record.allocatable,
            capacity=record.capacity,
            strategy=record.strategy or default_strategy,
            strategy_hash=record.strategy_hash,
        )
    row = rows.column("kind").to_pylist().index("node")
    cpu_cores = rows.column("capacity_cpu_cores")[row].as_py()
    memory_bytes = rows.column("capacity_memory_bytes")[row].as_py()
    capacity = Resources(
        cpu_millicores=None if cpu_cores is None else round(cpu_cores * 1000),
        memory_bytes=None if memory_bytes is None else round(memory_bytes),
    )
    return NodeFacts(allocatable=capacity, capacity=capacity, strategy=default_strategy)
