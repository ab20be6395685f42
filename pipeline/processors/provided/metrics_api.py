"""Lists of `metrics.k8s.io/v1beta1` as readings, and the readings of a window as usage.

metrics-server tells of each node and pod what it used on average over a span that ended at a time,
both of its own choice; the next reading comes when it has looked again. Of memory it knows the
working set alone, which stands for the two figures that lie nearest.

Owes the rest: an item that cannot be read costs itself and is counted, one that is not of the
window is left out, one that is told twice counts once.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError, ProviderError
from pipeline.processors.kubernetes.durations import seconds_of
from pipeline.processors.provided.fetched_usage import (
    MAX_BYTES,
    MAX_CPU_CORES,
    Columns,
    Fetched,
    PodName,
    Window,
    believed,
    points,
    statistics,
)
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
    """The average over `seconds` that ended at `at_ms`; None is what it does not say."""

    at_ms: int
    seconds: float
    cpu_cores: float | None
    memory_bytes: float | None


class Listed(NamedTuple):
    """The readings of one list, by name; what was not used of it is counted."""

    nodes: dict[str, Reading]
    pods: dict[PodName, Reading]
    left_out: Counter[str]
    bad_values: Counter[str]


_lists: Final = msgspec.json.Decoder(_List)
_items: Final = msgspec.json.Decoder(_Item)


def read_list(body: bytes) -> Listed:
    """The readings in a NodeMetricsList or PodMetricsList. Raises `ProviderError` for bytes that
    are neither."""
    try:
        found = _lists.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProviderError(f"the answer cannot be read: {str(error)[:200]}") from error
    if found.kind not in ("NodeMetricsList", "PodMetricsList"):
        raise ProviderError(f"the answer is a {found.kind!r:.60}, not a list of metrics")
    listed = Listed({}, {}, Counter(), Counter())
    for raw in found.items or ():
        try:
            item = _items.decode(raw)
            _put(listed, item, is_node=found.kind == "NodeMetricsList")
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
    seconds = seconds_of(item.window)
    if seconds is None:
        raise InvalidRecordError(f"{item.window!r:.40} is no span of time")
    amounts: list[float | None] = []
    for resource, column, most in (
        ("cpu", "cpu_cores", MAX_CPU_CORES),
        ("memory", "memory_bytes", MAX_BYTES),
    ):
        found = [parse_quantity(usage[resource]) for usage in usages if resource in usage]
        # Without one of its containers it is not what the pod uses.
        known = 0 < len(found) == len(usages)
        amount = believed(float(sum(found)), most) if known and min(found) >= 0 else None
        bad_values[f"{entity}.{column}"] += known and amount is None
        amounts.append(amount)
    return Reading(round(parse_time(item.timestamp) * 1000), float(seconds), *amounts)


class Readings(Generic[_Key]):
    """The last readings of each node or pod, in the order of time."""

    def __init__(self) -> None:
        self._readings: dict[_Key, list[Reading]] = {}

    def put(self, readings: Mapping[_Key, Reading]) -> None:
        """Add what a list says; what is not newer than what is there was told before."""
        for name, reading in readings.items():
            known = self._readings.setdefault(name, [])
            if not known or known[-1].at_ms < reading.at_ms:
                known.append(reading)

    def forget(self, until_ms: int) -> None:
        """Drop what is of this time or older."""
        for name, known in list(self._readings.items()):
            known[:] = [reading for reading in known if reading.at_ms > until_ms]
            if not known:
                del self._readings[name]

    def of(self, window: Window, left_out: Counter[str]) -> Iterator[tuple[_Key, list[Reading]]]:
        """Who has readings in `window`, and these; of the others those are counted that are known
        by older or by newer ones alone."""
        for name, known in self._readings.items():
            if inside := [reading for reading in known if window.has(reading.at_ms)]:
                yield name, inside
            else:
                left_out["stale" if known[-1].at_ms <= window.start_ms else "ahead"] += 1


def gather(nodes: Readings[str], pods: Readings[PodName], window: Window) -> Fetched:
    """What the readings of `window` say of nodes and pods."""
    found = Fetched()
    for node, readings in nodes.of(window, found.left_out):
        cpu = {r.at_ms: r.cpu_cores for r in readings if r.cpu_cores is not None}
        memory = {r.at_ms: r.memory_bytes for r in readings if r.memory_bytes is not None}
        found.nodes[node] = _columns(readings, window) | points(window, cpu, memory)
    for pod, readings in pods.of(window, found.left_out):
        found.pods[pod] = _columns(readings, window)
    return found


def _columns(readings: Sequence[Reading], window: Window) -> Columns:
    found: Columns = {}
    if cpu := [(r.cpu_cores, r.seconds) for r in readings if r.cpu_cores is not None]:
        seconds = math.fsum(of for _, of in cpu)
        average = math.fsum(cores * of for cores, of in cpu) / seconds
        found = statistics("cpu_cores", [cores for cores, _ in cpu], average)
        found["coverage"] = _coverage(readings, window)
    memory = [r.memory_bytes for r in readings if r.memory_bytes is not None]
    for column in _MEMORIES:
        found |= statistics(column, memory)
    return found


def _coverage(readings: Sequence[Reading], window: Window) -> float:
    """The share of the window of which the CPU's readings speak."""
    seen = [
        min(reading.seconds, (reading.at_ms - window.start_ms) / 1000)
        for reading in readings
        if reading.cpu_cores is not None
    ]
    return min(1.0, math.fsum(seen) / window.seconds)
