"""Read lists of `metrics.k8s.io/v1beta1`, and turn the readings of a window into usage.

metrics-server reports the average usage of each node and pod over a span, and chooses length and
end of the span. So readings are collected, and assigned to the window in which their span ends; a
repeated reading counts once. The working set is the only figure of memory; it fills the two nearest
columns. An unreadable item is skipped and counted. Readings outside of the window are left out.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, SampleSourceError
from pipeline.processors.imported_usage.fetched_usage import (
    MAX_BYTES,
    MAX_CPU_CORES,
    FetchedUsage,
    PodName,
    SampleColumns,
    TimeWindow,
    plausible,
    points,
    statistics,
)
from pipeline.processors.kubernetes.durations import timestamp_seconds
from pipeline.times import parse_time
from pipeline.topics.nodes import check_node_name
from pipeline.topics.resource_amounts import parse_quantity

_MEMORIES: Final = ("memory_bytes", "memory_with_hot_page_cache_bytes")

_Quantities = dict[str, str | int | float]
_Key = TypeVar("_Key", str, PodName)


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""


class _Container(msgspec.Struct):
    usage: _Quantities


class _Item(msgspec.Struct):
    metadata: _Metadata
    timestamp: str
    window: str
    usage: _Quantities = {}
    containers: list[_Container] = []


class _List(msgspec.Struct):
    kind: str
    items: list[msgspec.Raw] | None = None


class Reading(NamedTuple):
    """The average over the `seconds` before `time_ms`; None if not reported."""

    time_ms: int
    seconds: float
    cpu_cores: float | None
    memory_bytes: float | None


class Listed(NamedTuple):
    """The readings of one list by name, and counts of unused items and values."""

    nodes: dict[str, Reading]
    pods: dict[PodName, Reading]
    left_out: Counter[str]
    bad_values: Counter[str]


_lists: Final = msgspec.json.Decoder(_List)
_items: Final = msgspec.json.Decoder(_Item)


def read_list(body: bytes) -> Listed:
    """Read a NodeMetricsList or PodMetricsList. Raises `SampleSourceError` for anything else."""
    try:
        decoded = _lists.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SampleSourceError(f"the answer cannot be read: {str(error)[:200]}") from error
    if decoded.kind not in ("NodeMetricsList", "PodMetricsList"):
        raise SampleSourceError(f"the answer is a {decoded.kind!r:.60}, not a list of metrics")
    listed = Listed({}, {}, Counter(), Counter())
    for raw in decoded.items or ():
        try:
            item = _items.decode(raw)
            _put(listed, item, is_node=decoded.kind == "NodeMetricsList")
        except (msgspec.DecodeError, UnicodeError, ValueError, ArithmeticError):
            listed.left_out["unreadable"] += 1
    return listed


def _put(listed: Listed, item: _Item, is_node: bool) -> None:
    name, namespace = item.metadata.name, item.metadata.namespace
    if is_node:
        check_node_name(name)
        listed.nodes[name] = _reading(item, [item.usage], "node", listed.bad_values)
    elif name and namespace:
        usages = [container.usage for container in item.containers]
        listed.pods[PodName(namespace, name)] = _reading(item, usages, "pod", listed.bad_values)
    else:
        raise InvalidRecordError("a pod without a name")


def _reading(
    item: _Item, usages: Sequence[_Quantities], entity: str, bad_values: Counter[str]
) -> Reading:
    seconds = timestamp_seconds(item.window)
    if seconds is None:
        raise InvalidRecordError(f"{item.window!r:.40} is not a duration")
    amounts: list[float | None] = []
    for resource, column, most in (
        ("cpu", "cpu_cores", MAX_CPU_CORES),
        ("memory", "memory_bytes", MAX_BYTES),
    ):
        parts = [parse_quantity(usage[resource]) for usage in usages if resource in usage]
        # The usage of a pod is unknown if that of a container is.
        known = 0 < len(parts) == len(usages)
        amount = plausible(float(sum(parts)), most) if known and min(parts) >= 0 else None
        bad_values[f"{entity}.{column}"] += known and amount is None
        amounts.append(amount)
    return Reading(round(parse_time(item.timestamp) * 1000), float(seconds), *amounts)


class Readings(Generic[_Key]):
    """The recent readings of each node or pod, in order of time."""

    def __init__(self) -> None:
        self._readings: dict[_Key, list[Reading]] = {}

    def put(self, readings: Mapping[_Key, Reading]) -> None:
        """Add readings that are newer than the last one of their node or pod."""
        for name, reading in readings.items():
            known = self._readings.setdefault(name, [])
            if not known or known[-1].time_ms < reading.time_ms:
                known.append(reading)

    def forget(self, until_ms: int) -> None:
        for name, known in list(self._readings.items()):
            known[:] = [reading for reading in known if reading.time_ms > until_ms]
            if not known:
                del self._readings[name]

    def within(
        self, window: TimeWindow, left_out: Counter[str]
    ) -> Iterator[tuple[_Key, list[Reading]]]:
        """Nodes or pods with their readings in `window`; those with only older or newer readings
        are counted in `left_out`."""
        for name, known in self._readings.items():
            if inside := [reading for reading in known if window.has(reading.time_ms)]:
                yield name, inside
            else:
                left_out["stale" if known[-1].time_ms <= window.start_ms else "ahead"] += 1


def gather(nodes: Readings[str], pods: Readings[PodName], window: TimeWindow) -> FetchedUsage:
    """The usage of nodes and pods in `window` by their readings."""
    fetched = FetchedUsage()
    for node, readings in nodes.within(window, fetched.left_out):
        cpu = {r.time_ms: r.cpu_cores for r in readings if r.cpu_cores is not None}
        memory = {r.time_ms: r.memory_bytes for r in readings if r.memory_bytes is not None}
        fetched.nodes[node] = _columns(readings, window) | points(window, cpu, memory)
    for pod, readings in pods.within(window, fetched.left_out):
        fetched.pods[pod] = _columns(readings, window)
    return fetched


def _columns(readings: Sequence[Reading], window: TimeWindow) -> SampleColumns:
    columns: SampleColumns = {}
    if cpu := [(r.cpu_cores, r.seconds) for r in readings if r.cpu_cores is not None]:
        total = math.fsum(seconds for _, seconds in cpu)
        average = math.fsum(cores * seconds for cores, seconds in cpu) / total
        columns = statistics("cpu_cores", [cores for cores, _ in cpu], average)
        columns["coverage"] = _coverage(readings, window)
    memory = [r.memory_bytes for r in readings if r.memory_bytes is not None]
    for column in _MEMORIES:
        columns |= statistics(column, memory)
    return columns


def _coverage(readings: Sequence[Reading], window: TimeWindow) -> float:
    """The share of the window that readings of cpu cover."""
    covered = [
        min(reading.seconds, (reading.time_ms - window.start_ms) / 1000)
        for reading in readings
        if reading.cpu_cores is not None
    ]
    return min(1.0, math.fsum(covered) / window.seconds)
