"""`springtide.node-views`: everything that a node actuator needs about its node, keyed by node.

The view agent writes a record when the node, one of its pods or its resources change, and a
tombstone when the node is deleted. `generation` only grows, across workers: readers drop a record
whose generation is not newer.
"""

from typing import Any

import msgspec

from pipeline.topics.codec import Record
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import UNSTATED
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources


class ViewPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod of the node.

    uid: UID of the pod.
    cgroup_uid: UID in the name of its cgroup; static pods have another than their object.
    namespace: Namespace.
    name: Name.
    pod_class: Class of the pod: prod, mid, batch, free or none.
    qos: Koordinator's QoS class.
    priority: Priority of the pod.
    phase: Phase of the pod.
    deleting: Whether the pod is being deleted.
    requests: Effective requests of cpu and memory.
    limits: Effective limits of cpu and memory.
    containers: Containers with their requests and limits.
    init_containers: Init containers, likewise.
    container_ids: Ids of started containers and sidecars by name, without the name of the runtime.
    labels: Labels of Koordinator and Springtide.
    annotations: Annotations of Koordinator and Springtide.
    cut: Whether labels, annotations and containers are left out, because the view would be too
      large for a record.
    """

    uid: str
    cgroup_uid: str
    namespace: str
    name: str
    pod_class: str = "none"
    qos: str = ""
    priority: int | None = None
    phase: str = ""
    deleting: bool = False
    requests: Resources = Resources()
    limits: Resources = Resources()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    container_ids: dict[str, str] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    cut: bool = False


class NodeViewRecord(Record, frozen=True, kw_only=True):
    """A node as its actuator sees it. `slo` and `cpu_normalization` stay encoded JSON, as in
    `NodeRecord`.

    node: Name of the node, which is also the key.
    generation: Grows with each view of the node, across workers.
    allocatable: Allocatable of the node.
    capacity: Capacity of the node.
    annotations: Annotations of Koordinator and Springtide.
    strategy_hash: Hash of the policy in force.
    overcommit: The overcommit policy in force; null if there is none.
    colocation: The node's section of `colocation-config`.
    springtide: The node's section of `springtide-config`.
    slo: Spec of the node's NodeSLO.
    cpu_normalization: Ratios of CPU by kind of use.
    host_apps: Class of each host application.
    resources: Mid and Batch; null if the node has no overcommit policy.
    pods: Pods of the node.
    """

    node: str
    generation: int
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    strategy_hash: str = ""
    overcommit: Overcommit | None = None
    colocation: dict[str, Any] | None = None
    springtide: dict[str, Any] | None = None
    slo: msgspec.Raw = UNSTATED
    cpu_normalization: msgspec.Raw = UNSTATED
    host_apps: dict[str, str] = msgspec.field(default_factory=dict)
    resources: NodeResourcesRecord | None = None
    pods: tuple[ViewPod, ...] = ()


class ViewHead(Record, frozen=True, kw_only=True):
    """The fields of a `NodeViewRecord` that a server of views reads."""

    node: str
    generation: int
