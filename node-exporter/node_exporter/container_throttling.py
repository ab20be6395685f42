"""Read the throttling counters of a pod's containers, which the pod's own counters exclude.

CPU time and memory of a cgroup include its descendants, CFS bandwidth counters do not: a pod whose
containers are throttled at their own limits reports 0. The counters are read every few seconds. A
longer interval loses nothing except the growth of containers that end in between.
"""

from typing import Final

from node_exporter.counter_deltas import growth
from node_exporter.kernel.cgroup import Bandwidth, Layout
from node_exporter.kernel.cgroup_paths import Driver
from node_exporter.kernel.discovery import PodDir, list_containers
from node_exporter.kernel.parse_files import Throttling
from pipeline.errors import CgroupGoneError

_ZERO: Final = Throttling(0, 0, 0)


class PodContainers:
    """Throttling counters of the containers of one pod; the files stay open."""

    def __init__(self, layout: Layout, driver: Driver, pod: PodDir) -> None:
        self._layout, self._driver, self._pod = layout, driver, pod
        self._files: dict[str, Bandwidth] = {}
        self._previous: dict[str, Throttling] | None = None

    def throttling_deltas(self) -> dict[str, Throttling]:
        """Growth of each container's counters since the previous call, by container id.

        The counters of a new container started at 0. The first call returns no container. Raises
        `CgroupGoneError` if the pod has ended, `KernelFileError` if a file cannot be read.
        """
        now = self._read()
        previous, self._previous = self._previous, now
        if previous is None:
            return {}
        deltas = {id: growth(now[id], previous.get(id, _ZERO)) for id in now}
        return {id: delta for id, delta in deltas.items() if delta is not None}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _read(self) -> dict[str, Throttling]:
        paths = list_containers(self._layout, self._driver, self._pod)
        for id in self._files.keys() - paths.keys():
            self._files.pop(id).close()
        readings = {}
        for id, path in paths.items():
            if id not in self._files:
                self._files[id] = Bandwidth(self._layout, path)
            try:
                counters = self._files[id].read()
            except CgroupGoneError:  # the container ended after the listing
                self._files.pop(id).close()
                continue
            if counters is not None:
                readings[id] = counters
        return readings
