"""What one collection says: the usage of each entity since the reading before; pure data."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from node_exporter.kernel.parse_files import Throttling, Traffic
from pipeline.topics.samples import SYSTEM_TIER, Kind


class Entity(NamedTuple):
    """Whose usage it is; `id` is a pod's UID or a name, empty for the node."""

    kind: Kind
    id: str
    qos: str | None


NODE: Final = Entity("node", "", None)
SYSTEM: Final = Entity("tier", SYSTEM_TIER, None)


class Stall(NamedTuple):
    """Time stalled, in microseconds, over a time observed in seconds; None: not known."""

    seconds: float
    cpu_some_us: int
    memory_some_us: int
    memory_full_us: int | None
    io_some_us: int
    io_full_us: int | None


class Usage(NamedTuple):
    """What one entity used in one collection; None is unknown."""

    entity: Entity
    cpu_ns: int | None
    """CPU time since the reading before."""
    elapsed_seconds: float | None
    """Time since the reading before."""
    memory_bytes: int | None
    """Without page cache."""
    memory_with_page_cache_bytes: int | None
    memory_with_hot_page_cache_bytes: int | None
    throttling: Throttling | None = None
    """Growth of the cgroup's own bandwidth counters since the reading before."""
    stall: Stall | None = None
    containers: Mapping[str, Throttling] | None = None
    """The same of a pod's containers by id, since they were last read; None: not read now."""

    @property
    def cpu_cores(self) -> float | None:
        """Cores used on average since the reading before."""
        if self.cpu_ns is None or not self.elapsed_seconds:
            return None
        return self.cpu_ns / (self.elapsed_seconds * 1e9)


class Rates(NamedTuple):
    """Bytes moved by the node, over a time observed in seconds."""

    seconds: float
    network: Traffic | None
    disk: Traffic | None


@dataclass(frozen=True, slots=True)
class Collection:
    """All that was read at one tick."""

    at_ms: int
    usages: tuple[Usage, ...]
    """The node's first, if it could be read."""
    rates: Rates | None
    system: Usage | None = None
    """Node minus pods minus host applications; None if nothing is known of it."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Samples that were not taken, by reason."""
    errors: Counter[str] = field(default_factory=Counter)
    """Readings that failed, by what was read."""
