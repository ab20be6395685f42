"""Find the cgroups of pods and of those of their containers that the view has.

Directories that inotify watches are listed when something was made or removed in them, and every 30
seconds. Others are listed every second (those of pods), or every five (those of containers).
"""

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from node_exporter.kernel.cgroup import Layout
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, qos_dir
from node_exporter.kernel.discovery import PodDir, list_containers, list_pods
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError
from pipeline.processors.node_qos.node_state import BEST_EFFORT, PodState
from pipeline.processors.node_qos.view_facts import ViewFacts

_LISTING_SECONDS: Final = 5.0
_WATCHED_SECONDS: Final = 30.0
"""Age from which a directory is listed again although it is watched and nothing changed."""


class KnownPod(NamedTuple):
    """A pod without usage, as its cgroups were `at` a monotonic time. `uid` is that in the name of
    its cgroup, `ids` are those of its containers, of which the view `facts` has `containers`."""

    at: float
    facts: ViewFacts
    uid: str
    state: PodState
    ids: tuple[str, ...]
    containers: int


class PodCgroups:
    """The pods below the kubelet's cgroup `parent`. `changed` is that of `CgroupInotify`."""

    def __init__(
        self, layout: Layout, parent: str, changed: Callable[[str], bool | None], clock: Clock
    ) -> None:
        self._layout, self._parent, self._changed, self._clock = layout, parent, changed, clock
        self._listed_at, self._driver = -math.inf, Driver.CGROUPFS
        self._listed: list[PodDir] = []
        self._known: dict[PodDir, KnownPod] = {}

    def find(self, driver: Driver, facts: ViewFacts) -> Collection[KnownPod]:
        """All pods that have a cgroup now, by UID, with their containers of the view. Raises
        `KernelFileError` if a directory cannot be listed."""
        now, known = self._clock.monotonic(), dict[PodDir, KnownPod]()
        former, self._known = self._known, known  # after an error the others are listed again
        for directory in self._pods(driver, now):
            pod = former.get(directory)
            changed = self._changed(directory.path)
            if pod is None or pod.facts is not facts or _misses_containers(pod, changed, now):
                with suppress(CgroupGoneError):
                    known[directory] = self._find_containers(driver, facts, directory, now)
            else:
                known[directory] = pod
        return known.values()

    def _pods(self, driver: Driver, now: float) -> list[PodDir]:
        directories = [qos_dir(driver, kube_qos, self._parent) for kube_qos in KubeQOS]
        is_same = [self._changed(directory) is False for directory in directories]
        age = now - self._listed_at
        if not all(is_same) or driver is not self._driver or age >= _WATCHED_SECONDS:
            self._listed_at = -math.inf  # after an error they are listed again
            self._listed = list_pods(self._layout, driver, self._parent)
            self._listed_at, self._driver = now, driver
        return self._listed

    def _find_containers(
        self, driver: Driver, facts: ViewFacts, directory: PodDir, now: float
    ) -> KnownPod:
        """Find the containers of the view that have a cgroup. Raises `CgroupGoneError` if the pod
        has ended."""
        pod = facts.pods.get(directory.uid)
        if pod is None:
            pod = PodState(uid=directory.uid, path="", kube_qos=BEST_EFFORT, listed=False)
        of_view = facts.containers.get(directory.uid, {})
        paths = list_containers(self._layout, driver, directory) if of_view else {}
        containers = {
            id: msgspec.structs.replace(container, path=paths[id])
            for id, container in of_view.items()
            if id in paths
        }
        state = msgspec.structs.replace(
            pod,
            path=directory.path,
            kube_qos=directory.kube_qos.value,
            containers=tuple(containers.values()),
        )
        return KnownPod(now, facts, directory.uid, state, tuple(containers), len(of_view))


def _misses_containers(pod: KnownPod, changed: bool | None, now: float) -> bool:
    """Whether containers may have started or ended since."""
    if changed is None:
        return len(pod.ids) < pod.containers or now - pod.at >= _LISTING_SECONDS
    return changed or now - pod.at >= _WATCHED_SECONDS
