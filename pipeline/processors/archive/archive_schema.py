"""The columns of an archive of `springtide.windows`: a row for each entity of a window.

Rows of one window follow each other in the order of its sample. Columns of the window are on all
its rows, those of the record and the node on the row of the node alone, those of pods on the rows
of pods. Everything else is null, which means unknown, never 0.
"""

from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.topics.samples import KINDS, LIST_COLUMNS, NUMBER_COLUMNS
from pipeline.topics.windows import POD_COLUMNS


class Column(NamedTuple):
    """A column: its type, the rows that have it, and its meaning."""

    type: pa.DataType
    rows: str
    meaning: str


_TEXT, _FLAG, _WHOLE, _NUMBER = pa.string(), pa.bool_(), pa.int64(), pa.float64()
_TIME: Final = pa.timestamp("ms", "UTC")
_ALL, _NODE, _PODS = "all", "node", "pods"

POD_NAMES: Final = {
    name: name if name.startswith(("pod_", "owner_", "koordinator_")) else f"pod_{name}"
    for name in POD_COLUMNS
}
"""The name here of each column of `DecodedPods`."""

_POD_MEANINGS: Final = {
    "pod_class": "priority class: prod, mid, batch, free, none or unknown",
    "namespace": "namespace of the pod",
    "name": "name of the pod",
    "koordinator_qos": "QoS of Koordinator: LSE, LSR, LS, BE or empty",
    "phase": "phase of the pod; Gone once it was deleted",
    "owner_kind": "kind of its workload, such as Deployment",
    "owner_name": "name of its workload",
    "request_cpu_millicores": "CPU request in millicores",
    "request_memory_bytes": "memory request in bytes",
    "limit_cpu_millicores": "CPU limit in millicores",
    "limit_memory_bytes": "memory limit in bytes",
    "created_seconds": "creation of the pod, Unix time in seconds",
    "deleting": "whether the pod is being deleted",
    "container_names": "names of the containers of `container_ids`, null: unknown; without these "
    "that of the pod's only container",
}


def _pod_type(name: str) -> pa.DataType:
    if name == "container_names":
        return pa.list_(_TEXT)
    if name == "deleting":
        return _FLAG
    return _NUMBER if name.endswith(("_seconds", "_millicores", "_bytes")) else _TEXT


COLUMNS: Final[dict[str, Column]] = {
    "type": Column(_TEXT, _ALL, "`window`; or the end of a node: `retraction`, `departure`"),
    "log_partition": Column(pa.int32(), _ALL, "partition of the record in the topic"),
    "log_offset": Column(_WHOLE, _ALL, "offset of the record in its partition"),
    "node": Column(_TEXT, _ALL, "name of the node"),
    "window_start": Column(_TIME, _ALL, "start of the window; null for the end of a node"),
    "window_end": Column(_TIME, _ALL, "end of the window; null for the end of a node"),
    "kind": Column(_TEXT, _ALL, f"kind of the entity: {', '.join(KINDS)}"),
    "id": Column(_TEXT, _ALL, "UID of a pod, name of a host application or tier; empty: the node"),
    "qos": Column(_TEXT, _ALL, "Kubernetes QoS by the cgroup; empty: unknown"),
    **{name: Column(_NUMBER, _ALL, "statistic of the sample") for name in NUMBER_COLUMNS},
    "gauges": Column(
        pa.map_(_TEXT, _NUMBER), _ALL, "statistics that have the name of an extended resource"
    ),
    **{
        name: Column(pa.list_(_NUMBER), _NODE, "raw measurements of the node")
        for name in LIST_COLUMNS
    },
    **{
        POD_NAMES[name]: Column(_pod_type(name), _PODS, _POD_MEANINGS[name]) for name in POD_COLUMNS
    },
    "container_ids": Column(pa.list_(_TEXT), _PODS, "ids of its containers, of a pod with several"),
    "container_cpu_cores": Column(pa.list_(_NUMBER), _PODS, "average CPU of these containers"),
    "container_memory_bytes": Column(pa.list_(_NUMBER), _PODS, "their highest memory"),
    "node_known": Column(_FLAG, _NODE, "whether the node had a record at the join"),
    "allocatable_cpu_millicores": Column(_WHOLE, _NODE, "allocatable CPU of the node"),
    "allocatable_memory_bytes": Column(_WHOLE, _NODE, "allocatable memory of the node"),
    "node_facts": Column(
        _TEXT, _NODE, "all facts about the node as JSON: strategy, thresholds, overcommit policy"
    ),
    "machine_id": Column(_TEXT, _NODE, "machine of the exporter; empty: a provider measured"),
    "source": Column(_TEXT, _NODE, "name of the provider; empty: an exporter measured"),
    "boot_id": Column(_TEXT, _NODE, "boot of the machine"),
    "epoch": Column(_WHOLE, _NODE, "start of the exporter in milliseconds since 1970"),
    "sequence": Column(_WHOLE, _NODE, "number of the window since the start of the exporter"),
    "simulated": Column(_FLAG, _NODE, "whether the node is simulated"),
    "sample_offset": Column(_WHOLE, _NODE, "offset of the sample; -1 without a sample"),
    "sample_appended": Column(_TIME, _NODE, "when the broker appended the sample"),
    "statistics": Column(_TEXT, _NODE, "names of the sample's statistics in order, as JSON"),
    "bad_values": Column(_TEXT, _NODE, "values that the join made null, by column, as JSON"),
}
"""The columns by name, in order."""

DICTIONARY_COLUMNS: Final = [
    name
    for name, column in COLUMNS.items()
    if name not in NUMBER_COLUMNS and not pa.types.is_nested(column.type)
]
"""Columns whose values repeat, to be encoded by dictionaries. Measured numbers hardly do."""

CONTAINER_COLUMNS: Final = [name for name in COLUMNS if "container" in name]
"""Columns that files of releases before these columns do not have."""

ARCHIVE_SCHEMA: Final = pa.schema([(name, column.type) for name, column in COLUMNS.items()])


def columns_table() -> str:
    """The columns as the table of docs/reference/archive.md."""
    lines = ["| column | type | rows | meaning |", "|---|---|---|---|"]
    for name, (kind, rows, meaning) in COLUMNS.items():
        lines.append(f"| `{name}` | {_type_text(kind)} | {rows} | {meaning} |")
    return "\n".join(lines) + "\n"


def _type_text(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map of {kind.key_type} to {kind.item_type}"
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)
