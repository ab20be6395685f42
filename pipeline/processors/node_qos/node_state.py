"""What features decide from: one node at one moment, from its view, its usage and its cgroups.

Amounts are None where they are unknown; unknown is never zero. Paths are relative to the root of a
cgroup hierarchy, without leading or trailing slash. Only what has a cgroup now is in here: a pod
that has no directory yet, or no longer, is not.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from pipeline.processors.kubernetes.node_reservation import (
    RESOURCE_STATUS,
    Reservation,
    pinned_cpus,
)
from pipeline.processors.node_qos.cgroup_values import CpuSet, Place, Value
from pipeline.processors.node_qos.claims import Claim
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.resource_amounts import Resources

KubeQos = Literal["Guaranteed", "Burstable", "BestEffort"]
BEST_EFFORT: Final = "BestEffort"


class LogicalCpu(NamedTuple):
    """A CPU by number, with its core, socket and NUMA node. Hyper-threads share a core."""

    cpu: int
    core: int
    socket: int
    node: int


class PressureLevels(NamedTuple):
    """Share of the last 10 seconds, in percent, in which some or all tasks waited."""

    some_percent: float
    full_percent: float | None


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """A running container of a listed pod.

    `batch` and `batch_limits` are its batch-cpu in millicores and batch-memory in bytes, `mid` and
    `mid_limits` likewise.
    """

    name: str
    path: str
    requests: Resources = Resources()
    limits: Resources = Resources()
    batch: Resources = Resources()
    batch_limits: Resources = Resources()
    mid: Resources = Resources()
    mid_limits: Resources = Resources()
    cpu_cores: float | None = None
    throttled_ratio: float | None = None
    """Throttled periods of all periods in the last second."""


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a cgroup.

    `listed` is False for a pod that the view does not have: only its usage and `kube_qos`, from the
    path of its cgroup, are known then. It is also False for a pod that the view has without its
    labels, annotations and containers. `qos` is LSE, LSR, LS, BE, SYSTEM or empty. `batch`, `mid`
    and their limits are of the whole pod, by `tier_amounts.pod_amounts`: also of containers that do
    not run yet.
    """

    uid: str
    path: str
    kube_qos: KubeQos
    listed: bool = True
    namespace: str = ""
    name: str = ""
    qos: str = ""
    qos_label: str = ""
    """The QoS class that the pod's label states; empty if it has none."""
    pod_class: str = "unknown"
    priority: int | None = None
    phase: str = ""
    deleting: bool = False
    requests: Resources = Resources()
    limits: Resources = Resources()
    cgroup_limits: Resources = Resources()
    """What the kubelet limits the pod's cgroup to, by `tier_amounts.cgroup_limits`."""
    batch: Resources = Resources()
    batch_limits: Resources = Resources()
    mid: Resources = Resources()
    mid_limits: Resources = Resources()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    containers: tuple[ContainerState, ...] = ()
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    throttled_ratio: float | None = None
    cpu_pressure: PressureLevels | None = None

    @property
    def is_best_effort(self) -> bool:
        """Whether suppression may hold the pod down: by its QoS label or by its Kubernetes QoS."""
        return self.qos == "BE" or self.kube_qos == BEST_EFFORT

    @property
    def is_active(self) -> bool:
        return self.phase in ("Pending", "Running") and not self.deleting

    @property
    def own_cpus(self) -> CpuSet:
        """The CPUs that a scheduler gave to this pod by number; empty if none."""
        return pinned_cpus(self.annotations.get(RESOURCE_STATUS, "{}"))


class HostAppState(msgspec.Struct, frozen=True, kw_only=True):
    """A host application. `in_best_effort` says whether its cgroup is below that of BestEffort."""

    name: str
    path: str
    qos: str = ""
    in_best_effort: bool = False
    cpu_cores: float | None = None
    memory_bytes: float | None = None


class BlockDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The disks of a node, as `major:minor`: of partitions their disk.

    `devices` has them by the path below /dev, such as `vda` or `mapper/data`, `volume_groups` by
    the name of the LVM volume group, `pod_volumes` by UID of the pod and name of the volume.
    """

    devices: Mapping[str, str] = msgspec.field(default_factory=dict)
    volume_groups: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    pod_volumes: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment.

    `at` is the time of the newest usage in seconds since the epoch. `slo` is None before the first
    valid policy: features then repeat what they claimed before a restart. `is_early` says that the
    round is between two regular ones: what may grow by a step in each round does not grow.
    `offered_batch` and `offered_mid` are the amounts that Springtide offers of the node.
    `recent_prod_cores` has CPU usage of all pods and host applications that are not best-effort,
    once a second, oldest first.
    """

    node: str
    at: float
    revision: int | None = None
    """Two states of one revision differ in their time, `is_early`, usage, pressure and
    `best_effort_limit_millicores` alone. None: nothing is known of that."""
    is_early: bool = False
    cgroup_version: Literal[1, 2] = 1
    slo: NodeSLOSpec | None = None
    capacity: Resources = Resources()
    allocatable: Resources = Resources()
    offered_batch: Resources = Resources()
    offered_mid: Resources = Resources()
    reservation: Reservation = Reservation()
    cpu_normalization: float | None = None
    """The node's ratio of CPU normalization; None if it has none."""
    system_cpus: CpuSet = frozenset()
    """CPUs for pods of the class SYSTEM, by the node's annotation."""
    system_cpus_exclusive: bool = True
    cpu_shared_pools: Mapping[int, CpuSet] = msgspec.field(default_factory=dict)
    """CPUs for LS pods by NUMA node, by the node's annotation; empty if it has none."""
    cpu_manager_policy: str = "none"
    """The kubelet's CPU manager policy: none or static."""
    cpus: tuple[LogicalCpu, ...] = ()
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    memory_available_bytes: float | None = None
    """Memory that new processes could have without swapping, as the kernel estimates it."""
    best_effort_limit_millicores: int | None = None
    """What quota and CPU sets let best-effort pods use now (`real_limit_millicores`); None if the
    policy has no rule for it (`satisfaction_rule`), too."""
    recent_prod_cores: tuple[float, ...] = ()
    cpu_pressure: PressureLevels | None = None
    memory_pressure: PressureLevels | None = None
    block_devices: BlockDevices | None = None
    kubepods_path: str = "kubepods"
    burstable_path: str = "kubepods/burstable"
    best_effort_path: str = "kubepods/besteffort"
    best_effort_cgroups: tuple[str, ...] = ()
    """All cgroups below that of BestEffort, at any depth. Also sandboxes and containers of pods
    that the view does not have: on v1 a CPU set cannot shrink while a child has more."""
    pods: tuple[PodState, ...] = ()
    host_apps: tuple[HostAppState, ...] = ()

    @property
    def all_cpus(self) -> CpuSet:
        return frozenset(cpu.cpu for cpu in self.cpus)

    def listed_pods(self) -> Iterator[PodState]:
        return (pod for pod in self.pods if pod.listed)


class Feature(Protocol):
    """A part of the node's quality of service.

    It is called once a second with the node's state and what it claimed in the round before (after
    a restart: what it had written, by the saved originals), and returns what it wants now. It
    neither reads nor writes; without a needed input it returns what it claimed before, or nothing:
    never a wider value.
    """

    @property
    def name(self) -> str:
        """The name in settings, metrics and records, such as `cpu_suppression`."""
        ...

    @property
    def reads_usage(self) -> bool:
        """Whether claims depend on more than the revision of a state and the former claims. A
        feature that reads no usage is not called again before the revision changes."""
        ...

    def claims(self, state: NodeState, former: Mapping[Place, Value]) -> list[Claim]: ...
