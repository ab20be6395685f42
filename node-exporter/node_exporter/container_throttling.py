"""Throttling of a pod's containers, which the pod's own counters do not include.

CPU time and memory of a cgroup include its descendants, CFS bandwidth counters do not: a pod whose
containers are throttled at their own limits says 0 of itself. They are read every few seconds,
since counters lose nothing in between but those of a container that ends.
"""

from typing import Final

from node_exporter.counter_deltas import growth
from node_exporter.kernel.cgroup import Bandwidth, Layout
from node_exporter.kernel.cgroup_paths import Driver
from node_exporter.kernel.discovery import PodDir, list_containers
from node_exporter.kernel.parse_files import Throttling
from pipeline.errors import CgroupGoneError

_NOTHING_YET: Final = Throttling(0, 0, 0)


class PodContainers:
    """The containers of one pod and their last readings; files stay open."""

    def __init__(self, layout: Layout, driver: Driver, pod: PodDir) -> None:
        self._layout, self._driver, self._pod = layout, driver, pod
        self._files: dict[str, Bandwidth] = {}
        self._previous: dict[str, Throttling] | None = None

    def grown(self) -> dict[str, Throttling]:
        """Growth of each container's counters since the call before, by container id.

        A container that was not there then has counted from 0; at the first call nothing is known.
        Raises `CgroupGoneError` if the pod has ended, `KernelFileError` for what cannot be read.
        """
        now = dict(self._read())
        before, self._previous = self._previous, now
        if before is None:
            return {}
        grown = {id: growth(now[id], before.get(id, _NOTHING_YET)) for id in now}
        return {id: change for id, change in grown.items() if change is not None}

    def close(self) -> None:
        """Give back the open files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _read(self) -> list[tuple[str, Throttling]]:
        there = {c.container.id: c for c in list_containers(self._layout, self._driver, self._pod)}
        for id in self._files.keys() - there.keys():
            self._files.pop(id).close()
        found = []
        for id, container in there.items():
            if id not in self._files:
                self._files[id] = Bandwidth(self._layout, container.path)
            try:
                counters = self._files[id].read()
            except CgroupGoneError:  # it ends while we look
                self._files.pop(id).close()
                continue
            if counters is not None:
                found.append((id, counters))
        return found
