"""The usage of this node from the exporter's local socket, once a second.

Values are the newest that are known, each at most ten seconds old: one failed reading of a pod does
not make its usage unknown. The age of what an exporter serves is measured by this process: an
exporter that repeats an old collection does not look fresh, and a step of the wall clock changes
nothing. An answer that is invalid, endless or late ends the connection; the next attempt waits.
"""

import asyncio
import math
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from pipeline.clock import Clock
from pipeline.kafka.follow import Backoff
from pipeline.logs import get_logger
from pipeline.metrics import counter
from pipeline.processors.node_qos.node_state import PressureLevels
from pipeline.topics.codec import DECODE_ERRORS
from pipeline.topics.resource_amounts import LARGEST_AMOUNT
from pipeline.topics.samples import SYSTEM_TIER, Kind

MAX_AGE_SECONDS: Final = 10.0
"""Older values are unknown."""
HISTORY_SECONDS: Final = 60.0
"""What the exporter serves of the past."""
ANSWER_SECONDS: Final = 0.7
"""Longer answers would delay the round."""
HISTORY_ANSWER_SECONDS: Final = 3.0
"""Time for the answer to the first request, which has all of the past."""
_LONGEST_LINE: Final = 1 << 22
_MOST_BYTES: Final = 1 << 26
_BACKOFF_SECONDS: Final = (0.5, 10.0)

log = get_logger(__name__)

FAILED: Final = counter(
    "node_actuator_usage_requests_failed",
    "Requests to the exporter's socket without a valid answer in time.",
)


_Whole = Annotated[int, Meta(ge=-LARGEST_AMOUNT, le=LARGEST_AMOUNT)]


class _Pressure(msgspec.Struct, frozen=True):
    some_percent: float
    full_percent: float | None = None


class _Container(msgspec.Struct, frozen=True):
    id: str
    cpu_cores: float | None = None
    periods: _Whole | None = None
    throttled_periods: _Whole | None = None


class _Usage(msgspec.Struct, frozen=True):
    kind: Kind
    id: str
    qos: str | None = None
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    periods: _Whole | None = None
    throttled_periods: _Whole | None = None
    cpu_pressure: _Pressure | None = None
    memory_pressure: _Pressure | None = None
    containers: tuple[_Container, ...] | None = None


class _System(msgspec.Struct, frozen=True):
    cpu_cores: float | None = None


class _Line(msgspec.Struct, frozen=True):
    """A collection, the end of an answer (`collections`), or an error."""

    node: str = ""
    time_ms: _Whole = 0
    system: _System = _System()
    usages: tuple[_Usage, ...] = ()
    collections: _Whole | None = None
    error: str | None = None


_decoder: Final = msgspec.json.Decoder(_Line)


class EntityCores(NamedTuple):
    """CPU of a pod or a host application; None is unknown. `qos` is the QoS class of Kubernetes for
    a pod, that of Koordinator for an application."""

    kind: Kind
    id: str
    qos: str
    cpu_cores: float | None


class CollectedCores(NamedTuple):
    """CPU of pods and host applications in one collection, which was read `at` a monotonic time."""

    at: float
    entities: tuple[EntityCores, ...]


class ContainerUsage(NamedTuple):
    """Newest usage of a container; None is unknown. `throttled_ratio` is the share of the periods
    since the former request."""

    cpu_cores: float | None = None
    throttled_ratio: float | None = None


class EntityUsage(NamedTuple):
    """Newest usage of the node, a pod or a host application, likewise."""

    cpu_cores: float | None = None
    memory_bytes: float | None = None
    throttled_ratio: float | None = None
    cpu_pressure: PressureLevels | None = None
    memory_pressure: PressureLevels | None = None


_Key = tuple[str, str]
_CONTAINER: Final = "container"


class _OtherNodeError(ValueError):
    """The exporter runs under the name of another node."""


