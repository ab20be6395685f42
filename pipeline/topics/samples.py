"""`springtide.samples`: the usage of one node and its pods during one window, as Arrow IPC.

The node exporter writes one record a window, keyed by node name: the `SampleHeader` as a line of
JSON, then an Arrow stream of one record batch with a row for each entity. The statistics of a row
are one fixed-size list, the schema's metadata holds their names. Containers are in a list of the
row of their pod, because older readers refuse rows of an unknown kind. The exporter encodes with
nanoarrow, because numpy and pyarrow are too large for every node. Workers decode with
`pipeline.topics.sample_rows`.

A statistic whose name is that of an extended resource is a gauge of the node
(`pipeline.topics.resource_amounts.is_gauge`); a sample has at most `MAX_GAUGES` of them.

A null statistic is unknown. One that no row has may be left out. NaN, negative and infinite values
are invalid: the join replaces them with null and counts them.
"""

import io
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, zip_longest
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import nanoarrow as na
from nanoarrow.c_array import CArray
from nanoarrow.ipc import StreamWriter

from pipeline.topics.codec import Record, encode_json
from pipeline.topics.resource_amounts import is_gauge

Kind = Literal["node", "pod", "tier", "host_app"]
KINDS: Final = ("node", "pod", "tier", "host_app")

BESTEFFORT_TIER: Final = "besteffort"
SYSTEM_TIER: Final = "system"
"""Ids of the two tiers: all best-effort pods together, and the remainder of the node (node - pods -
host applications), computed every second."""

STATISTICS: Final = ("avg", "p90", "p95", "max", "last")
"""Summaries of the measurements inside a window; percentiles by rank floor(n*p)-1."""

USAGES: Final = (
    "cpu_cores", "memory_bytes",
    "memory_with_page_cache_bytes", "memory_with_hot_page_cache_bytes",
)  # fmt: skip
"""Summarised quantities. `memory_bytes` is without page cache, the default of Koordinator."""

TEXT_COLUMNS: Final = ("kind", "id", "qos")
"""`id`: pod UID as in the cgroup's name, name of the host application or tier, empty for the node.
`qos`: Kubernetes QoS of a pod by its cgroup (Guaranteed, Burstable, BestEffort), the configured
QoS of a host application, else empty."""

NUMBER_COLUMNS: Final = (
    "coverage",  # share of the window's time in which CPU usage was observed, 0..1
    *(f"{usage}_{statistic}" for usage in USAGES for statistic in STATISTICS),
    "cpu_throttled_ratio",  # throttled periods / periods, 0..1
    "cpu_throttled_seconds",
    "pressure_cpu_some",  # share of the window in which some (all) tasks stalled, 0..1
    "pressure_memory_some",
    "pressure_memory_full",
    "pressure_io_some",
    "pressure_io_full",
    "network_receive_bytes_per_second",
    "network_transmit_bytes_per_second",
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
    "capacity_cpu_cores",  # node row only: online CPUs and MemTotal
    "capacity_memory_bytes",
)
LIST_COLUMNS: Final = ("points_offset_seconds", "points_cpu_cores", "points_memory_bytes")
"""Node row only, three lists of equal length: the raw measurements, in seconds after the start of
the window. On the wire they are one list of triples, `points`."""

CONTAINERS: Final = "containers"
"""Rows of pods only: a `SampleContainer` for each container of a pod that has several. Samples
without any have no such column."""
MAX_CONTAINERS_PER_POD: Final = 32
MAX_CONTAINERS: Final = 2048
"""Containers of a sample: a kubelet runs some hundreds of pods at most."""

COLUMNS: Final = (*TEXT_COLUMNS, *NUMBER_COLUMNS, *LIST_COLUMNS, CONTAINERS)

Row = Mapping[str, Any]

_Id = Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{0,128}\Z")]
_WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_TEXT: Final = na.string()
_NUMBER: Final = na.float64()
_CONTAINER: Final = na.struct({"id": _TEXT, "cpu_cores": _NUMBER, "memory_bytes": _NUMBER})


class SampleContainer(NamedTuple):
    """The usage of a container of a pod during a window; None is unknown.

    `id` is that of its runtime, as in the name of its cgroup. `cpu_cores` is the average while it
    ran, as the Vertical Pod Autoscaler takes it from the metrics API, `memory_bytes` the highest
    reading without page cache.
    """

    id: str
    cpu_cores: float | None
    memory_bytes: float | None


Origin = tuple[str, str]
"""Machine and provider of a sample, of which one is empty."""


