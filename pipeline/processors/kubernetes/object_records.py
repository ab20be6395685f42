"""Convert Node and Pod objects of the Kubernetes API into NodeRecord and PodRecord.

Every source of nodes and pods (files, the cluster watcher) uses these functions, so that requests,
class and cgroup name follow one set of rules. Only fields that decisions need are copied: a record
that changed would be published, and cause a new view of its node. An invalid object raises
`InvalidRecordError`, which names the field.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.objects import (
    CONFIG_MIRROR,
    NODES,
    PODS,
    ContainerStatus,
    NodeObject,
    ObjectMetadata,
    PodCondition,
    PodObject,
    PodStatus,
    Volume,
    convert_object,
    decode_object,
)
from pipeline.processors.kubernetes.pod_classes import pod_class
from pipeline.processors.kubernetes.pod_resources import (
    NATIVE,
    PodResources,
    amounts,
    native,
    pod_resources,
    scalars,
)
from pipeline.times import parse_time
from pipeline.topics.nodes import Condition, NodeRecord, Taint, check_node_name
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import BATCH, MID

ORIGIN: Final = "node.koordinator.sh/originExtendedAllocatable"
"""The annotation of a Node with its Batch before third parties' allocations."""
STRATEGY: Final = "springtide/strategy"
"""The annotation of a Node with its own `springtide-config`, set by users."""
OFFERED: Final = "springtide/offered"
"""Mark of a Node whose resources the cluster actuator wrote: time of the write."""
USAGE_THRESHOLDS: Final = "scheduling.koordinator.sh/usage-thresholds"
"""The annotation of a Node with its own thresholds of LoadAwareScheduling."""
WRITTEN_THRESHOLDS: Final = "springtide/usage-thresholds"
"""Mark of a Node: the thresholds that the cluster actuator wrote last."""

# The runtimes whose cgroups have names that are known. CRI-O writes itself `cri-o`.
_CONTAINER_ID: Final = re.compile(
    r"(?:docker|containerd|pouch|cri-o)://([0-9A-Za-z][0-9A-Za-z_.-]{0,127})"
)
_OOM_KILLED: Final = "OOMKilled"
_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"
# A copy of the whole object, up to 256 KiB, that only kubectl reads.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The cluster actuator writes these resources, and annotations with this prefix, up to every minute.
# Records leave them out: each write would cause another record and view of the node.
_OFFERED_RESOURCES: Final = (*MID, *BATCH)
_PREFIX: Final = "springtide/"


def read_node(data: bytes | msgspec.Raw) -> NodeRecord:
    """`node_record` of a JSON object. Raises `InvalidRecordError`."""
    return _record_of_node(decode_object(data, NODES, "Node"))


def read_pod(data: bytes | msgspec.Raw) -> PodRecord:
    """`pod_record` of a JSON object, at a tenth of the cost. Raises `InvalidRecordError`."""
    return _require_identity(read_manifest(data))


def read_manifest(data: bytes | msgspec.Raw) -> PodRecord:
    """`read_pod` of a manifest, which may have no name and no uid."""
    return _record_of_pod(decode_object(data, PODS, "Pod"))


def _require_identity(pod: PodRecord) -> PodRecord:
    if not pod.name:
        raise InvalidRecordError("a pod has no metadata.name")
    if not pod.uid:
        raise InvalidRecordError("metadata.uid is '', not a pod's uid")
    return pod


def node_record(tree: Any) -> NodeRecord:
    """Convert a Node object (parsed JSON) into its record.

    Missing allocatable or capacity stays unknown. Raises `InvalidRecordError`.
    """
    return _record_of_node(convert_object(tree, NodeObject, "Node"))


def _record_of_node(node: NodeObject) -> NodeRecord:
    check_node_name(node.metadata.name)
    status = node.status
    stated = (item for item in status.allocatable.items() if item[0] not in _OFFERED_RESOURCES)
    allocatable = amounts(stated, "status.allocatable")
    capacity = (item for item in status.capacity.items() if item[0] in NATIVE)
    return NodeRecord(
        node=node.metadata.name,
        uid=node.metadata.uid,
        allocatable=native(allocatable),
        capacity=native(amounts(capacity, "status.capacity")),
        scalars=scalars(allocatable) or None,
        labels=node.metadata.labels,
        annotations=_annotations_of_node(node.metadata),
        taints=tuple(Taint(key=t.key, effect=t.effect, value=t.value) for t in node.spec.taints),
        unschedulable=node.spec.unschedulable,
        conditions=tuple(
            Condition(
                type=c.type,
                status=c.status,
                reason=c.reason,
                last_transition_time=_time(c.last_transition_time, "lastTransitionTime"),
            )
            for c in status.conditions
        ),
    )


def pod_record(tree: Any) -> PodRecord:
    """Convert a Pod object (parsed JSON) into its record.

    A pod that is not scheduled has the empty node. Raises `InvalidRecordError`.
    """
    return _require_identity(_record_of_pod(convert_object(tree, PodObject, "Pod")))


