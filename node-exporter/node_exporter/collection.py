"""Types of a collection: the usage of each entity between two consecutive readings."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from node_exporter.kernel.parse_files import Pressure, Throttling, Traffic
from pipeline.topics.samples import SYSTEM_TIER, Kind


class Entity(NamedTuple):
    """A node, tier, pod or host application; `id` is a pod UID or a name, empty for the node."""

    kind: Kind
    id: str
    qos: str | None


NODE: Final = Entity("node", "", None)
SYSTEM: Final = Entity("tier", SYSTEM_TIER, None)


class Stall(NamedTuple):
    """Stalled time in microseconds within the observed time in seconds; None is unknown."""

    seconds: float
    cpu_some_us: int
    memory_some_us: int
    memory_full_us: int | None
    io_some_us: int
    io_full_us: int | None


class ContainerGrowth(NamedTuple):
    """Growth of a container's counters since it was last read; None is unknown.

    `memory_bytes`, without page cache, is that of now, only read where a pod has several containers
    that do something.
    """

    cpu_ns: int | None
    elapsed_seconds: float | None
    throttling: Throttling | None
    memory_bytes: int | None = None

    @property
    def cpu_cores(self) -> float | None:
        """Average number of cores in use since the previous reading."""
        return _cores(self.cpu_ns, self.elapsed_seconds)


class Usage(NamedTuple):
    """Usage of one entity in one collection; None is unknown."""

    entity: Entity
    cpu_ns: int | None
    """CPU time since the previous reading."""
    elapsed_seconds: float | None
    """Time since the previous reading."""
    memory_bytes: int | None
    """Without page cache."""
    memory_with_page_cache_bytes: int | None
    memory_with_hot_page_cache_bytes: int | None
    throttling: Throttling | None = None
    """Growth of the bandwidth counters of this cgroup since the previous reading."""
    stall: Stall | None = None
    containers: Mapping[str, ContainerGrowth] | None = None
    """Growth for containers of a pod, by id; None if none was read now."""
    pressure: tuple[Pressure, ...] | None = None
    """Levels of CPU, memory and IO; None if not read now."""

    @property
    def cpu_cores(self) -> float | None:
        """Average number of cores in use since the previous reading."""
        return _cores(self.cpu_ns, self.elapsed_seconds)


def _cores(cpu_ns: int | None, elapsed_seconds: float | None) -> float | None:
    if cpu_ns is None or not elapsed_seconds:
        return None
    return cpu_ns / (elapsed_seconds * 1e9)


class Rates(NamedTuple):
    """Bytes transferred by the node within the observed time in seconds."""

    seconds: float
    network: Traffic | None
    disk: Traffic | None


@dataclass(frozen=True, slots=True)
class Collection:
    """Everything that one tick has read."""

    at_ms: int
    usages: tuple[Usage, ...]
    """The usage of the node comes first, if it could be read."""
    rates: Rates | None
    system: Usage | None = None
    """Node minus pods minus host applications; None if unknown."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped samples, by reason."""
    errors: Counter[str] = field(default_factory=Counter)
    """Number of failed readings, by kind."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """The gauges that were read."""
