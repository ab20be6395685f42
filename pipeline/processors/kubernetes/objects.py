"""Types of Node and Pod objects, with the fields that Springtide uses, and their decoders.

Decoding raises an `InvalidRecordError` that names the field. Null counts as not stated. Unused
fields are ignored.
"""

from typing import Any, Final, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError

Quantity = str | int | float
Quantities = dict[str, Quantity]


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a Kubernetes object."""


class OwnerReference(_Object, frozen=True, kw_only=True):
    kind: str
    name: str
    controller: bool = False


class ObjectMetadata(_Object, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Requirements(_Object, frozen=True, kw_only=True):
    requests: Quantities = {}
    limits: Quantities = {}


class ContainerSpec(_Object, frozen=True, kw_only=True):
    name: str
    resources: Requirements = Requirements()
    restart_policy: str = ""


class PodSpec(_Object, frozen=True, kw_only=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    resources: Requirements = Requirements()
    overhead: Quantities = {}
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()


class PodCondition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    last_transition_time: str | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    qos_class: str = ""
    start_time: str | None = None


class PodObject(_Object, frozen=True, kw_only=True):
    metadata: ObjectMetadata = ObjectMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeTaint(_Object, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""


class NodeCondition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class NodeSpec(_Object, frozen=True, kw_only=True):
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False


class NodeStatus(_Object, frozen=True, kw_only=True):
    allocatable: Quantities = {}
    capacity: Quantities = {}
    conditions: tuple[NodeCondition, ...] = ()


class NodeObject(_Object, frozen=True, kw_only=True):
    metadata: ObjectMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


_ObjectT = TypeVar("_ObjectT", bound=_Object)

_nodes: Final = msgspec.json.Decoder(NodeObject)
_pods: Final = msgspec.json.Decoder(PodObject)


def node_of_json(data: bytes | msgspec.Raw) -> NodeObject:
    """Decode a Node from JSON. Raises `InvalidRecordError`."""
    return _decoded(data, _nodes, "Node")


def pod_of_json(data: bytes | msgspec.Raw) -> PodObject:
    """`pod_of_tree` of JSON, at a tenth of the cost. Raises `InvalidRecordError`."""
    return _decoded(data, _pods, "Pod")


def node_of_tree(tree: Any) -> NodeObject:
    """Convert a Node from dictionaries and lists. Raises `InvalidRecordError`."""
    return _converted(tree, NodeObject, "Node")


def pod_of_tree(tree: Any) -> PodObject:
    """Convert a Pod from dictionaries and lists. Raises `InvalidRecordError`."""
    return _converted(tree, PodObject, "Pod")


def _decoded(
    data: bytes | msgspec.Raw, decoder: "msgspec.json.Decoder[_ObjectT]", name: str
) -> _ObjectT:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        # A null counts as not stated; the API server hardly ever writes one.
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecordError(f"not a {name} object: {error}") from error
    return _converted(tree, decoder.type, name)


def _converted(tree: Any, kind: type[_ObjectT], name: str) -> _ObjectT:
    try:
        return msgspec.convert(_without_nulls(tree), kind)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"not a {name} object: {error}") from error
    except RecursionError as error:
        raise InvalidRecordError(f"not a {name} object: nested too deeply") from error


def _without_nulls(tree: Any) -> Any:
    # Kubernetes treats null as not stated.
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_nulls(value) for value in tree]
    return tree