class SampleHeader(Record, frozen=True, kw_only=True):
    """Origin and window of a sample. Times are milliseconds since the Unix epoch, UTC.

    `epoch` is the start of the exporter process in milliseconds, `sequence` counts its windows
    from 0: they reveal lost windows and a second exporter on the node. `machine_id` is empty in
    samples that were not measured on the node itself; `source` is then the name of the provider.
    """

    node: str
    machine_id: _Id
    boot_id: _Id
    epoch: _WholeNumber
    sequence: _WholeNumber
    window_start_ms: _WholeNumber
    window_end_ms: _WholeNumber
    simulated: bool = False
    source: _Id = ""

    @property
    def origin(self) -> Origin:
        """The machine, or the provider."""
        return self.machine_id, self.source


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """One window of one node: the header and a mapping from column name to value for each entity.

    A row holds `kind`, `id` and any other of `COLUMNS`. The node's row comes first, and may have
    gauges. Rows of pods may have `CONTAINERS`.
    """

    header: SampleHeader
    rows: Sequence[Row] = field(default_factory=tuple)


def encode_samples(batch: SampleBatch) -> bytes:
    """Encode a sample; leaves out statistics that no row has.

    Raises `ValueError` for a column name that the topic does not have.
    """
    rows = batch.rows
    present = {name for row in rows for name in row}
    others = present.difference(COLUMNS)
    if unknown := [name for name in others if not is_gauge(name)]:
        raise ValueError(f"springtide.samples has no column {sorted(unknown)}")
    names = (*(name for name in NUMBER_COLUMNS if name in present), *sorted(others))
    numbers = _numbers([row.get(name) for row in rows for name in names])
    children = [na.c_array([row.get(name) or "" for row in rows], _TEXT) for name in TEXT_COLUMNS]
    children += [_fixed_size_lists(len(names), len(rows), numbers), _points(rows)]
    if has_containers := CONTAINERS in present:
        children.append(_containers(rows))
    out = io.BytesIO(encode_json(batch.header) + b"\n")
    out.seek(0, io.SEEK_END)
    with StreamWriter.from_writable(out) as writer:
        writer.write_array(
            na.c_array_from_buffers(
                _schema(names, has_containers), len(rows), buffers=[None], children=children
            )
        )
    return out.getvalue()


def sample_metadata(statistics: Sequence[str]) -> dict[str, str]:
    """The metadata of the Arrow schema of samples with these statistics."""
    return {"statistics": msgspec.json.encode(statistics).decode()}


@lru_cache(maxsize=32)
def _schema(statistics: tuple[str, ...], has_containers: bool) -> na.Schema:
    fields = {
        **dict.fromkeys(TEXT_COLUMNS, _TEXT),
        "statistics": _fixed_size_list(len(statistics)),
        "points": na.list_(_fixed_size_list(len(LIST_COLUMNS))),
        **({CONTAINERS: na.list_(_CONTAINER)} if has_containers else {}),
    }
    return na.Schema(na.struct(fields), metadata=sample_metadata(statistics))


@lru_cache(maxsize=32)
def _fixed_size_list(size: int) -> na.Schema:
    return na.fixed_size_list(_NUMBER, size)


def _fixed_size_lists(size: int, length: int, numbers: CArray) -> CArray:
    schema = _fixed_size_list(size)
    return na.c_array_from_buffers(schema, length, buffers=[None], children=[numbers])


def _points(rows: Sequence[Row]) -> CArray:
    """The points of every row as a list of triples."""
    numbers: list[Any] = []
    offsets = [0]
    for row in rows:
        lists = [row.get(name) or () for name in LIST_COLUMNS]
        numbers += chain.from_iterable(zip_longest(*lists))
        offsets.append(len(numbers) // len(LIST_COLUMNS))
    points = _fixed_size_lists(len(LIST_COLUMNS), offsets[-1], _numbers(numbers))
    return _lists(_fixed_size_list(len(LIST_COLUMNS)), offsets, points)


def _containers(rows: Sequence[Row]) -> CArray:
    """The containers of every row as a list of structs."""
    lists: list[Sequence[SampleContainer]] = [row.get(CONTAINERS) or () for row in rows]
    containers = [*chain.from_iterable(lists)]
    children = [
        na.c_array([each.id for each in containers], _TEXT),
        _numbers([each.cpu_cores for each in containers]),
        _numbers([each.memory_bytes for each in containers]),
    ]
    structs = na.c_array_from_buffers(
        _CONTAINER, len(containers), buffers=[None], children=children
    )
    return _lists(_CONTAINER, [0, *accumulate(map(len, lists))], structs)


def _lists(items: na.Schema, offsets: Sequence[int], values: CArray) -> CArray:
    return na.c_array_from_buffers(
        na.list_(items),
        len(offsets) - 1,
        buffers=[None, struct.pack(f"<{len(offsets)}i", *offsets)],
        children=[values],
    )


def _numbers(values: list[Any]) -> CArray:
    """An array of floats in which None is null; writes to `values`."""
    nulls = [index for index, value in enumerate(values) if value is None]
    # nanoarrow's own bitmap would end in bits of uninitialised memory.
    valid = bytearray(((1 << len(values)) - 1).to_bytes(-(-len(values) // 8), "little"))
    for index in nulls:
        valid[index >> 3] ^= 1 << (index & 7)
        values[index] = 0.0
    buffers = [bytes(valid) if nulls else None, array("d", values)]
    return na.c_array_from_buffers(_NUMBER, len(values), buffers)
