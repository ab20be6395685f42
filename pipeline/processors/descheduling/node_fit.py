"""Whether a node could run a pod by kube-scheduler's own rules, as far as they are recorded.

Checked are node selector, required node affinity, taints and requests. Affinity to other pods,
topology spread, volumes and ports are not known here: the scheduler may still choose another node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pipeline.processors.arrays import BoolArray, FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import ClusterNodes, ClusterPods
from pipeline.processors.descheduling.landing import (
    MOST_REJECTED,
    Arrival,
    ArrivalChanges,
    Landing,
    Rejected,
)
from pipeline.processors.kubernetes.objects import NODES, decode_object
from pipeline.processors.kubernetes.pod_resources import amounts
from pipeline.topics.nodes import Taint
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import by_name

_KEPT_OUT: Final = ("NoSchedule", "NoExecute")
_NAME: Final = "metadata.name"


def placement_objection(
    pod: PodRecord, name: str, labels: Mapping[str, str], taints: Iterable[Taint]
) -> str | None:
    """Why a pod may not run on a node with these labels and taints; None if it may."""
    for key, value in pod.node_selector.items():
        if labels.get(key) != value:
            return f"the node selector of the pod wants {key}={value}"
    if not _meets_affinity(pod.affinity, name, labels):
        return "the node affinity of the pod excludes the node"
    for taint in taints:
        if taint.effect in _KEPT_OUT and not _tolerates(pod.tolerations, taint):
            return f"the pod does not tolerate the taint {taint.key}:{taint.effect}"
    return None


def _tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Taint) -> bool:
    for toleration in tolerations:
        key, effect = toleration.get("key") or "", toleration.get("effect") or ""
        if effect not in ("", taint.effect) or key not in ("", taint.key):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists":
            return True
        if key and operator == "Equal" and (toleration.get("value") or "") == taint.value:
            return True
    return False


def _meets_affinity(
    affinity: Mapping[str, Any] | None, name: str, labels: Mapping[str, str]
) -> bool:
    """Whether one of the required terms matches. What cannot be read matches nothing."""
    of_node = (affinity or {}).get("nodeAffinity") or {}
    required = of_node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    try:
        terms = required.get("nodeSelectorTerms") or ()
        return any(_matches_term(term, name, labels) for term in terms)
    except (AttributeError, TypeError, ValueError):
        return False


def _matches_term(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_is_met(each, labels) for each in expressions) and all(
        _is_met(each, {_NAME: name}) for each in fields
    )


def _is_met(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key = requirement["key"]
    values: Sequence[str] = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
        case _:
            return False


class NodeRoom(NamedTuple):
    """A node as kube-scheduler's filters see it, without the pods on it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_cordoned: bool
    allocatable: Mapping[str, int]


def read_node_room(data: bytes | msgspec.Raw) -> NodeRoom:
    """Convert a JSON object. Raises `InvalidRecordError`."""
    node = decode_object(data, NODES, "Node")
    return NodeRoom(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=tuple(Taint(key=t.key, effect=t.effect, value=t.value) for t in node.spec.taints),
        is_cordoned=node.spec.unschedulable,
        allocatable=amounts(node.status.allocatable.items(), "status.allocatable"),
    )


def room_objection(pod: PodRecord, node: NodeRoom, others: Iterable[PodRecord]) -> str | None:
    """Why a node could not run the pod beside `others`, the pods on it; None if it could."""
    if node.is_cordoned:
        return "the node is cordoned"
    requested = Counter[str]()
    for other in others:
        requested.update(by_name(other.requests, other.scalars))
    for name, wanted in by_name(pod.requests, pod.scalars).items():
        if wanted > 0 and wanted > node.allocatable.get(name, 0) - requested[name]:
            return f"requests of {name} exceed what is left of allocatable"
    return placement_objection(pod, node.name, node.labels, node.taints)


