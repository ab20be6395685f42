"""Kubernetes objects as records: a Node or Pod as the API gives it becomes a NodeRecord, PodRecord.

Every source of nodes and pods (files, the cluster watcher) goes through `node_record` and
`pod_record`, so that requests, class and cgroup name are found by one set of rules. Pure; an object
that is not what it must be raises `InvalidRecordError`, which names the field.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.objects import (
    Metadata,
    NodeObject,
    OwnerReference,
    PodCondition,
    PodObject,
    node_of_json,
    node_of_tree,
    pod_of_json,
    pod_of_tree,
)
from pipeline.processors.kubernetes.pod_classes import pod_class
from pipeline.processors.kubernetes.pod_resources import NATIVE, amounts, asked_for, native, scalars
from pipeline.times import parse_time
from pipeline.topics.nodes import Condition, NodeRecord, Taint, check_node_name
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import BATCH, MID

ORIGIN: Final = "node.koordinator.sh/originExtendedAllocatable"
"""The annotation of a Node with its Batch before third parties took theirs."""

_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"
# The whole object again, up to 256 KiB of it, for nobody but kubectl.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# What we offer of a node, which changes by the minute, and what is noted on it beside that: with
# these each offer would make another record, and another view of the node.
_OFFERED: Final = (*MID, *BATCH)
_NOTED: Final = ("springtide/recommended", "springtide/cooled", ORIGIN)
# That something is offered is worth knowing, as of when is not.
_MARK: Final = "springtide/offered"


def read_node(data: bytes | msgspec.Raw) -> NodeRecord:
    """`node_record` of an object that is JSON still."""
    return _record_of_node(node_of_json(data))


def read_pod(data: bytes | msgspec.Raw) -> PodRecord:
    """`pod_record` of an object that is JSON still, at a tenth of the cost."""
    return _in_cluster(read_manifest(data))


def read_manifest(data: bytes | msgspec.Raw) -> PodRecord:
    """`read_pod` of a pod that need not be in a cluster yet: it may have no name and no uid."""
    return _record_of_pod(pod_of_json(data))


def _in_cluster(pod: PodRecord) -> PodRecord:
    if not pod.name:
        raise InvalidRecordError("a pod has no metadata.name")
    if not pod.uid:
        raise InvalidRecordError("metadata.uid is '', not a pod's uid")
    return pod


def node_record(tree: Any) -> NodeRecord:
    """The record of a Node object (its JSON as dictionaries and lists).

    Allocatable or capacity that is not stated stays unknown. Raises `InvalidRecordError`.
    """
    return _record_of_node(node_of_tree(tree))


def _record_of_node(node: NodeObject) -> NodeRecord:
    check_node_name(node.metadata.name)
    status = node.status
    stated = (one for one in status.allocatable.items() if one[0] not in _OFFERED)
    allocatable = amounts(stated, "status.allocatable")
    capacity = (one for one in status.capacity.items() if one[0] in NATIVE)
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
    """The record of a Pod object (its JSON as dictionaries and lists).

    A pod that is not scheduled has the empty node. Raises `InvalidRecordError`.
    """
    return _in_cluster(_record_of_pod(pod_of_tree(tree)))


def _record_of_pod(pod: PodObject) -> PodRecord:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    if spec.node_name:
        check_node_name(spec.node_name)
    if "/" in metadata.uid:
        raise InvalidRecordError(f"metadata.uid is {metadata.uid[:80]!r}, not a pod's uid")
    asked = asked_for(spec)
    kube = status.qos_class or asked.kube_qos
    priority_class, qos = pod_class(metadata.labels, spec.priority, kube)
    return PodRecord(
        node=spec.node_name,
        uid=metadata.uid,
        cgroup_uid=cgroup_uid(metadata.uid, metadata.annotations),
        namespace=metadata.namespace,
        name=metadata.name,
        owner=_owner(metadata.owner_references),
        labels=metadata.labels,
        annotations=_annotations(metadata),
        priority=spec.priority,
        pod_class=priority_class,
        qos=qos,
        requests=asked.requests,
        limits=asked.limits,
        scalars=asked.scalars,
        scalar_limits=asked.scalar_limits,
        overhead=asked.overhead,
        scalar_overhead=asked.scalar_overhead,
        containers=asked.containers,
        init_containers=asked.init_containers,
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        phase=status.phase,
        created_at=_time(metadata.creation_timestamp, "creationTimestamp"),
        scheduled_at=_since(status.conditions, "PodScheduled"),
        initialized_at=_since(status.conditions, "Initialized"),
        started_at=_time(status.start_time, "startTime"),
        deleted_at=_time(metadata.deletion_timestamp, "deletionTimestamp"),
    )


def cgroup_uid(uid: str, annotations: Mapping[str, str]) -> str:
    """The name under which the kubelet makes the pod's cgroup: the uid, or a static pod's hash.

    The hash counts only for pods that the kubelet itself read (or mirrored): anybody may write an
    annotation, and must not take over the usage of another pod by it.
    """
    is_static = bool(annotations.get(_CONFIG_MIRROR)) or annotations.get(_CONFIG_SOURCE) in (
        "file",
        "http",
    )
    return (annotations.get(_CONFIG_HASH) or uid) if is_static else uid


def _annotations(metadata: Metadata) -> dict[str, str]:
    return {name: text for name, text in metadata.annotations.items() if name != _LAST_APPLIED}


def _annotations_of_node(metadata: Metadata) -> dict[str, str]:
    found = _annotations(metadata)
    for name in _NOTED:
        found.pop(name, None)
    return found | {_MARK: ""} if _MARK in found else found


def _since(conditions: Iterable[PodCondition], type: str) -> str | None:
    """When the condition became true; None while it is not."""
    for condition in conditions:
        if condition.type == type and condition.status == "True":
            return _time(condition.last_transition_time, f"conditions[{type}]")
    return None


def _owner(references: tuple[OwnerReference, ...]) -> Owner | None:
    for reference in references:
        if reference.controller:
            return Owner(kind=reference.kind, name=reference.name)
    return None


def _time(text: str | None, where: str) -> str | None:
    if text is None:
        return None
    try:
        parse_time(text)
    except ValueError as error:
        raise InvalidRecordError(f"{where} is {text[:40]!r}, no RFC 3339 time") from error
    return text
