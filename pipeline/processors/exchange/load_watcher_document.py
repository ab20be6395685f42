"""load-watcher's document of node usage, which Trimaran's plugins poll.

The wire format is that of [load-watcher](https://github.com/paypal/load-watcher). Numbers are
finite, not negative and have at most six decimals, because the client's parser refuses the whole
document for one NaN. Values are in percent of the node's capacity.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

AVERAGE: Final = "AVG"
DEVIATION: Final = "STD"
LATEST: Final = "Latest"

WINDOWS: Final[Mapping[str, int]] = {"15m": 900, "10m": 600, "5m": 300}
"""Seconds of the windows by name, the default first."""

_DECIMALS: Final = 6
_LARGEST: Final = 1e15


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a node.

    name: Name of the metric.
    type: CPU, Memory, ...
    operator: AVG, STD, Latest or empty.
    rollup: Span of the value.
    value: The value, in percent of capacity for CPU and memory.
    """

    name: str = ""
    type: str = ""
    operator: str = ""
    rollup: str = ""
    value: int | float = 0


class WatcherWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window.

    duration: Name of its length, such as 15m.
    start: UTC seconds.
    end: UTC seconds.
    """

    duration: str = ""
    start: int = 0
    end: int = 0


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """Where the node is.

    data_center: Zone of the node; empty if its labels name none.
    """

    data_center: str = ""


class NodeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a node.

    metrics: The values.
    tags: Labels of the node.
    metadata: Where the node is.
    """

    metrics: tuple[Metric, ...] = ()
    tags: dict[str, str] = {}
    metadata: Metadata = Metadata()


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """The values of all nodes.

    nodes: Values by node.
    """

    nodes: dict[str, NodeMetrics] = msgspec.field(name="NodeMetricsMap", default_factory=dict)


class WatcherDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /watcher`.

    timestamp: UTC seconds of the answer.
    window: Span of the averages.
    source: Name of the source.
    data: The values.
    """

    timestamp: int = 0
    window: WatcherWindow = WatcherWindow()
    source: str = ""
    data: Data = Data()


def document(
    nodes: Mapping[str, NodeMetrics], duration: str, end: int, timestamp: int, source: str
) -> WatcherDocument:
    """The document about these nodes. Raises KeyError for a duration that `WINDOWS` lacks."""
    window = WatcherWindow(duration=duration, start=end - WINDOWS[duration], end=end)
    return WatcherDocument(
        timestamp=timestamp, window=window, source=source, data=Data(nodes=dict(nodes))
    )


def encode(document: WatcherDocument) -> bytes:
    """The document as JSON, nodes by name."""
    return msgspec.json.encode(document, order="deterministic")


def metric(type: str, operator: str, rollup: str, value: float, name: str = "") -> Metric | None:
    """A value as it may be sent; None for a value that the client's parser refuses."""
    if not math.isfinite(value) or not 0 <= value <= _LARGEST:
        return None
    rounded = round(float(value), _DECIMALS)
    whole = int(rounded) if rounded.is_integer() else rounded
    return Metric(name=name, type=type, operator=operator, rollup=rollup, value=whole)


def served_window(wanted: str, available: Iterable[str]) -> str | None:
    """The window to answer with: `wanted`, or the next shorter one with data. None for an unknown
    name, and without data. load-watcher tries only one shorter window."""
    if wanted not in WINDOWS:
        return None
    names, with_data = [*WINDOWS], set(available)
    return next((name for name in names[names.index(wanted) :] if name in with_data), None)