class FitSimulator:
    """Lands each pod on the first target that could run it. `free` (nodes, resources) is what is
    left of allocatable beside the arrivals that were asked about last."""

    def __init__(self, nodes: ClusterNodes, pods: ClusterPods) -> None:
        self._nodes, self._pods = nodes, pods
        self.free: FloatArray = nodes.allocatable - nodes.requested
        # Neither labels nor constraints change during a plan: each pair is compared once.
        self._placements: dict[str, _Placement] = {}
        self._arrivals = ArrivalChanges()

    def land(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> Landing:
        """The first of the targets that could run the pod."""
        refused = self.refused(pod, targets, arrivals)
        count = first_false(refused)
        rejected = self.rejected(pod, targets[:count])
        node = int(targets[count]) if count < len(targets) else None
        return Landing(node, None, rejected, count)

    def refused(self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]) -> BoolArray:
        """Which of the targets could not run the pod beside these arrivals."""
        for arrival, count in self._arrivals.since_last(arrivals):
            self.free[arrival.node] -= count * self._pods.requests[arrival.pod]
        refused = self._has_no_room(pod, targets)
        placement = self._placement(self._pods.records[pod])
        new = ~(refused | placement.is_asked[targets])
        if np.count_nonzero(new):
            for node in targets[new].tolist():
                placement.is_asked[node] = True
                placement.is_refused[node] = self._placement_objection(pod, node) is not None
        return refused | placement.is_refused[targets]

    def rejected(self, pod: int, refused: IntArray) -> tuple[Rejected, ...]:
        """Why the first of the nodes that were `refused` last could not run the pod."""
        return tuple(
            Rejected(node, self._objection(pod, node)) for node in refused[:MOST_REJECTED].tolist()
        )

    def _objection(self, pod: int, node: int) -> str:
        if self._nodes.is_cordoned[node]:
            return "the node is cordoned"
        short = self._short(pod, np.array([node]))[0]
        if short.any():
            name = self._nodes.resources[int(short.argmax())]
            return f"requests of {name} exceed what is left of allocatable"
        return self._placement_objection(pod, node) or ""

    def _short(self, pod: int, nodes: IntArray) -> BoolArray:
        """The resources of which nodes have too little left, (nodes, resources). NaN: what a node
        has of a resource is unknown, so nothing of it is promised."""
        wanted = self._pods.requests[pod]
        short: BoolArray = (wanted > 0) & ~(wanted <= self.free[nodes])
        return short

    def _placement_objection(self, pod: int, node: int) -> str | None:
        nodes = self._nodes
        return placement_objection(
            self._pods.records[pod], nodes.names[node], nodes.labels[node], nodes.taints[node]
        )

    def has_no_room(self, pod: int) -> BoolArray:
        """The nodes that are cordoned or have too little left beside the arrivals that were asked
        about last, (nodes,)."""
        return self._has_no_room(pod, np.arange(len(self._nodes)))

    def _has_no_room(self, pod: int, nodes: IntArray) -> BoolArray:
        is_short: BoolArray = np.logical_or.reduce(self._short(pod, nodes), axis=1)
        return self._nodes.is_cordoned[nodes] | is_short

    def is_refused(self, pod: int) -> BoolArray:
        """The nodes that are known to refuse the pod whatever arrives there, (nodes,)."""
        return self._placement(self._pods.records[pod]).is_refused

    def _placement(self, pod: PodRecord) -> "_Placement":
        of_node = (pod.affinity or {}).get("nodeAffinity")
        constraints = repr((pod.node_selector, of_node, pod.tolerations))
        if constraints not in self._placements:
            self._placements[constraints] = _Placement(*np.zeros((2, len(self._nodes)), np.bool_))
        return self._placements[constraints]


class _Placement(NamedTuple):
    """The nodes for which `placement_objection` was asked about pods of the same constraints, and
    those that refuse them, (nodes,)."""

    is_asked: BoolArray
    is_refused: BoolArray


def first_false(values: BoolArray) -> int:
    """The position of the first False, the length if there is none."""
    return len(values) if values.all() else int(values.argmin())
