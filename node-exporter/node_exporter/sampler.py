"""Collect the usage of node, pods, tiers and host applications since the previous collection.

The sampler reads every second at low cost: descriptors stay open, three directory listings discover
pods, and counters that are needed as means only (pressure, network, disks) are read every few
seconds. A failed reading costs one sample of one entity.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from node_exporter.collection import (
    NODE,
    Collection,
    ContainerGrowth,
    Entity,
    Rates,
    Usage,
)
from node_exporter.container_counters import PodContainers
from node_exporter.counter_deltas import PressureReading, all_pressure, growth, stall_growth
from node_exporter.gauge_files import check_gauges, read_gauges
from node_exporter.host_apps import add_host_apps, check_host_apps, host_app_path
from node_exporter.kernel import formulas
from node_exporter.kernel.cgroup import Cgroup, Layout, detect_layout, open_cgroup
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, kube_qos_of_path, qos_dir
from node_exporter.kernel.discovery import PodDir, detect_driver, has_kubepods, list_pods
from node_exporter.kernel.node_files import NodeFiles, ticks_per_second
from node_exporter.kernel.parse_files import Throttling, Traffic
from node_exporter.system_remainder import Latest, system_usage
from pipeline.clock import Clock
from pipeline.errors import CgroupGoneError, KernelError, KernelFileError
from pipeline.logs import get_logger
from pipeline.settings import ExporterSettings, HostApplication
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
"""Features that a kernel may lack; their values are unknown then."""

# A previous reading older than this many intervals is discarded.
_MAX_AGE_INTERVALS: Final = 20
# Interval of warnings about a persistent failure.
_WARN_INTERVAL_SECONDS: Final = 60.0
# Missing files may appear: a module was loaded, a directory created.
_REOPEN_SECONDS: Final = 60.0
# Interval of pods' pressure, network, disks, gauges, of containers without a CPU limit and of the
# throttling of pods without one; the end of a window reads them, too.
_SLOW_SECONDS: Final = 5.0

log = get_logger(__name__)


class _Reading(NamedTuple):
    """Counters of a cgroup or the node; `at` is on the monotonic clock."""

    at: float
    cpu_ns: int
    throttling: Throttling | None = None


@dataclass(slots=True, eq=False)
class _Tracked:
    """A cgroup that every tick reads, and its previous reading."""

    entity: Entity
    path: str
    cgroup: Cgroup
    previous: _Reading | None = None
    latest: Latest | None = None
    previous_pressure: PressureReading | None = None
    containers: PodContainers | None = None

    def close(self) -> None:
        self.cgroup.close()
        if self.containers is not None:
            self.containers.close()


class Sampler:
    """Reads one node. Call `collect` once per tick and `close` at the end."""

    def __init__(self, settings: ExporterSettings, clock: Clock) -> None:
        """Raises `KernelFileError` without cgroups below the root or without /proc."""
        self._settings = settings
        self._clock = clock
        self._layout: Layout = detect_layout(str(settings.cgroup_root))
        self._files = NodeFiles(str(settings.proc_root), str(settings.sys_root))
        self._driver: Driver | None = None
        self._pods: list[PodDir] = []
        self._kubepods_seen = True  # so that the first miss warns
        self._tracked: dict[tuple[Kind, str], _Tracked] = {}
        self._pod_paths: list[tuple[Entity, str]] = []
        self._tracked_paths: list[tuple[Entity, str]] = []
        driver = settings.cgroup_driver
        self._drivers = tuple(Driver) if driver == "auto" else (Driver(driver),)
        check_gauges(settings.gauges)
        check_host_apps(settings.host_applications, self._drivers, settings.cgroup_parent)
        self.host_applications = settings.host_applications
        """The applications that are measured."""
        self._root = open_cgroup(self._layout, "")
        self._node_latest: Latest | None = None
        self._node_previous: _Reading | None = None
        self._node_pressure: PressureReading | None = None
        self._traffic: tuple[float, Traffic | None, Traffic | None] | None = None
        self._slow_at: float | None = None
        self._opened_at = clock.monotonic()
        self._max_age_seconds = _MAX_AGE_INTERVALS * settings.collect_interval_seconds
        self._max_slow_age_seconds = self._max_age_seconds + _SLOW_SECONDS
        self.unsupported: frozenset[str] = frozenset()
        """Features that no reading so far has found in this kernel."""
        self._offered: dict[str, bool] = {}
        self._warned_at: dict[str, float] = {}
        self.failure: KernelError | None = None
        """Error of the last reading of the node, None if it succeeded."""
        self._files.ticks()
        self._files.meminfo()

    def collect(self, at_ms: int, *, ends_window: bool = False) -> Collection:
        """Read everything once for the grid point `at_ms`."""
        dropped: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        if self._clock.monotonic() - self._opened_at >= _REOPEN_SECONDS:
            self._reopen()
        slow = self._is_slow(ends_window)
        self.failure = None
        node = self._attempt("node", errors, lambda: self._read_node(slow, dropped))
        self._attempt("pods", errors, self._update_tracked)
        usages = [] if node is None else [node]
        usages.extend(self._read_tracked(slow, dropped, errors))
        rates = self._attempt("traffic", errors, self._read_rates) if slow else None
        gauges = self._read_gauges(errors) if slow else {}
        if slow:
            self._update_unsupported()
        return Collection(at_ms, tuple(usages), rates, self._system(), dropped, errors, gauges)

    def add_host_applications(self, of_policy: Iterable[HostApplication]) -> list[KernelError]:
        """Measure the applications of the settings and these; returns why some are left out."""
        self.host_applications, errors = add_host_apps(
            self._settings.host_applications,
            of_policy,
            self._drivers,
            self._settings.cgroup_parent,
        )
        return errors

    def capacity(self) -> tuple[int | None, int | None]:
        """(online CPUs, MemTotal in bytes) of the node."""
        errors: Counter[str] = Counter()
        cpus = self._attempt("node", errors, self._files.online_cpus)
        memory = self._attempt("node", errors, self._files.meminfo)
        return cpus, memory.total_bytes if memory else None

    def close(self) -> None:
        for tracked in self._tracked.values():
            tracked.close()
        self._tracked.clear()
        self._root.close()
        self._files.close()

    def _is_slow(self, ends_window: bool) -> bool:
        """Whether this collection reads pressure, network, disks and containers."""
        now = self._clock.monotonic()
        tolerance = self._settings.collect_interval_seconds / 2  # ticks are slightly early or late
        due = self._slow_at is None or now - self._slow_at >= _SLOW_SECONDS - tolerance
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
        self._slow_at = None  # only a slow collection opens the files of containers

    def _read_node(self, slow: bool, dropped: Counter[str]) -> Usage:
        at, ticks, memory = self._clock.monotonic(), self._files.ticks(), self._files.meminfo()
        cpu = _Reading(at, ticks * (1_000_000_000 // ticks_per_second()))
        cpu_ns, elapsed = self._cpu_growth(cpu, self._node_previous, dropped)
        self._node_previous = cpu
        cold = self._root.cold_bytes()
        stall, pressure = None, all_pressure(self._files.pressure)
        if slow:
            self._record_feature("node_pressure", pressure is not None)
            stall, self._node_pressure = stall_growth(
                at, pressure, self._node_pressure, self._max_slow_age_seconds
            )
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
            None,
            pressure,
        )
        self._node_latest = Latest(at, usage)
        return usage

    def _update_tracked(self) -> None:
        """Track exactly the cgroups of the current entities."""
        paths = self._entity_paths()
        if paths == self._tracked_paths:
            return
        wanted = {(entity.kind, entity.id): (entity, path) for entity, path in paths}
        for key, tracked in list(self._tracked.items()):
            if wanted.get(key) != (tracked.entity, tracked.path):
                self._tracked.pop(key).close()
        for key, (entity, path) in wanted.items():
            if key not in self._tracked:
                self._tracked[key] = self._track(entity, path)
        self._tracked_paths = paths

    def _track(self, entity: Entity, path: str) -> _Tracked:
        tracked = _Tracked(entity, path, open_cgroup(self._layout, path))
        if entity.kind == "pod" and self._driver is not None:
            pod = PodDir(entity.id, kube_qos_of_path(path), path)
            tracked.containers = PodContainers(self._layout, self._driver, pod)
        return tracked

    def _entity_paths(self) -> list[tuple[Entity, str]]:
        """All entities that have or may have a cgroup, with its path."""
        parent, setting = self._settings.cgroup_parent, self._settings.cgroup_driver
        if setting != "auto":
            self._driver = Driver(setting)
        elif not self._pods:  # pods may appear, also under another driver
            self._driver = detect_driver(self._layout, parent)
        self._check_kubepods(parent)
        driver = self._driver
        pods = [] if driver is None else list_pods(self._layout, driver, parent)
        if pods != self._pods:
            self._pods = pods
            self._pod_paths = [
                (Entity("pod", pod.uid, pod.kube_qos.value), pod.path) for pod in pods
            ]
        paths = [*self._pod_paths]
        if driver is not None:
            besteffort = qos_dir(driver, KubeQOS.BEST_EFFORT, parent)
            paths.append((Entity("tier", BESTEFFORT_TIER, None), besteffort))
        for app in self.host_applications:
            path = host_app_path(app, driver or Driver.CGROUPFS, parent)
            paths.append((Entity("host_app", app.name, app.qos or None), path))
        return paths

    def _check_kubepods(self, parent: str) -> None:
        seen = self._driver is not None and has_kubepods(self._layout, self._driver, parent)
        if self._kubepods_seen and not seen:
            log.warning(
                "kubepods does not exist, no pods are measured",
                below=str(Path(self._layout.cpu, parent)),
                driver=self._settings.cgroup_driver,
                hint="on a Kubernetes node set exporter.cgroup_parent to the kubelet's "
                "--cgroup-root, and leave exporter.cgroup_driver at auto",
            )
        self._kubepods_seen = seen

    def _read_tracked(
        self, slow: bool, dropped: Counter[str], errors: Counter[str]
    ) -> Iterable[Usage]:
        ended: list[tuple[Kind, str]] = []
        for key, tracked in self._tracked.items():
            entity = tracked.entity
            try:
                yield self._read_cgroup(tracked, slow, dropped, errors)
            except CgroupGoneError:
                ended.append(key)
            except KernelFileError as error:
                errors[entity.kind] += 1
                dropped["unreadable"] += 1
                self._warn(entity.kind, error)
        for key in ended:
            self._tracked.pop(key).close()
            self._tracked_paths = []  # another cgroup may have its path

    def _read_cgroup(
        self, tracked: _Tracked, slow: bool, dropped: Counter[str], errors: Counter[str]
    ) -> Usage:
        cgroup = tracked.cgroup
        at = self._clock.monotonic()
        previous = tracked.previous
        limits = None if previous is None else previous.throttling
        may_be_limited = limits is None or limits.periods > 0
        used_ns, throttling = cgroup.cpu(with_throttling=slow or may_be_limited)
        memory = cgroup.memory()
        cpu_ns = elapsed = throttled = None
        if used_ns is not None:
            cpu = _Reading(at, used_ns, throttling)
            cpu_ns, elapsed = self._cpu_growth(cpu, previous, dropped)
            if previous is not None:
                if cpu_ns is not None:
                    throttled = growth(throttling, limits)
                if throttling is None:
                    cpu = cpu._replace(throttling=limits)
            tracked.previous = cpu
        stall = pressure = None
        if slow:
            self._record_feature("cpu", used_ns is not None)
            self._record_feature("throttling", throttling is not None)
            self._record_feature("memory", memory is not None)
            pressure = all_pressure(cgroup.pressure)
            self._record_feature("pod_pressure", pressure is not None)
            stall, tracked.previous_pressure = stall_growth(
                at, pressure, tracked.previous_pressure, self._max_slow_age_seconds
            )
        containers = self._read_containers(tracked, at, slow, errors)
        without = with_cache = hot = None
        if memory is not None:
            without = memory.anon_bytes
            with_cache = without + memory.file_bytes
            if tracked.entity.kind == "host_app":
                with_cache = cgroup.charged_bytes()
            hot = _hot(with_cache, cgroup.cold_bytes())
        if slow:
            self._record_feature("hot_page_cache", hot is not None)
        usage = Usage(
            tracked.entity,
            cpu_ns,
            elapsed,
            without,
            with_cache,
            hot,
            throttled,
            stall,
            containers,
            pressure,
        )
        tracked.latest = Latest(at, usage)
        return usage

    def _read_containers(
        self, tracked: _Tracked, at: float, slow: bool, errors: Counter[str]
    ) -> Mapping[str, ContainerGrowth] | None:
        containers = tracked.containers
        if containers is None:
            return None
        try:
            return containers.read_all(at) if slow else containers.read_limited(at)
        except KernelFileError as error:
            errors["container"] += 1
            self._warn("container", error)
            return None

    def _system(self) -> Usage | None:
        parts = [t.latest for t in self._tracked.values() if t.entity.kind != "tier"]
        oldest = self._clock.monotonic() - self._settings.system_outdated_seconds
        return system_usage(self._node_latest, parts, oldest)

    def _cpu_growth(
        self, now: _Reading, previous: _Reading | None, dropped: Counter[str]
    ) -> tuple[int | None, float | None]:
        if previous is None:
            return None, None
        elapsed = now.at - previous.at
        if now.cpu_ns < previous.cpu_ns:
            dropped["counter_went_backwards"] += 1
            return None, None
        if elapsed > self._max_age_seconds or elapsed <= 0:
            dropped["previous_too_old"] += 1
            return None, None
        return now.cpu_ns - previous.cpu_ns, elapsed

    def _read_rates(self) -> Rates | None:
        at, network, disk = self._clock.monotonic(), self._files.network(), self._files.disks()
        self._record_feature("network", network is not None)
        self._record_feature("disk", disk is not None)
        previous, self._traffic = self._traffic, (at, network, disk)
        if previous is None or at - previous[0] > self._max_slow_age_seconds:
            return None
        return Rates(at - previous[0], growth(network, previous[1]), growth(disk, previous[2]))

    def _read_gauges(self, errors: Counter[str]) -> dict[str, float]:
        gauges: dict[str, float] = {}
        for name, value in read_gauges(self._settings.gauges):
            if isinstance(value, KernelError):
                errors["gauge"] += 1
                self._warn(name, value)
            else:
                gauges[name] = value
        return gauges

    def _attempt(
        self, kind: str, errors: Counter[str], read: Callable[[], ValueT]
    ) -> ValueT | None:
        try:
            return read()
        except KernelError as error:
            errors[kind] += 1
            if kind == "node":
                self.failure = error
            self._warn(kind, error)
            return None

    def _warn(self, kind: str, error: KernelError) -> None:
        """Log the first failure of a kind, then at most one warning a minute."""
        now = self._clock.monotonic()
        if now - self._warned_at.get(kind, -math.inf) >= _WARN_INTERVAL_SECONDS:
            self._warned_at[kind] = now
            log.warning("cannot read usage", kind=kind, why=error)

    def _record_feature(self, feature: str, offered: bool) -> None:
        # One entity is enough: a single pod may lack a directory.
        self._offered[feature] = self._offered.get(feature, False) or offered

    def _update_unsupported(self) -> None:
        missing = frozenset(name for name, offered in self._offered.items() if not offered)
        if added := missing - self.unsupported:
            log.info("kernel lacks features, their values are unknown", features=sorted(added))
        self.unsupported = missing


def _hot(with_page_cache: int | None, cold: int | None) -> int | None:
    if with_page_cache is None or cold is None:
        return None
    return formulas.hot_bytes(with_page_cache, cold)