class LiveUsage:
    """The newest usage of `node`, as of the last `refresh`."""

    def __init__(self, path: Path, node: str, clock: Clock) -> None:
        self._path, self._node, self._clock = path, node, clock
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._backoff = Backoff(*_BACKOFF_SECONDS)
        self._next_attempt_at = self._asked_at = -math.inf
        # Monotonic time, and the exporter's time in milliseconds.
        self._newest: tuple[float, int] | None = None
        # Values read before this monotonic time are unknown.
        self._oldest = -math.inf
        self._values: dict[_Key, dict[str, tuple[float, Any]]] = {}
        self._periods: dict[_Key, tuple[int, int]] = {}
        self._history_seconds = HISTORY_SECONDS

    def age_seconds(self) -> float | None:
        """Age of the newest collection; None before the first."""
        return None if self._newest is None else self._clock.monotonic() - self._newest[0]

    def newest_seconds(self) -> float | None:
        """Time of the newest collection since the epoch; None if it is too old."""
        age = self.age_seconds()
        if self._newest is None or age is None or age > MAX_AGE_SECONDS:
            return None
        return self._newest[1] / 1000

    def of(self, kind: Kind, id: str) -> EntityUsage:
        """The usage of the node (its id is empty), a pod, a host application, or the tier system,
        which is CPU outside of pods and host applications."""
        values = self._known(kind, id)
        return EntityUsage(
            values.get("cpu_cores"),
            values.get("memory_bytes"),
            self._throttled_ratio((kind, id)),
            values.get("cpu_pressure"),
            values.get("memory_pressure"),
        )

    def of_container(self, id: str) -> ContainerUsage:
        """The usage of a container, by its id."""
        cores = self._known(_CONTAINER, id).get("cpu_cores")
        return ContainerUsage(cores, self._throttled_ratio((_CONTAINER, id)))

    async def refresh(self, cpus: int) -> list[CollectedCores]:
        """Ask for the collections since the last one, up to the last minute, and return their CPU,
        oldest first.

        Much more CPU than the node's `cpus` have is absurd, and unknown. If the exporter does not
        answer, nothing is returned, and the values get older. Never raises and never waits for
        long.
        """
        self._periods.clear()
        now = self._clock.monotonic()
        self._oldest = now - MAX_AGE_SECONDS
        if now < self._next_attempt_at:
            return []
        seconds = min(now - self._asked_at, self._history_seconds)
        limit = ANSWER_SECONDS if seconds < MAX_AGE_SECONDS else HISTORY_ANSWER_SECONDS
        try:
            async with asyncio.timeout(limit):
                lines = await self._ask(seconds)
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                # A slow machine gets less of the past.
                self._history_seconds = max(self._history_seconds / 2, MAX_AGE_SECONDS / 2)
            self._note_failure(error)
            return []
        except BaseException:
            self.close()  # the rest of the answer would be taken for the next one
            raise
        self._backoff.reset()
        self._history_seconds = HISTORY_SECONDS
        new = self._new_of(lines)
        if new:
            newest_ms = new[-1].time_ms
            self._newest = newest = (self._read_at(newest_ms), newest_ms)
            self._forget_old()
        self._asked_at = now
        # Two readings of a counter may lie closer together than their times.
        most_cores = 1.5 * cpus + 1
        return [self._note(line, newest, most_cores) for line in new]

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    def _known(self, kind: str, id: str) -> dict[str, Any]:
        values = self._values.get((kind, id), {})
        return {name: value for name, (at, value) in values.items() if at >= self._oldest}

    def _throttled_ratio(self, key: _Key) -> float | None:
        if (counts := self._periods.get(key)) is None:
            return None
        periods, throttled = counts
        return min(1.0, throttled / periods) if periods else 0.0

    async def _ask(self, seconds: float) -> list[_Line]:
        """Send a request; the collections of the answer. Raises OSError, or ValueError for an
        invalid answer."""
        if self._connection is None:
            self._connection = await asyncio.open_unix_connection(self._path, limit=_LONGEST_LINE)
        reader, writer = self._connection
        writer.write(b'{"seconds": %f}\n' % seconds)
        lines: list[_Line] = []
        size = 0
        while size <= _MOST_BYTES:
            data = await reader.readline()
            if not data.endswith(b"\n"):
                raise ConnectionError("the exporter closed the connection")
            size += len(data)
            try:
                line = _decoder.decode(data)
            except DECODE_ERRORS as error:
                raise ValueError(f"not a collection: {error}") from error
            if line.error is not None:
                raise ValueError(f"the exporter says: {line.error:.200}")
            if line.collections is not None:
                return lines
            if line.node != self._node:
                raise _OtherNodeError(f"usage of {line.node!r:.100}, not of {self._node}")
            lines.append(line)
        raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")

    def _note_failure(self, error: Exception) -> None:
        FAILED.inc()
        self.close()
        if self._backoff.is_first:
            reason = str(error) or type(error).__name__
            hint = (
                "give exporter and node actuator the same exporter.node_name or NODE_NAME"
                if isinstance(error, _OtherNodeError)
                else "run the exporter on this node, with the same exporter.socket_path"
            )
            log.warning("no usage from the exporter, it gets older", socket=str(self._path),
                        why=reason, hint=hint)  # fmt: skip
        self._next_attempt_at = self._clock.monotonic() + self._backoff.pause()

    def _new_of(self, lines: list[_Line]) -> list[_Line]:
        """The collections after the newest one that is known."""
        times = [line.time_ms for line in lines]
        known = None if self._newest is None else self._newest[1]
        return lines[times.index(known) + 1 :] if known in times else lines

    def _read_at(self, newest_ms: int) -> float:
        """When the newest collection was read: not before the last request, and, as far as the wall
        clock was not stepped since, at `newest_ms`."""
        now = self._clock.monotonic()
        age = max(0.0, self._clock.now() - newest_ms / 1000)
        return now - min(age, now - self._asked_at)

    def _forget_old(self) -> None:
        self._values = {
            key: values
            for key, values in self._values.items()
            if any(at >= self._oldest for at, _ in values.values())
        }

    def _note(self, line: _Line, newest: tuple[float, int], most_cores: float) -> CollectedCores:
        """Take over what is known of a collection."""
        at = newest[0] - max(0.0, (newest[1] - line.time_ms) / 1000)
        is_recent = at >= self._oldest
        if is_recent:
            system = _within(line.system.cpu_cores, most_cores)
            self._put(("tier", SYSTEM_TIER), at, "cpu_cores", system)
        cores = []
        for usage in line.usages:
            cpu_cores = _within(usage.cpu_cores, most_cores)
            if usage.kind in ("pod", "host_app"):
                cores.append(EntityCores(usage.kind, usage.id, usage.qos or "", cpu_cores))
            if is_recent:
                self._note_usage(at, usage, cpu_cores, most_cores)
        return CollectedCores(at, tuple(cores))

    def _note_usage(
        self, at: float, usage: _Usage, cpu_cores: float | None, most_cores: float
    ) -> None:
        key: _Key = (usage.kind, usage.id)
        self._put(key, at, "cpu_cores", cpu_cores)
        self._put(key, at, "memory_bytes", _within(usage.memory_bytes, LARGEST_AMOUNT))
        self._put(key, at, "cpu_pressure", _levels(usage.cpu_pressure))
        self._put(key, at, "memory_pressure", _levels(usage.memory_pressure))
        self._add_periods(key, usage.periods, usage.throttled_periods)
        for container in usage.containers or ():
            key = (_CONTAINER, container.id)
            self._put(key, at, "cpu_cores", _within(container.cpu_cores, most_cores))
            self._add_periods(key, container.periods, container.throttled_periods)

    def _put(self, key: _Key, at: float, name: str, value: Any) -> None:
        if value is not None:
            self._values.setdefault(key, {})[name] = (at, value)

    def _add_periods(self, key: _Key, periods: int | None, throttled: int | None) -> None:
        if periods is None or throttled is None or min(periods, throttled) < 0:
            return
        before = self._periods.get(key, (0, 0))
        self._periods[key] = (before[0] + periods, before[1] + throttled)


def _within(value: float | None, most: float) -> float | None:
    return value if value is not None and 0 <= value <= most else None


def _levels(pressure: _Pressure | None) -> PressureLevels | None:
    if pressure is None:
        return None
    some, full = _within(pressure.some_percent, 100), _within(pressure.full_percent, 100)
    return None if some is None else PressureLevels(some, full)
