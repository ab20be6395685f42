"""All nodes as one compact JSON document, from which the console draws its heat map."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from pipeline import API_VERSION
from pipeline.processors.arrays import BoolArray, FloatArray
from pipeline.processors.console.encoded_document import whole
from pipeline.topics.alerts import OpenAlert

MEBIBYTE: Final = 2.0**20


class FleetAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An open alert of a node.

    node: Index of the node in the columns.
    rule: What is hot: node_cpu, node_memory, prod_cpu or prod_memory.
    severity: `warning` or `critical`.
    since: When the alert was opened.
    """

    node: int
    rule: str
    severity: str
    since: str


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes by name; each column has one value a node, null is unknown.

    pools: Names of the node pools.
    name: Name of the node.
    pool: Index of its pool in `pools`.
    as_of_seconds: End of its last window, in seconds since 1970.
    stale: Whether that is too old to be judged.
    cpu_usage_millicores: CPU usage in the last window.
    cpu_peak_millicores: Predicted peak of CPU usage by the deciding predictor.
    cpu_allocatable_millicores: Allocatable CPU.
    cpu_mid_millicores: CPU that the node offers as Mid.
    cpu_batch_millicores: CPU that the node offers as Batch.
    memory_usage_mebibytes: Memory usage in the last window.
    memory_peak_mebibytes: Predicted peak of memory usage by the deciding predictor.
    memory_allocatable_mebibytes: Allocatable memory.
    memory_mid_mebibytes: Memory that the node offers as Mid.
    memory_batch_mebibytes: Memory that the node offers as Batch.
    alerts: Open alerts of hot nodes; a node without one is not hot.
    """

    apiVersion: str = API_VERSION
    kind: Literal["Fleet"] = "Fleet"
    pools: list[str]
    name: list[str]
    pool: list[int]
    as_of_seconds: list[int | None]
    stale: list[bool]
    cpu_usage_millicores: list[int | None]
    cpu_peak_millicores: list[int | None]
    cpu_allocatable_millicores: list[int | None]
    cpu_mid_millicores: list[int | None]
    cpu_batch_millicores: list[int | None]
    memory_usage_mebibytes: list[int | None]
    memory_peak_mebibytes: list[int | None]
    memory_allocatable_mebibytes: list[int | None]
    memory_mid_mebibytes: list[int | None]
    memory_batch_mebibytes: list[int | None]
    alerts: list[FleetAlert]


class FleetColumns(NamedTuple):
    """Nodes of the state table in any order: names, pools and open alerts (n); ends of their last
    windows in seconds since 1970 (n,) and whether these are young enough (n,); `cpu` in millicores
    and `memory` in bytes, each (n,) by `usage`, `peak`, `allocatable`, `mid` and `batch`. NaN is
    unknown."""

    names: Sequence[str]
    pools: Sequence[str]
    alerts: Sequence[Sequence[OpenAlert]]
    as_of_seconds: FloatArray
    is_fresh: BoolArray
    cpu: Mapping[str, FloatArray]
    memory: Mapping[str, FloatArray]


def fleet_document(columns: FleetColumns) -> Fleet:
    """The document of these nodes."""
    order = sorted(range(len(columns.names)), key=columns.names.__getitem__)
    pools = sorted(set(columns.pools))
    index_of = {pool: index for index, pool in enumerate(pools)}
    rows = np.array(order, np.intp)
    cpu = {name: whole(of[rows]) for name, of in columns.cpu.items()}
    memory = {name: whole(of[rows] / MEBIBYTE) for name, of in columns.memory.items()}
    return Fleet(
        pools=pools,
        name=[columns.names[row] for row in order],
        pool=[index_of[columns.pools[row]] for row in order],
        as_of_seconds=whole(columns.as_of_seconds[rows]),
        stale=(~columns.is_fresh[rows]).tolist(),
        alerts=[
            FleetAlert(node=index, rule=alert.rule, severity=alert.severity, since=alert.since)
            for index, row in enumerate(order)
            for alert in columns.alerts[row]
        ],
        cpu_usage_millicores=cpu["usage"],
        cpu_peak_millicores=cpu["peak"],
        cpu_allocatable_millicores=cpu["allocatable"],
        cpu_mid_millicores=cpu["mid"],
        cpu_batch_millicores=cpu["batch"],
        memory_usage_mebibytes=memory["usage"],
        memory_peak_mebibytes=memory["peak"],
        memory_allocatable_mebibytes=memory["allocatable"],
        memory_mid_mebibytes=memory["mid"],
        memory_batch_mebibytes=memory["batch"],
    )
