"""Put the state of this node together: its view, its usage, its cgroups and its CPUs.

What a view says is decoded once for each view. Pods and containers are those that have a cgroup
now; a pod without one is left out, a cgroup without a pod of the view is an unlisted pod.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from actuators.node import node_metrics
from actuators.node.block_devices import read_block_devices
from actuators.node.cgroup_files import CgroupFiles
from actuators.node.cpu_manager_state import CpuManagerState
from actuators.node.cpu_topology import CpuTopology
from actuators.node.live_usage import HISTORY_SECONDS, CollectedCores, LiveUsage
from actuators.node.newest_view import NewestView
from actuators.node.pod_cgroups import KnownPod, PodCgroups
from node_exporter.host_apps import add_host_apps, host_app_path
from node_exporter.kernel.cgroup import Layout
from node_exporter.kernel.cgroup_paths import Driver, KubeQOS, is_within, qos_dir
from node_exporter.kernel.discovery import detect_driver
from node_exporter.kernel.node_files import NodeFiles
from node_exporter.node_policy import StatedApplications, host_applications
from pipeline.clock import Clock
from pipeline.errors import KernelError
from pipeline.logs import get_logger
from pipeline.processors.node_qos.be_cpu_satisfaction import (
    real_limit_millicores,
    satisfaction_rule,
)
from pipeline.processors.node_qos.cgroup_values import UNLIMITED, CpuSet, Knob, Place, Value
from pipeline.processors.node_qos.cut_pods import with_former_details
from pipeline.processors.node_qos.node_state import (
    BEST_EFFORT,
    BlockDevices,
    HostAppState,
    NodeState,
    PodState,
)
from pipeline.processors.node_qos.view_facts import ViewFacts, view_facts
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.settings import ExporterSettings, HostApplication
from pipeline.topics.node_views import NodeViewRecord
from pipeline.tracing import Received

# When the view or the pods change, cgroups are listed at once.
_LISTING_SECONDS: Final = 5.0
_DEVICES_SECONDS: Final = 30.0
"""Age from which block devices and mounts are read again."""

log = get_logger(__name__)


class _CpuSets(NamedTuple):
    """Cgroups below that of BestEffort, as they were `at` a monotonic time."""

    at: float
    view: NodeViewRecord
    pods: tuple[str, ...]
    paths: tuple[str, ...]


class NodeReading:
    """Reads the state of the node of `view`."""

    def __init__(
        self,
        exporter: ExporterSettings,
        layout: Layout,
        files: CgroupFiles,
        view: NewestView,
        usage: LiveUsage,
        cpu_manager: CpuManagerState,
        pod_cgroups: PodCgroups,
        clock: Clock,
    ) -> None:
        self.node = view.node
        self.cause: Received | None = None
        """The trace that the view in force continues, for the round that takes it up."""
        self._pod_cgroups = pod_cgroups
        self._cpu_manager = cpu_manager
        self._exporter, self._layout, self._files = exporter, layout, files
        self._view, self._usage, self._clock = view, usage, clock
        self._topology = CpuTopology(str(exporter.sys_root))
        self._node_files = NodeFiles(str(exporter.proc_root), str(exporter.sys_root))
        self._record: NodeViewRecord | None = None
        self._complete: NodeViewRecord | None = None
        self._facts: ViewFacts | None = None
        self._applications: tuple[HostApplication, ...] = exporter.host_applications
        self._basis: tuple[object, ...] = ()
        self._revision = 0
        self._cpusets: _CpuSets | None = None
        self._recent: deque[tuple[float, float]] = deque()
        self._devices: tuple[float, BlockDevices | None] = (-_DEVICES_SECONDS, None)

    async def read(self, *, is_early: bool = False) -> NodeState | None:
        """The state now; None before the first view, and without a kubepods directory. Raises
        `KernelError` if the node cannot be read."""
        if is_early:
            self._cpusets = None
        cpus = self._topology.cpus()
        collections = await self._usage.refresh(len(cpus))
        driver, facts = self._driver(), self._view_facts()
        if driver is None or facts is None or self._record is None:
            return None
        parent = self._exporter.cgroup_parent
        best_effort = qos_dir(driver, KubeQOS.BEST_EFFORT, parent)
        host_apps = tuple(self._host_apps(driver, best_effort))
        self._note_recent(collections, facts, host_apps)
        known = self._pod_cgroups.find(driver, facts)
        pods = tuple(map(self._with_usage, known))
        devices = self._block_devices()
        best_effort_cgroups = self._best_effort_cgroups(best_effort, self._record, pods)
        cpu_manager_policy = self._cpu_manager.policy() or facts.cpu_manager_policy
        known_pods = [pod.state for pod in known]
        known_apps = [(app.path, app.qos) for app in host_apps]
        node = self._usage.of("node", "")
        at = self._usage.newest_seconds()
        return NodeState(
            node=self.node,
            at=self._clock.now() if at is None else at,
            is_early=is_early,
            cgroup_version=self._layout.version,
            slo=facts.slo,
            capacity=self._record.capacity,
            allocatable=self._record.allocatable,
            offered_batch=facts.offered_batch,
            offered_mid=facts.offered_mid,
            reservation=facts.reservation,
            cpu_normalization=facts.cpu_normalization,
            system_cpus=facts.system_cpus,
            system_cpus_exclusive=facts.system_cpus_exclusive,
            cpu_shared_pools=facts.cpu_shared_pools,
            cpu_manager_policy=cpu_manager_policy,
            cpus=cpus,
            cpu_cores=node.cpu_cores,
            memory_bytes=node.memory_bytes,
            memory_available_bytes=self._node_files.meminfo().available_bytes,
            best_effort_limit_millicores=self._best_effort_limit(facts.slo, best_effort, pods),
            recent_prod_cores=tuple(cores for _, cores in self._recent),
            cpu_pressure=node.cpu_pressure,
            memory_pressure=node.memory_pressure,
            block_devices=devices,
            kubepods_path=qos_dir(driver, KubeQOS.GUARANTEED, parent),
            burstable_path=qos_dir(driver, KubeQOS.BURSTABLE, parent),
            best_effort_path=best_effort,
            best_effort_cgroups=best_effort_cgroups,
            pods=pods,
            host_apps=host_apps,
            revision=self._revision_of(
                self._record, facts, best_effort, best_effort_cgroups, cpus, devices, known_pods,
                known_apps, cpu_manager_policy,
            ),
        )  # fmt: skip

    def usage_age_seconds(self) -> float | None:
        """Age of the newest usage; None before the first."""
        return self._usage.age_seconds()

    def view_age_seconds(self) -> float | None:
        """Time since the view was last confirmed; None before the first."""
        return self._view.age_seconds()

    def close(self) -> None:
        """Close all files and the connection."""
        self._usage.close()
        self._node_files.close()

    def _driver(self) -> Driver | None:
        if self._exporter.cgroup_driver != "auto":
            return Driver(self._exporter.cgroup_driver)
        return detect_driver(self._layout, self._exporter.cgroup_parent)

    def _view_facts(self) -> ViewFacts | None:
        """What the newest view says. An invalid policy leaves the last valid one in force."""
        record = self._view.record
        if record is None or record is self._record:
            return self._facts
        complete = with_former_details(record, self._complete)
        facts = view_facts(complete)
        if facts.problem:
            log.warning("the policy of the view is invalid, the last one stays", why=facts.problem)
            if self._facts is not None:
                facts = facts._replace(slo=self._facts.slo)
        else:
            self._applications = self._wanted_applications(record)
        self._record, self._complete, self._facts = record, complete, facts
        self.cause = self._view.received
        node_metrics.CUT_PODS.set(sum(pod.cut for pod in record.pods))
        node_metrics.VIEW_GENERATION.set(record.generation)
        return facts

    def _wanted_applications(self, record: NodeViewRecord) -> tuple[HostApplication, ...]:
        """The host applications of the settings and of the policy, as the exporter chooses them."""
        slo = msgspec.json.decode(record.slo, type=StatedApplications | None)
        of_policy, refused = host_applications(slo.host_applications or () if slo else ())
        driver = self._exporter.cgroup_driver
        applications, errors = add_host_apps(
            self._exporter.host_applications,
            of_policy,
            tuple(Driver) if driver == "auto" else (Driver(driver),),
            self._exporter.cgroup_parent,
        )
        if refused or errors:
            reasons = [*refused, *map(str, errors)]
            log.warning("host applications of the policy are left out", why=reasons)
        return applications

    def _note_recent(
        self,
        collections: Iterable[CollectedCores],
        facts: ViewFacts,
        host_apps: Iterable[HostAppState],
    ) -> None:
        """Add the CPU of each collection that is not best-effort's, and drop what is too old."""
        best_effort = {app.name for app in host_apps if app.in_best_effort}
        for collected in collections:
            self._recent.append((collected.at, _prod_cores(collected, facts, best_effort)))
        oldest = self._clock.monotonic() - HISTORY_SECONDS
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()

    def _with_usage(self, known: KnownPod) -> PodState:
        usage, containers = self._usage.of("pod", known.uid), []
        for container, id in zip(known.state.containers, known.ids, strict=True):
            of_container = self._usage.of_container(id)
            containers.append(
                msgspec.structs.replace(
                    container,
                    cpu_cores=of_container.cpu_cores,
                    throttled_ratio=of_container.throttled_ratio,
                )
            )
        return msgspec.structs.replace(
            known.state,
            containers=tuple(containers),
            cpu_cores=usage.cpu_cores,
            memory_bytes=usage.memory_bytes,
            throttled_ratio=usage.throttled_ratio,
            cpu_pressure=usage.cpu_pressure,
        )

    def _revision_of(self, *basis: object) -> int:
        """The revision of a state: it changes with anything that is no usage."""
        if basis != self._basis:
            self._basis = basis
            self._revision += 1
        return self._revision

    def _host_apps(self, driver: Driver, best_effort: str) -> Iterator[HostAppState]:
        for app in self._applications:
            path = host_app_path(app, driver, self._exporter.cgroup_parent)
            if Path(self._layout.cpu, path).is_dir():
                usage = self._usage.of("host_app", app.name)
                yield HostAppState(
                    name=app.name,
                    path=path,
                    qos=app.qos,
                    in_best_effort=app.qos == "BE" and is_within(path, best_effort),
                    cpu_cores=usage.cpu_cores,
                    memory_bytes=usage.memory_bytes,
                )

    def _best_effort_limit(
        self, slo: NodeSLOSpec | None, best_effort: str, pods: Iterable[PodState]
    ) -> int | None:
        """What quota and CPU sets let best-effort pods use now, if the policy has a rule for it."""
        thresholds = slo.resource_used_threshold_with_be if slo else None
        if thresholds is None or satisfaction_rule(thresholds) is None:
            return None
        containers = (c for pod in pods if pod.kube_qos == BEST_EFFORT for c in pod.containers)
        paths = [best_effort, *(container.path for container in containers)]
        sets = [self._value(Place(path, Knob.CPUSET)) for path in paths]
        quota = self._value(Place(best_effort, Knob.CPU_QUOTA))
        cpu_sets: list[CpuSet] = [cpus for cpus in sets if isinstance(cpus, frozenset)]
        return real_limit_millicores(cpu_sets, quota if isinstance(quota, int) else UNLIMITED)

    def _block_devices(self) -> BlockDevices | None:
        read_at, devices = self._devices
        now = self._clock.monotonic()
        if now - read_at >= _DEVICES_SECONDS:
            exporter = self._exporter
            devices = read_block_devices(str(exporter.sys_root), str(exporter.proc_root))
            self._devices = now, devices
        return devices

    def _value(self, place: Place) -> Value | None:
        try:
            return self._files.read(place)
        except KernelError:
            return None

    def _best_effort_cgroups(
        self, best_effort: str, view: NodeViewRecord, pods: Iterable[PodState]
    ) -> tuple[str, ...]:
        """All cgroups below that of BestEffort."""
        now = self._clock.monotonic()
        paths = tuple(pod.path for pod in pods if pod.kube_qos == BEST_EFFORT)
        known = self._cpusets
        is_same = known is not None and known.view is view and known.pods == paths
        if known is None or not is_same or now - known.at >= _LISTING_SECONDS:
            known = _CpuSets(now, view, paths, tuple(self._cpusets_below(best_effort)))
            self._cpusets = known
        return known.paths

    def _cpusets_below(self, path: str) -> Iterator[str]:
        """All cgroups below a path that have CPU sets of their own, which they have on v1."""
        if self._files.version(Knob.CPUSET) != 1:
            return
        try:
            children = self._files.children(Place(path, Knob.CPUSET))
        except KernelError:
            return
        for child in children:
            yield child.path
            yield from self._cpusets_below(child.path)


def _prod_cores(collected: CollectedCores, facts: ViewFacts, best_effort_apps: set[str]) -> float:
    """CPU of all pods and host applications that are not best-effort. A pod of unknown usage counts
    its request."""
    total = 0.0
    for entity in collected.entities:
        pod = facts.pods.get(entity.id) if entity.kind == "pod" else None
        if entity.kind == "host_app":
            is_best_effort = entity.id in best_effort_apps
        else:
            is_best_effort = entity.qos == BEST_EFFORT or (pod is not None and pod.qos == "BE")
        if is_best_effort:
            continue
        if entity.cpu_cores is not None:
            total += entity.cpu_cores
        elif pod is not None:
            total += (pod.requests.cpu_millicores or 0) / 1000
    return total