def _record_of_pod(pod: PodObject) -> PodRecord:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    if spec.node_name:
        check_node_name(spec.node_name)
    if "/" in metadata.uid:
        raise InvalidRecordError(f"metadata.uid is {metadata.uid[:80]!r}, not a pod's uid")
    resources = pod_resources(spec)
    statuses = _lasting_statuses(resources, status)
    kube_qos = status.qos_class or resources.kube_qos
    priority_class, qos = pod_class(metadata.labels, spec.priority, kube_qos)
    return PodRecord(
        node=spec.node_name,
        uid=metadata.uid,
        cgroup_uid=cgroup_uid(metadata.uid, metadata.annotations),
        namespace=metadata.namespace,
        name=metadata.name,
        owner=metadata.owner,
        labels=metadata.labels,
        annotations=_annotations(metadata),
        priority=spec.priority,
        pod_class=priority_class,
        qos=qos,
        requests=resources.requests,
        limits=resources.limits,
        scalars=resources.scalars,
        scalar_limits=resources.scalar_limits,
        overhead=resources.overhead,
        scalar_overhead=resources.scalar_overhead,
        containers=resources.containers,
        init_containers=resources.init_containers,
        container_ids=_container_ids(statuses),
        oom_killed_at=_oom_killed_at(statuses),
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        scheduler_name=spec.scheduler_name,
        volumes=_volume_kinds(spec.volumes),
        phase=status.phase,
        created_at=_time(metadata.creation_timestamp, "creationTimestamp"),
        scheduled_at=_since(status.conditions, "PodScheduled"),
        initialized_at=_since(status.conditions, "Initialized"),
        started_at=_time(status.start_time, "startTime"),
        deleted_at=_time(metadata.deletion_timestamp, "deletionTimestamp"),
    )


def cgroup_uid(uid: str, annotations: Mapping[str, str]) -> str:
    """The name that the kubelet gives the pod's cgroup: the uid, or a static pod's hash.

    The hash counts only for pods that the kubelet itself read (or mirrored). Otherwise any user
    could take over the usage of another pod by an annotation.
    """
    source = annotations.get(_CONFIG_SOURCE)
    is_static = bool(annotations.get(CONFIG_MIRROR)) or source in ("file", "http")
    return (annotations.get(_CONFIG_HASH) or uid) if is_static else uid


def _lasting_statuses(resources: PodResources, status: PodStatus) -> list[ContainerStatus]:
    """The statuses of containers and sidecars."""
    names = {container.name for container in resources.containers}
    names |= {container.name for container in resources.init_containers if container.restartable}
    statuses = (*status.container_statuses, *status.init_container_statuses)
    return [each for each in statuses if each.name in names]


def _container_ids(statuses: Iterable[ContainerStatus]) -> dict[str, str]:
    """Ids of containers by name. A container that is restarted keeps the id of its former run until
    it starts: the record changes once."""
    return {
        each.name: match[1]
        for each in statuses
        if (match := _CONTAINER_ID.fullmatch(each.container_id))
    }


def _oom_killed_at(statuses: Iterable[ContainerStatus]) -> dict[str, str]:
    """When containers were last OOM-killed, by name.

    Only the reason tells: a container that was evicted, or killed for another reason, ends with
    the same exit code. A status has the last two ends of a container.
    """
    killed_at = {}
    for each in statuses:
        for state in (each.state, each.last_state):
            ended = state.terminated
            if ended is not None and ended.reason == _OOM_KILLED and ended.finished_at is not None:
                killed_at[each.name] = ended.finished_at
                break
    return killed_at


def _volume_kinds(volumes: Iterable[Volume]) -> tuple[str, ...]:
    """The kinds that matter to evictions, each once, in alphabetic order."""
    kinds = set()
    for volume in volumes:
        if volume.empty_dir is not None:
            kinds.add("emptyDir")
        if volume.host_path is not None:
            kinds.add("hostPath")
        if volume.persistent_volume_claim is not None:
            kinds.add("persistentVolumeClaim")
    return tuple(sorted(kinds))


def _annotations(metadata: ObjectMetadata) -> dict[str, str]:
    return {name: text for name, text in metadata.annotations.items() if name != _LAST_APPLIED}


def _annotations_of_node(metadata: ObjectMetadata) -> dict[str, str]:
    annotations = _annotations(metadata)
    left = {
        name: text
        for name, text in annotations.items()
        if name == STRATEGY or not (name.startswith(_PREFIX) or name == ORIGIN)
    }
    if left.get(USAGE_THRESHOLDS) == annotations.get(WRITTEN_THRESHOLDS):
        # Extenders follow the clock themselves, also when no actuator does.
        left.pop(USAGE_THRESHOLDS, None)
    # Without the time: it would change the record with each write of an offer.
    return left | {OFFERED: ""} if OFFERED in annotations else left


def _since(conditions: Iterable[PodCondition], type: str) -> str | None:
    """When the condition became true; None while it is not."""
    for condition in conditions:
        if condition.type == type and condition.status == "True":
            return _time(condition.last_transition_time, f"conditions[{type}]")
    return None


def _time(text: str | None, where: str) -> str | None:
    if text is None:
        return None
    try:
        parse_time(text)
    except ValueError as error:
        raise InvalidRecordError(f"{where} is {text[:40]!r}, no RFC 3339 time") from error
    return text
