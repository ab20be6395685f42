"""`springtide.node-views`: all that a node actuator needs of its node, one document, keyed by it.

Written by the view agent as soon as the node, one of its pods or its resources change; a tombstone
when the node is deleted. `generation` only grows, whoever writes: what is not newer is dropped.
"""

from typing import Any

import msgspec

from pipeline.topics.codec import Record
from pipeline.topics.node_resources import NodeResourcesRecord
from pipeline.topics.nodes import NOT_SAID
from pipeline.topics.overcommit_terms import Overcommit
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources


class ViewPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod of the node; of its labels and annotations those that are Koordinator's or ours. Of one
    that is `cut` these and the containers are not said: the view would be larger than a record."""

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
    """A node as its actuator sees it; `resources` are None where nothing was worked out for it.
    `slo` is the spec of its NodeSLO and `cpu_normalization` the section of CPU ratios, both JSON
    until somebody asks, as in `NodeRecord`."""

    node: str
    generation: int
    allocatable: Resources = Resources()
    capacity: Resources = Resources()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    strategy_hash: str = ""
    overcommit: Overcommit | None = None
    colocation: dict[str, Any] | None = None
    springtide: dict[str, Any] | None = None
    slo: msgspec.Raw = NOT_SAID
    cpu_normalization: msgspec.Raw = NOT_SAID
    host_apps: dict[str, str] = msgspec.field(default_factory=dict)
    resources: NodeResourcesRecord | None = None
    pods: tuple[ViewPod, ...] = ()


class ViewHead(Record, frozen=True, kw_only=True):
    """What whoever passes views on reads of a `NodeViewRecord`."""

    node: str
    generation: int
