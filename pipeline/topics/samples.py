"""`springtide.samples`: what one node used during one window, a row per entity, as Arrow IPC.

Written by the node exporter, once per window, keyed by the node's name. The schema's metadata is
the header (who measured, which window); each row is the node itself, a pod, the best-effort tier
or a host application. Encoding goes through nanoarrow, because the exporter must not carry numpy
and pyarrow onto every node; reading is in `pipeline.topics.arrow`.

A column that a kernel cannot give may be left out or be null: readers take both as unknown.
"""

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

import nanoarrow as na
from nanoarrow.c_array import CArray
from nanoarrow.ipc import StreamWriter

VERSION: Final = 1
SCHEMA_NAME: Final = "springtide.samples"

Kind = Literal["node", "pod", "tier", "host_app"]
KINDS: Final = ("node", "pod", "tier", "host_app")

BESTEFFORT_TIER: Final = "besteffort"
SYSTEM_TIER: Final = "system"
"""Ids of the two tiers: all best-effort pods as one, and what is left of the node (node - pods -
host applications) as it was each second."""

STATISTICS: Final = ("avg", "p90", "p95", "max", "last")
"""How the samples inside a window are summarised; percentiles by rank floor(n*p)-1."""

USAGES: Final = (
    "cpu_cores",
    "memory_bytes",
    "memory_with_page_cache_bytes",
    "memory_with_hot_page_cache_bytes",
)
"""What is summarised. `memory_bytes` is without page cache, the field's default."""

TEXT_COLUMNS: Final = ("kind", "id", "qos")
"""`id`: pod uid as the cgroup names it, host application's or tier's name, empty for the node.
`qos`: Kubernetes QoS of a pod by its cgroup (Guaranteed, Burstable, BestEffort), else null."""

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
LIST_COLUMNS: Final = (
    "points_offset_seconds",  # node row only: the raw collections, seconds after window start
    "points_cpu_cores",
    "points_memory_bytes",
)
COLUMNS: Final = (*TEXT_COLUMNS, *NUMBER_COLUMNS, *LIST_COLUMNS)

Row = Mapping[str, Any]

_TEXT = na.string()
_NUMBER = na.float64()
_LIST = na.list_(_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHeader:
    """Who measured and which window; times are milliseconds since the Unix epoch, UTC.

    `epoch` is the start of the exporter process in milliseconds, `sequence` counts its windows
    from 0: two exporters on one node and lost windows become visible. Samples that were not
    measured on the node itself, as a provider's, are of no machine: `machine_id` is empty.
    """

    node: str
    machine_id: str
    boot_id: str
    epoch: int
    sequence: int
    window_start_ms: int
    window_end_ms: int
    simulated: bool = False

    def metadata(self) -> dict[str, str]:
        """The header as Arrow schema metadata."""
        return {
            "schema": SCHEMA_NAME,
            "version": str(VERSION),
            "node": self.node,
            "machine_id": self.machine_id,
            "boot_id": self.boot_id,
            "epoch": str(self.epoch),
            "sequence": str(self.sequence),
            "window_start_ms": str(self.window_start_ms),
            "window_end_ms": str(self.window_end_ms),
            "simulated": "true" if self.simulated else "false",
        }


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """One window of one node: the header and a mapping from column name to value per row.

    A row holds `kind` and `id` and whatever else of `COLUMNS` is known of it; the node's row
    comes first.
    """

    header: SampleHeader
    rows: Sequence[Row] = field(default_factory=tuple)


def encode_samples(batch: SampleBatch) -> bytes:
    """The batch as an Arrow IPC stream; columns that no row has are left out.

    Raises `ValueError` for a column name that the topic does not have.
    """
    present = {name for row in batch.rows for name in row}
    if unknown := present.difference(COLUMNS):
        raise ValueError(f"springtide.samples has no column {sorted(unknown)}")
    names = tuple(n for n in COLUMNS if n in present or n in ("kind", "id"))
    schema = na.Schema(_schema(names), metadata=batch.header.metadata())
    array = na.c_array_from_buffers(
        schema,
        length=len(batch.rows),
        buffers=[None],
        children=[_column(name, [row.get(name) for row in batch.rows]) for name in names],
    )
    out = io.BytesIO()
    with StreamWriter.from_writable(out) as writer:
        writer.write_array(array)
    return out.getvalue()


@lru_cache(maxsize=32)
def _schema(names: tuple[str, ...]) -> na.Schema:
    return na.struct({name: _type(name) for name in names})


def _type(name: str) -> na.Schema:
    if name in TEXT_COLUMNS:
        return _TEXT
    return _LIST if name in LIST_COLUMNS else _NUMBER


def _column(name: str, values: list[Any]) -> CArray:
    if name in LIST_COLUMNS:
        return _list_column(values)
    return na.c_array(values, _type(name))


def _list_column(values: list[Iterable[float | None] | None]) -> CArray:
    items: list[float | None] = []
    offsets = [0]
    for value in values:
        items.extend(value or ())
        offsets.append(len(items))
    valid = sum(1 << row for row, value in enumerate(values) if value is not None)
    return na.c_array_from_buffers(
        _LIST,
        length=len(values),
        buffers=[
            valid.to_bytes(-(-len(values) // 8), "little"),
            struct.pack(f"<{len(offsets)}i", *offsets),
        ],
        children=[na.c_array(items, _NUMBER)],
    )
