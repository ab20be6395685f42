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
    """A pod of the node, with the labels and annotations of Koordinator and Springtide. A pod that
    is `cut` has none of them and no containers, because the view would be too large for a
    record."""

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
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    cut: bool = False


class NodeViewRecord(Record, frozen=True, kw_only=True):
    """A node as its actuator sees it. `resources` are None if the node has no overcommit policy.
    `slo` is the spec of its NodeSLO, `cpu_normalization` its CPU ratios; both stay encoded JSON, as
    in `NodeRecord`."""

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
