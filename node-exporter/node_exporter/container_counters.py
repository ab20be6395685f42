"""Read CPU time, throttling and memory of a pod's containers.

CPU time and memory of a cgroup include its descendants, CFS bandwidth counters do not: a pod whose
containers are throttled at their own limits reports 0. Memory is read where a pod has two or more
containers that have used some CPU: else the usage of the pod is that of its container. The sandbox
has a cgroup as containers have, and never uses so much. All containers are read every few seconds;
a longer interval loses nothing except the growth of containers that end in between. Those with a
CPU limit are read in between, too: the node actuator reacts to throttling at once.
"""

from typing import Final, NamedTuple

from node_exporter.collection import ContainerGrowth
from node_exporter.counter_deltas import growth
from node_exporter.kernel.cgroup import Cgroup, Layout, open_cgroup
from node_exporter.kernel.cgroup_paths import Driver
from node_exporter.kernel.discovery import PodDir, count_links, list_containers
from node_exporter.kernel.parse_files import Throttling
from pipeline.errors import CgroupGoneError

_ZERO: Final = Throttling(0, 0, 0)
_ACTIVE_CPU_NS: Final = 1_000_000_000
"""CPU time since its start after which a container counts. A sandbox starts within a tenth."""


class _Reading(NamedTuple):
    at: float
    cpu_ns: int | None
    throttling: Throttling | None

    @property
    def is_limited(self) -> bool:
        return self.throttling is not None and self.throttling.periods > 0


class PodContainers:
    """Counters of the containers of one pod; the files stay open."""

    def __init__(self, layout: Layout, driver: Driver, pod: PodDir) -> None:
        self._layout, self._driver, self._pod = layout, driver, pod
        self._cgroups: dict[str, Cgroup] = {}
        self._previous: dict[str, _Reading] | None = None
        self._limited: tuple[str, ...] = ()
        self._links: int | None = None

    def read_all(self, at: float) -> dict[str, ContainerGrowth]:
        """Growth of all containers since each was last read, by container id; `at` is monotonic.

        The throttling counters of a new container started at 0. The first call returns no
        container. Raises `CgroupGoneError` if the pod has ended, `KernelFileError` if a file cannot
        be read.
        """
        # A new container adds a link. Where it took the place of another, that has ended.
        links = count_links(self._layout, self._pod)
        if links != self._links:
            self._list()
        now = self._read_each(at)
        if len(now) < len(self._cgroups):
            self._list()
            now = self._read_each(at)
        self._links = links
        previous, self._previous = self._previous, now
        self._limited = tuple(id for id, reading in now.items() if reading.is_limited)
        if previous is None:
            return {}
        grown = {id: _growth(now[id], previous.get(id)) for id in now}
        active = [id for id, reading in now.items() if (reading.cpu_ns or 0) >= _ACTIVE_CPU_NS]
        if len(active) > 1:
            for id in active:
                grown[id] = grown[id]._replace(memory_bytes=self._read_memory(id))
        return grown

    def read_limited(self, at: float) -> dict[str, ContainerGrowth] | None:
        """Growth of the containers that had a CPU limit when they were last read; None if none had.
        Raises `KernelFileError` if a file cannot be read."""
        if not self._limited or self._previous is None:
            return None
        grown = {}
        for id in self._limited:
            if (now := self._read(id, at)) is not None:
                grown[id] = _growth(now, self._previous[id])
                self._previous[id] = now
        return grown

    def close(self) -> None:
        """Close all files; the next `read_all` opens them again."""
        self._limited, self._links = (), None
        for cgroup in self._cgroups.values():
            cgroup.close()
        self._cgroups.clear()

    def _list(self) -> None:
        paths = list_containers(self._layout, self._driver, self._pod)
        for id in self._cgroups.keys() - paths.keys():
            self._cgroups.pop(id).close()
        for id in paths.keys() - self._cgroups.keys():
            self._cgroups[id] = open_cgroup(self._layout, paths[id])

    def _read_each(self, at: float) -> dict[str, _Reading]:
        return {id: now for id in self._cgroups if (now := self._read(id, at)) is not None}

    def _read(self, id: str, at: float) -> _Reading | None:
        """The counters of a container; None if it has ended."""
        try:
            return _Reading(at, *self._cgroups[id].cpu())
        except CgroupGoneError:
            return None

    def _read_memory(self, id: str) -> int | None:
        """Memory of a container without page cache; None if it has ended."""
        try:
            memory = self._cgroups[id].memory()
        except CgroupGoneError:
            return None
        return None if memory is None else memory.anon_bytes


def _growth(now: _Reading, previous: _Reading | None) -> ContainerGrowth:
    if previous is None:
        return ContainerGrowth(None, None, growth(now.throttling, _ZERO))
    throttling = growth(now.throttling, previous.throttling)
    if now.cpu_ns is None or previous.cpu_ns is None or now.cpu_ns < previous.cpu_ns:
        return ContainerGrowth(None, None, throttling)
    return ContainerGrowth(now.cpu_ns - previous.cpu_ns, now.at - previous.at, throttling)
