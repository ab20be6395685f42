"""The join: what is known of a node and its pods, put beside one sample.

Pure: a sample and the inventory's view of its node in, one self-contained `Window` out. This is
where bad values become null and are counted, and where a pod of which nothing is known gets the
class `unknown`. The outcome is written to the log, so nothing after it depends on luck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import FutureWindowError
from pipeline.processors.arrays import BoolArray
from pipeline.processors.join.node_facts import facts_of_sample, node_facts, with_unmeasured
from pipeline.processors.join.pod_facts import PodRow
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.model_config import PLAUSIBLE
from pipeline.topics.known_columns import CLASSES, CREATED, POD_FIELDS, Known, known_of, read_known
from pipeline.topics.nodes import KnownNode, Strategy
from pipeline.topics.sample_rows import Listing, SampleRows, rows_of
from pipeline.topics.samples import LIST_COLUMNS, NUMBER_COLUMNS, SampleHeader
from pipeline.topics.windows import NodeFacts, Window, WindowRows

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


# The age is the model's to work out: as a fact it would change with each window.
_FACTS: Final = (*(field for field in POD_FIELDS if field.name != "age_seconds"), CREATED)


_NO_POD: Final = PodRow()
_UNKNOWN_POD: Final = PodRow(pod_class=CLASS_CODES["unknown"])


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of one node at this moment: `record` is None where no source speaks of it,
    `pods` are its pods by the uid in their cgroup's name, among them some that are gone."""

    record: KnownNode | None
    pods: Mapping[str, PodRow]


def check_not_future(header: SampleHeader, appended_ms: int, tolerance_seconds: float) -> None:
    """Raise `FutureWindowError` if the window ends too far ahead of the broker's append time."""
    ahead = (header.window_end_ms - appended_ms) / 1000
    if ahead > tolerance_seconds:
        raise FutureWindowError(
            f"{header.node}: window ends {ahead:.3f} s after the broker received it, "
            f"more than the {tolerance_seconds:g} s allowed"
        )


class Beside(NamedTuple):
    """What was put beside the last sample of a node: `known` and its bad values follow from the
    other two alone."""

    listing: Listing
    pods: tuple[PodRow | None, ...]
    known: Known
    bad_values: Mapping[str, int]


def join(
    sample: SampleRows,
    view: NodeView,
    default_strategy: Strategy,
    *,
    sample_offset: int,
    appended_ms: int,
    beside: Beside | None = None,
    facts: NodeFacts | None = None,
) -> Window:
    """The window for one sample; `beside` is what `put_beside` gives for it and this view, `facts`
    what `node_facts` gives for the view's record."""
    beside = beside or put_beside(sample.listing, view.pods)
    clean, bad_values = clean_sample(sample)
    if facts is None and view.record is not None:
        facts = node_facts(view.record, default_strategy)
    elif facts is None:
        facts = facts_of_sample(clean, default_strategy)
    return Window(
        type="window",
        header=sample.header,
        rows=WindowRows(clean, beside.known),
        node=with_unmeasured(facts, sample.listing, view.pods),
        sample_offset=sample_offset,
        appended_ms=appended_ms,
        bad_values={**bad_values, **beside.bad_values},
    )


def put_beside(listing: Listing, pods: Mapping[str, PodRow], last: Beside | None = None) -> Beside:
    """What is known of the entities in `listing`, by the uid in their cgroup's name: what was put
    beside the node's `last` sample, where nothing has changed since.

    Rows that are no pods are null. A pod that is not in `pods` has the class unknown, and nothing
    else is said of it.
    """
    found = tuple(map(pods.get, listing.uids))
    if last is not None and last.listing is listing and last.pods == found:
        return last
    clean, bad_values = without_bad_values(pod_columns(listing, found))
    # Read as the model will, which finds it done.
    return Beside(listing, found, read_known(known_of(clean).data), bad_values)


def clean_sample(sample: SampleRows) -> tuple[SampleRows, dict[str, int]]:
    """`sample` with every number that is NaN, negative, infinite or beyond belief made null, and
    the number of such values per column; a sample without any is not copied."""
    limits = _limits(tuple(sample.places))
    good = np.count_nonzero(sample.numbers.view(np.uint64) <= limits)
    if good == sample.numbers.size - sample.nulls and all(
        (sample.all_points(name).view(np.uint64) <= limit).all()
        for name, limit in _LIST_LIMITS
        if sample.has(name)
    ):
        return sample, {}
    batch, bad_values = without_bad_values(sample.batch)
    return (rows_of(sample.header, batch) if bad_values else sample), bad_values


@lru_cache(maxsize=256)
def _limits(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    return np.array([[_LARGEST[name]] for name in names]).reshape(-1, 1).view(np.uint64)


# The bits of floats that are not negative stand in their order, those of all others above them: one
# comparison finds what may be bad (it takes -0.0, which is good, for bad).
_LIST_LIMITS: Final = tuple(
    (name, np.array(_LARGEST[name]).view(np.uint64)) for name in LIST_COLUMNS
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


def _bad(column: pa.DoubleArray, largest: float) -> BoolArray:
    values = np.frombuffer(column.buffers()[1], np.float64, len(column), column.offset * 8)
    # Written so that NaN, which compares false with everything, is bad.
    bad = ~((values >= 0.0) & (values <= largest))
    # What lies in the place of a null may be anything; it rarely is, and asking costs.
    return bad & ~_null(column) if column.null_count and bad.any() else bad


def _null(column: pa.Array) -> BoolArray:
    nulls: BoolArray = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def pod_columns(listing: Listing, pods: Sequence[PodRow | None]) -> pa.RecordBatch:
    """The facts of `pods`, which are those of `listing`, in the rows that they have in it; None is
    a pod that is not known."""
    rows = [_NO_POD] * len(listing.ids)
    for row, pod in zip(listing.pods.tolist(), pods, strict=True):
        rows[row] = pod or _UNKNOWN_POD
    columns = dict(zip(PodRow._fields, zip(*rows, strict=True), strict=True))
    codes = pa.array(columns["pod_class"], pa.int8())
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(codes, pa.array(CLASSES)),
            *(pa.array(columns[field.name], field.type) for field in _FACTS[1:]),
        ],
        schema=pa.schema(_FACTS),
    )
