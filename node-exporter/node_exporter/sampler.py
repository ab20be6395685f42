"""One collection: what node, pods, tiers and host applications used since the last one.

Reads every second on a small budget: descriptors stay open, pods are found by three directory
listings, and what is only needed as a mean (pressure, network, disks) is read every few seconds,
since its counters lose nothing in between. What cannot be read costs one sample of one entity.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from node_exporter.collection import NODE, Collection, Entity, Rates, Usage
from node_exporter.container_throttling import PodContainers
from node_exporter.counter_deltas import all_pressure, growth, moved, stalled
from node_exporter.host_apps import check_host_apps, host_app_path
from node_exporter.kernel import formulas
from node_exporter.kernel.cgroup import (
    Cgroup,
    Layout,
    detect_layout,
    open_cgroup,
)
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, kube_qos_of_path, qos_dir
from node_exporter.kernel.discovery import PodDir, detect_driver, has_kubepods, list_pods
from node_exporter.kernel.node_files import NodeFiles, ticks_per_second
from node_exporter.kernel.parse_files import CpuTicks, Pressure, Throttling, Traffic
from node_exporter.system_remainder import Latest, system_usage
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError, KernelError, KernelFileError
from pipeline.logs import get_logger
from pipeline.settings import ExporterSettings
from pipeline.topics.samples import BESTEFFORT_TIER, Kind

ValueT = TypeVar("ValueT")

FEATURES: Final = (
    "cpu",
    "memory",
    "throttling",
    "hot_page_cache",
    "node_pressure",
    "pod_pressure",
    "network",
    "disk",
)
"""What a kernel may not offer; its values are unknown then."""

# A reading older than this many intervals says nothing about the present: the next one starts anew.
_FORGET_INTERVALS: Final = 20
# What goes on failing is said this often.
_SAY_AGAIN_SECONDS: Final = 60.0
# A file that was not offered may be by now: a module was loaded, a directory made.
_REOPEN_SECONDS: Final = 60.0
# Pressure, network, disks and containers are read this often (and at the end of windows).
_SLOW_SECONDS: Final = 5.0

log = get_logger(__name__)


class _Previous(NamedTuple):
    at: float
    cpu_ns: int
    throttling: Throttling | None


@dataclass(slots=True, eq=False)
class _Tracked:
    """A cgroup that is read at every tick, and its last reading."""

    entity: Entity
    path: str
    cgroup: Cgroup
    previous: _Previous | None = None
    latest: Latest | None = None
    stalled: tuple[float, tuple[Pressure, ...]] | None = None
    containers: PodContainers | None = None

    def close(self) -> None:
        self.cgroup.close()
        if self.containers is not None:
            self.containers.close()


class Sampler:
    """Reads one node. `collect` is called once per tick, `close` at the end."""

    def __init__(self, settings: ExporterSettings, clock: Clock) -> None:
        """Raises `KernelFileError` if there are no cgroups below the root, or no /proc."""
        self._settings = settings
        self._clock = clock
        self._layout: Layout = detect_layout(str(settings.cgroup_root))
        self._files = NodeFiles(str(settings.proc_root), str(settings.sys_root))
        self._driver: Driver | None = None
        self._pods: list[PodDir] = []
        self._kubepods_seen = True  # until it is looked for
        self._tracked: dict[tuple[Kind, str], _Tracked] = {}
        given = settings.cgroup_driver
        drivers = tuple(Driver) if given == "auto" else (Driver(given),)
        check_host_apps(settings.host_applications, drivers, settings.cgroup_parent)
        self._root = open_cgroup(self._layout, "")
        self._node_latest: Latest | None = None
        self._node_previous: tuple[float, CpuTicks] | None = None
        self._node_stalled: tuple[float, tuple[Pressure, ...]] | None = None
        self._traffic: tuple[float, Traffic | None, Traffic | None] | None = None
        self._slow_at: float | None = None
        self._opened_at = clock.monotonic()
        self._forget_seconds = _FORGET_INTERVALS * settings.collect_interval_seconds
        self._forget_slow = self._forget_seconds + _SLOW_SECONDS
        self.unsupported: frozenset[str] = frozenset()
        """Features that this kernel, as far as it was read, does not offer."""
        self._seen: dict[str, bool] = {}
        self._said: dict[str, float] = {}
        self.failure: KernelError | None = None
        """Why the node itself could not be read the last time, None if it could."""
        self._files.ticks()
        self._files.meminfo()

    def collect(self, at_ms: int, *, ends_window: bool = False) -> Collection:
        """Read everything once, for the grid point `at_ms`."""
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        slow = self._is_slow(ends_window)
        if self._clock.monotonic() - self._opened_at >= _REOPEN_SECONDS:
            self._reopen()
        self.failure = None
        node = self._attempt("node", errors, lambda: self._read_node(slow, dropped))
        self._attempt("pods", errors, self._follow_pods)
        usages = [] if node is None else [node]
        usages.extend(self._read_tracked(slow, dropped, errors))
        rates = self._attempt("traffic", errors, self._read_rates) if slow else None
        self._state_unsupported()
        return Collection(at_ms, tuple(usages), rates, self._system(), dropped, errors)

    def capacity(self) -> tuple[int | None, int | None]:
        """(online CPUs, MemTotal in bytes) of the node."""
        errors: Counter[str] = Counter()
        cpus = self._attempt("node", errors, self._files.online_cpus)
        memory = self._attempt("node", errors, self._files.meminfo)
        return cpus, memory.total_bytes if memory else None

    def close(self) -> None:
        """Give back all open files."""
        for tracked in self._tracked.values():
            tracked.close()
        self._tracked.clear()
        self._root.close()
        self._files.close()

    def _is_slow(self, ends_window: bool) -> bool:
        """Whether this collection reads what needs no reading at every tick."""
        now = self._clock.monotonic()
        early = self._settings.collect_interval_seconds / 2  # ticks come a little early or late
        due = self._slow_at is None or now - self._slow_at >= _SLOW_SECONDS - early
        if due or ends_window:
            self._slow_at = now
        return due or ends_window

    def _reopen(self) -> None:
        self._opened_at = self._clock.monotonic()
        self._root.close()
        self._files.close()
        for tracked in self._tracked.values():
            tracked.close()
            tracked.cgroup = open_cgroup(self._layout, tracked.path)

    def _read_node(self, slow: bool, dropped: Counter[str]) -> Usage:
        at, ticks, memory = self._clock.monotonic(), self._files.ticks(), self._files.meminfo()
        cpu_ns = elapsed = None
        if self._node_previous is not None:
            before, previous = self._node_previous
            cpu_ns, elapsed = self._since(
                at, ticks.busy, before, previous.busy, dropped, 1_000_000_000 // ticks_per_second()
            )
        self._node_previous = (at, ticks)
        cold = self._root.cold_bytes()
        stall = None
        if slow:
            now = all_pressure(self._files.pressure)
            self._note("node_pressure", now is not None)
            stall, self._node_stalled = stalled(at, now, self._node_stalled, self._forget_slow)
        with_cache = memory.used_with_page_cache_bytes
        usage = Usage(
            NODE,
            cpu_ns,
            elapsed,
            memory.used_bytes,
            with_cache,
            _hot(with_cache, cold),
            None,
            stall,
        )
        self._node_latest = Latest(at, usage)
        return usage

    def _follow_pods(self) -> None:
        """Track the cgroups that are there now, and no others."""
        wanted = {(entity.kind, entity.id): (entity, path) for entity, path in self._places()}
        for key, tracked in list(self._tracked.items()):
            if wanted.get(key) != (tracked.entity, tracked.path):
                self._forget(key)
        for key, (entity, path) in wanted.items():
            if key not in self._tracked:
                self._tracked[key] = self._track(entity, path)

    def _track(self, entity: Entity, path: str) -> _Tracked:
        tracked = _Tracked(entity, path, open_cgroup(self._layout, path))
        if entity.kind == "pod" and self._driver is not None:
            pod = PodDir(entity.id, kube_qos_of_path(path), path)
            tracked.containers = PodContainers(self._layout, self._driver, pod)
        return tracked

    def _places(self) -> list[tuple[Entity, str]]:
        """Each entity that has a cgroup, or may have one, and where that is."""
        parent, given = self._settings.cgroup_parent, self._settings.cgroup_driver
        if given != "auto":
            self._driver = Driver(given)
        elif not self._pods:  # they may come, or come back under another driver
            self._driver = detect_driver(self._layout, parent)
        self._note_kubepods(parent)
        driver, places = self._driver, []
        self._pods = [] if driver is None else list_pods(self._layout, driver, parent)
        for pod in self._pods:
            places.append((Entity("pod", pod.uid, pod.kube_qos.value), pod.path))
        if driver is not None:
            besteffort = qos_dir(driver, KubeQOS.BEST_EFFORT, parent)
            places.append((Entity("tier", BESTEFFORT_TIER, None), besteffort))
        for app in self._settings.host_applications:
            path = host_app_path(app, driver or Driver.CGROUPFS, parent)
            places.append((Entity("host_app", app.name, app.qos or None), path))
        return places

    def _note_kubepods(self, parent: str) -> None:
        """Warn when kubepods is not where it should be, once each time that it goes."""
        seen = self._driver is not None and has_kubepods(self._layout, self._driver, parent)
        if self._kubepods_seen and not seen:
            log.warning(
                "no kubepods: no pods are measured",
                below=str(Path(self._layout.cpu, parent)),
                driver=self._settings.cgroup_driver,
                hint="on a Kubernetes node set exporter.cgroup_parent to the kubelet's "
                "--cgroup-root, and leave exporter.cgroup_driver at auto",
            )
        self._kubepods_seen = seen

    def _forget(self, key: tuple[Kind, str]) -> None:
        self._tracked.pop(key).close()

    def _read_tracked(
        self, slow: bool, dropped: Counter[str], errors: Counter[str]
    ) -> Iterable[Usage]:
        gone: list[tuple[Kind, str]] = []
        for key, tracked in self._tracked.items():
            entity = tracked.entity
            try:
                yield self._read_one(tracked, slow, dropped, errors)
            except CgroupGoneError:
                gone.append(key)
            except KernelFileError as error:
                errors[entity.kind] += 1
                dropped["unreadable"] += 1
                self._say(entity.kind, error)
        for key in gone:
            self._forget(key)

    def _read_one(
        self, tracked: _Tracked, slow: bool, dropped: Counter[str], errors: Counter[str]
    ) -> Usage:
        cgroup = tracked.cgroup
        at = self._clock.monotonic()
        used_ns, throttling = cgroup.cpu()
        memory = cgroup.memory()
        cpu_ns = elapsed = grown = None
        if used_ns is not None:
            if (previous := tracked.previous) is not None:
                cpu_ns, elapsed = self._since(at, used_ns, previous.at, previous.cpu_ns, dropped, 1)
                if cpu_ns is not None:
                    grown = growth(throttling, previous.throttling)
            tracked.previous = _Previous(at, used_ns, throttling)
        stall = containers = None
        if slow:
            now = all_pressure(cgroup.pressure)
            self._note("pod_pressure", now is not None)
            stall, tracked.stalled = stalled(at, now, tracked.stalled, self._forget_slow)
            containers = self._read_containers(tracked, errors)
        self._note("cpu", used_ns is not None)
        self._note("throttling", throttling is not None)
        self._note("memory", memory is not None)
        without = with_cache = hot = None
        if memory is not None:
            without = memory.anon_bytes
            with_cache = without + memory.file_bytes
            if tracked.entity.kind == "host_app":
                with_cache = cgroup.charged_bytes()
            hot = _hot(with_cache, cgroup.cold_bytes())
        self._note("hot_page_cache", hot is not None)
        usage = Usage(
            tracked.entity, cpu_ns, elapsed, without, with_cache, hot, grown, stall, containers
        )
        tracked.latest = Latest(at, usage)
        return usage

    def _read_containers(
        self, tracked: _Tracked, errors: Counter[str]
    ) -> Mapping[str, Throttling] | None:
        if tracked.containers is None:
            return None
        try:
            return tracked.containers.grown()
        except KernelFileError as error:
            errors["container"] += 1
            self._say("container", error)
            return None

    def _system(self) -> Usage | None:
        parts = [t.latest for t in self._tracked.values() if t.entity.kind != "tier"]
        oldest = self._clock.monotonic() - self._settings.system_outdated_seconds
        return system_usage(self._node_latest, parts, oldest)

    def _since(
        self, at: float, now: int, before: float, previous: int, dropped: Counter[str], unit_ns: int
    ) -> tuple[int | None, float | None]:
        elapsed = at - before
        if now < previous:
            dropped["counter_went_backwards"] += 1
            return None, None
        if elapsed > self._forget_seconds or elapsed <= 0:
            dropped["previous_too_old"] += 1
            return None, None
        return (now - previous) * unit_ns, elapsed

    def _read_rates(self) -> Rates | None:
        at, network, disk = self._clock.monotonic(), self._files.network(), self._files.disks()
        self._note("network", network is not None)
        self._note("disk", disk is not None)
        before, self._traffic = self._traffic, (at, network, disk)
        if before is None or at - before[0] > self._forget_slow:
            return None
        return Rates(at - before[0], moved(network, before[1]), moved(disk, before[2]))

    def _attempt(
        self, what: str, errors: Counter[str], read: Callable[[], ValueT]
    ) -> ValueT | None:
        try:
            return read()
        except KernelError as error:
            errors[what] += 1
            if what == "node":
                self.failure = error
            self._say(what, error)
            return None

    def _say(self, kind: str, error: KernelError) -> None:
        """Warn of the first failure of a kind, and then once a minute while it goes on."""
        now = self._clock.monotonic()
        if (said := self._said.get(kind)) is None or now - said >= _SAY_AGAIN_SECONDS:
            self._said[kind] = now
            log.warning("cannot be read", kind=kind, why=error)

    def _note(self, feature: str, offered: bool) -> None:
        # Offered to one entity is offered: a pod of its own may lack a directory.
        self._seen[feature] = self._seen.get(feature, False) or offered

    def _state_unsupported(self) -> None:
        missing = frozenset(name for name, offered in self._seen.items() if not offered)
        if news := missing - self.unsupported:
            log.info("not offered by this kernel, reported as unknown", features=sorted(news))
        self.unsupported = missing


def _hot(with_page_cache: int | None, cold: int | None) -> int | None:
    if with_page_cache is None or cold is None:
        return None
    return formulas.hot_bytes(with_page_cache, cold)
