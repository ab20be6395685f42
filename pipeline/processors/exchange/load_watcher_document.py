"""load-watcher's document of node usage, which Trimaran's plugins poll, and what they read of it.

Owes the rest: the wire format exactly, letter by letter (scheduling 5), with numbers that the fast
parser of their client takes: finite, not below 0, of at most six decimals. One NaN would cost them
the whole document. Values are in percent of the node's capacity.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

AVERAGE: Final = "AVG"
DEVIATION: Final = "STD"
LATEST: Final = "Latest"

WINDOWS: Final[Mapping[str, int]] = {"15m": 900, "10m": 600, "5m": 300}
"""By their names the seconds of the windows that can be asked for, the usual one first."""

_DECIMALS: Final = 6
_LARGEST: Final = 1e15


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a node: `type` is CPU, Memory, ..., `operator` AVG, STD, Latest or empty."""

    name: str = ""
    type: str = ""
    operator: str = ""
    rollup: str = ""
    value: int | float = 0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Its length by name, and UTC seconds."""

    duration: str = ""
    start: int = 0
    end: int = 0


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    data_center: str = ""


class NodeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    metrics: tuple[Metric, ...] = ()
    tags: dict[str, str] = {}
    metadata: Metadata = Metadata()


class Data(msgspec.Struct, frozen=True, kw_only=True):
    nodes: dict[str, NodeMetrics] = msgspec.field(name="NodeMetricsMap", default_factory=dict)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What `GET /watcher` answers; unknown keys are left alone when it is read."""

    timestamp: int = 0
    window: Window = Window()
    source: str = ""
    data: Data = Data()


def document(
    nodes: Mapping[str, NodeMetrics], duration: str, end: int, timestamp: int, source: str
) -> Document:
    """The document about these nodes. KeyError for a duration that is none of `WINDOWS`."""
    window = Window(duration=duration, start=end - WINDOWS[duration], end=end)
    return Document(timestamp=timestamp, window=window, source=source, data=Data(nodes=dict(nodes)))


def encode(of: Document) -> bytes:
    """The document as JSON, nodes by name."""
    return msgspec.json.encode(of, order="deterministic")


def metric(type: str, operator: str, rollup: str, value: float, name: str = "") -> Metric | None:
    """A value as it may be sent; None for one that their parser would stumble over."""
    if not math.isfinite(value) or not 0 <= value <= _LARGEST:
        return None
    rounded = round(float(value), _DECIMALS)
    whole = int(rounded) if rounded.is_integer() else rounded
    return Metric(name=name, type=type, operator=operator, rollup=rollup, value=whole)


def served_window(asked: str, available: Iterable[str]) -> str | None:
    """The window that answers for `asked`: it, or the next shorter one that has data; None for a
    name that is none, and without data. Upstream goes one step down only."""
    if asked not in WINDOWS:
        return None
    names, there = [*WINDOWS], set(available)
    return next((name for name in names[names.index(asked) :] if name in there), None)
