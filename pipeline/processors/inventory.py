"""Kubernetes objects as records: a Node or Pod as the API gives it becomes a NodeRecord, PodRecord.

Every source of nodes and pods (files, the cluster watcher) goes through `node_record` and
`pod_record`, so that requests, class and cgroup name are found by one set of rules. Pure; an object
that is not what it must be raises `InvalidRecordError`, which names the field.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import add
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.classes import pod_class
from pipeline.times import parse_time
from pipeline.topics.nodes import Condition, NodeRecord, Taint, check_node_name
from pipeline.topics.pods import Container, Owner, PodRecord
from pipeline.topics.resources import BATCH, MID, Resources, Scalars, millicores, whole_bytes

_CONFIG_HASH: Final = "kubernetes.io/config.hash"
_CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"
# The whole object again, up to 256 KiB of it, for nobody but kubectl.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_Quantities = dict[str, str | int | float]
_NOTHING: Final = Resources()


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a Kubernetes object; what we do not use is not looked at."""


class _OwnerReference(_Object, frozen=True, kw_only=True):
    kind: str
    name: str
    controller: bool = False


class _Metadata(_Object, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[_OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _Requirements(_Object, frozen=True, kw_only=True):
    requests: _Quantities = {}
    limits: _Quantities = {}


class _Container(_Object, frozen=True, kw_only=True):
    name: str
    resources: _Requirements = _Requirements()
    restart_policy: str = ""


class _PodSpec(_Object, frozen=True, kw_only=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    resources: _Requirements = _Requirements()
    overhead: _Quantities = {}
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    tolerations: tuple[dict[str, Any], ...] = ()


class _PodCondition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    last_transition_time: str | None = None


class _PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[_PodCondition, ...] = ()
    qos_class: str = ""
    start_time: str | None = None


class _Pod(_Object, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Taint(_Object, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""


class _Condition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class _NodeSpec(_Object, frozen=True, kw_only=True):
    taints: tuple[_Taint, ...] = ()
    unschedulable: bool = False


class _NodeStatus(_Object, frozen=True, kw_only=True):
    allocatable: _Quantities = {}
    capacity: _Quantities = {}
    conditions: tuple[_Condition, ...] = ()


class _Node(_Object, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


_ObjectT = TypeVar("_ObjectT", bound=_Object)


_nodes: Final = msgspec.json.Decoder(_Node)
_pods: Final = msgspec.json.Decoder(_Pod)


def read_node(data: bytes | msgspec.Raw) -> NodeRecord:
    """`node_record` of an object that is JSON still."""
    return _record_of_node(_decoded(data, _nodes, "Node"))


def read_pod(data: bytes | msgspec.Raw) -> PodRecord:
    """`pod_record` of an object that is JSON still, at a tenth of the cost."""
    return _in_cluster(read_manifest(data))


def read_manifest(data: bytes | msgspec.Raw) -> PodRecord:
    """`read_pod` of a pod that need not be in a cluster yet: it may have no name and no uid."""
    return _record_of_pod(_decoded(data, _pods, "Pod"))


def _in_cluster(pod: PodRecord) -> PodRecord:
    if not pod.name:
        raise InvalidRecordError("a pod has no metadata.name")
    if not pod.uid:
        raise InvalidRecordError("metadata.uid is '', not a pod's uid")
    return pod


def _decoded(
    data: bytes | msgspec.Raw, decoder: "msgspec.json.Decoder[_ObjectT]", name: str
) -> _ObjectT:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        # It may be a null, which counts as not stated: the API server hardly ever writes one.
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRecordError(f"not a {name} object: {error}") from error
    return _read(tree, decoder.type, name)


def node_record(tree: Any) -> NodeRecord:
    """The record of a Node object (its JSON as dictionaries and lists).

    Allocatable or capacity that is not stated stays unknown. Raises `InvalidRecordError`.
    """
    return _record_of_node(_read(tree, _Node, "Node"))


def _record_of_node(node: _Node) -> NodeRecord:
    check_node_name(node.metadata.name)
    return NodeRecord(
        node=node.metadata.name,
        uid=node.metadata.uid,
        allocatable=_resources(tuple(node.status.allocatable.items()), "status.allocatable"),
        capacity=_resources(tuple(node.status.capacity.items()), "status.capacity"),
        scalars=_of_node(node.status.allocatable),
        labels=node.metadata.labels,
        annotations=_annotations(node.metadata),
        taints=tuple(Taint(key=t.key, effect=t.effect, value=t.value) for t in node.spec.taints),
        unschedulable=node.spec.unschedulable,
        conditions=tuple(
            Condition(
                type=c.type,
                status=c.status,
                reason=c.reason,
                last_transition_time=_time(c.last_transition_time, "lastTransitionTime"),
            )
            for c in node.status.conditions
        ),
    )


def pod_record(tree: Any) -> PodRecord:
    """The record of a Pod object (its JSON as dictionaries and lists).

    A pod that is not scheduled has the empty node. Raises `InvalidRecordError`.
    """
    return _in_cluster(_record_of_pod(_read(tree, _Pod, "Pod")))


def _record_of_pod(pod: _Pod) -> PodRecord:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    if spec.node_name:
        check_node_name(spec.node_name)
    if "/" in metadata.uid:
        raise InvalidRecordError(f"metadata.uid is {metadata.uid[:80]!r}, not a pod's uid")
    asked = _asked(
        tuple(_said_of(c) for c in spec.containers),
        tuple(_said_of(c) for c in spec.init_containers),
        _amounts(spec.resources),
        tuple(spec.overhead.items()),
    )
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
        overhead=asked.overhead,
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


_Amount = tuple[tuple[str, str | int | float], ...]
_Said = tuple[str, str, tuple[_Amount, _Amount]]


class _Asked(NamedTuple):
    """What follows from what a pod's containers, the pod itself and its overhead state."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    requests: Resources
    limits: Resources
    scalars: Scalars | None
    overhead: Resources
    kube_qos: str


def _said_of(container: _Container) -> _Said:
    return container.name, container.restart_policy, _amounts(container.resources)


def _amounts(stated: _Requirements) -> tuple[_Amount, _Amount]:
    return tuple(stated.requests.items()), tuple(stated.limits.items())


@lru_cache(maxsize=4096)  # the pods of a workload say the same
def _asked(
    containers: tuple[_Said, ...],
    init_containers: tuple[_Said, ...],
    of_pod: tuple[_Amount, _Amount],
    overhead: _Amount,
) -> _Asked:
    main = tuple(_container(*said) for said in containers)
    init = tuple(_container(*said) for said in init_containers)
    pod = Container(
        name="",
        requests=_resources(of_pod[0], "spec.resources.requests"),
        limits=_resources(of_pod[1], "spec.resources.limits"),
    )
    more = _resources(overhead, "spec.overhead")
    return _Asked(
        containers=main,
        init_containers=init,
        requests=effective_requests(main, init, pod.requests, more),
        limits=effective_limits(main, init, pod.limits, more),
        scalars=effective_scalars(main, init),
        overhead=more,
        kube_qos=kube_qos((*main, *init), pod),
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


def effective_requests(
    containers: Iterable[Container],
    init_containers: Iterable[Container],
    of_pod: Resources,
    overhead: Resources,
) -> Resources:
    """What the scheduler reserves: containers and restartable init containers together, at least
    what an ordinary init container needs beside the restartable ones started before it; where the
    pod itself states an amount, that; plus the overhead. None where nobody states the resource.
    """
    amount = _aggregate(
        [c.requests for c in containers], [(c.requests, c.restartable) for c in init_containers]
    )
    return _combined(add, _combined(_first, of_pod, amount), overhead)


def effective_limits(
    containers: Iterable[Container],
    init_containers: Iterable[Container],
    of_pod: Resources,
    overhead: Resources,
) -> Resources:
    """Limits by the rules of `effective_requests`; overhead only on top of a limit.

    As in Kubernetes a container without a limit adds nothing: look at `containers` to know whether
    each has one.
    """
    amount = _aggregate(
        [c.limits for c in containers], [(c.limits, c.restartable) for c in init_containers]
    )
    limit = _combined(_first, of_pod, amount)
    return Resources(
        cpu_millicores=_raised(limit.cpu_millicores, overhead.cpu_millicores),
        memory_bytes=_raised(limit.memory_bytes, overhead.memory_bytes),
    )


def effective_scalars(
    containers: Iterable[Container], init_containers: Iterable[Container]
) -> Scalars | None:
    """Resources but cpu and memory by the rules of `effective_requests`; None where nobody asks."""
    total = restartable = most = Counter[str]()
    for container in containers:
        total = total + Counter(container.scalars)
    for container in init_containers:
        needed = restartable + Counter(container.scalars)
        if container.restartable:
            total, restartable = total + Counter(container.scalars), needed
        most = most | needed
    return dict(total | most) or None


def kube_qos(containers: Iterable[Container], of_pod: Container) -> str:
    """Guaranteed, Burstable or BestEffort, as the API server would say (all containers, also init).

    Guaranteed: every container has limits of CPU and memory, and the requests are equal to them.
    """
    stated = _positive(of_pod)
    parts = [stated] if any(stated) else [_positive(c) for c in containers]
    requests = [sum(values) for values in zip(*(part[:2] for part in parts), strict=True)]
    limits = [sum(values) for values in zip(*(part[2:] for part in parts), strict=True)]
    if not any(requests) and not any(limits):
        return "BestEffort"
    if all(part[2] and part[3] for part in parts) and requests == limits:
        return "Guaranteed"
    return "Burstable"


def _positive(container: Container) -> tuple[int, int, int, int]:
    amounts = (container.requests, container.limits)
    cpu_request, cpu_limit = (max(0, r.cpu_millicores or 0) for r in amounts)
    memory_request, memory_limit = (max(0, r.memory_bytes or 0) for r in amounts)
    return cpu_request, memory_request, cpu_limit, memory_limit


def _aggregate(main: Iterable[Resources], init: Iterable[tuple[Resources, bool]]) -> Resources:
    total = restartable = most = _NOTHING
    for amount in main:
        total = _combined(add, total, amount)
    for amount, is_restartable in init:
        if is_restartable:
            total = _combined(add, total, amount)
            restartable = _combined(add, restartable, amount)
            needed = restartable
        else:
            needed = _combined(add, restartable, amount)
        most = _combined(max, most, needed)
    return _combined(max, total, most)


def _combined(how: Callable[[int, int], int], one: Resources, other: Resources) -> Resources:
    if one is _NOTHING or other is _NOTHING:
        return other if one is _NOTHING else one

    def each(a: int | None, b: int | None) -> int | None:
        if a is None or b is None:
            return b if a is None else a
        return how(a, b)

    return Resources(
        cpu_millicores=each(one.cpu_millicores, other.cpu_millicores),
        memory_bytes=each(one.memory_bytes, other.memory_bytes),
    )


def _first(one: int, other: int) -> int:
    return one


def _raised(limit: int | None, overhead: int | None) -> int | None:
    return limit + (overhead or 0) if limit else limit


def _read(tree: Any, kind: type[_ObjectT], name: str) -> _ObjectT:
    try:
        return msgspec.convert(_without_nulls(tree), kind)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"not a {name} object: {error}") from error
    except RecursionError as error:
        raise InvalidRecordError(f"not a {name} object: nested too deeply") from error


def _without_nulls(tree: Any) -> Any:
    # Kubernetes writes null where nothing is stated, and takes both alike.
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_nulls(value) for value in tree]
    return tree


def _container(name: str, restart_policy: str, amounts: tuple[_Amount, _Amount]) -> Container:
    where = f"resources of container {name}"
    return Container(
        name=name,
        requests=_resources(amounts[0], where),
        limits=_resources(amounts[1], where),
        scalars=_scalars(amounts, where),
        restartable=restart_policy == "Always",
    )


def _of_node(allocatable: _Quantities) -> Scalars | None:
    """What a node has of other resources; not what we offer of it, which changes by the minute."""
    stated = ((name, value) for name, value in allocatable.items() if name not in (*MID, *BATCH))
    found = _scalars(((), tuple(stated)), "status.allocatable") or {}
    return {name: amount for name, amount in found.items() if amount} or None


def _scalars(amounts: tuple[_Amount, _Amount], where: str) -> Scalars | None:
    requests, limits = amounts
    found: Scalars = {}
    for name, stated in (dict(limits) | dict(requests)).items():
        if name in ("cpu", "memory"):
            continue
        try:
            amount = whole_bytes(stated)
        except InvalidRecordError as error:
            raise InvalidRecordError(f"{where}: {name:.80}: {error.message}") from error
        if amount < 0:
            raise InvalidRecordError(f"{where}: {name:.80}: an amount is negative")
        found[name] = amount
    return found or None


def _resources(stated: _Amount, where: str) -> Resources:
    amounts = dict(stated)
    try:
        found = Resources(
            cpu_millicores=millicores(amounts["cpu"]) if "cpu" in amounts else None,
            memory_bytes=whole_bytes(amounts["memory"]) if "memory" in amounts else None,
        )
    except InvalidRecordError as error:
        raise InvalidRecordError(f"{where}: {error.message}") from error
    if min(found.cpu_millicores or 0, found.memory_bytes or 0) < 0:
        raise InvalidRecordError(f"{where}: an amount is negative")
    return found


def _annotations(metadata: _Metadata) -> dict[str, str]:
    return {name: text for name, text in metadata.annotations.items() if name != _LAST_APPLIED}


def _since(conditions: Iterable[_PodCondition], type: str) -> str | None:
    """When the condition became true; None while it is not."""
    for condition in conditions:
        if condition.type == type and condition.status == "True":
            return _time(condition.last_transition_time, f"conditions[{type}]")
    return None


def _owner(references: tuple[_OwnerReference, ...]) -> Owner | None:
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
