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
        reasons = self.objections(pod, targets, arrivals)
        count = next((i for i, reason in enumerate(reasons) if reason is None), len(reasons))
        rejected = tuple(
            Rejected(node, reason or "")
            for node, reason in zip(targets[:count].tolist(), reasons[:MOST_REJECTED], strict=False)
        )
        node = int(targets[count]) if count < len(targets) else None
        return Landing(node, None, rejected, count)

    def objections(
        self, pod: int, targets: IntArray, arrivals: Sequence[Arrival]
    ) -> list[str | None]:
        """Why each of the targets could not run the pod beside these arrivals; None if it could."""
        for arrival, count in self._arrivals.since_last(arrivals):
            self.free[arrival.node] -= count * self._pods.requests[arrival.pod]
        nodes, record, wanted = self._nodes, self._pods.records[pod], self._pods.requests[pod]
        # NaN: what a node has of a resource is unknown, so nothing of it is promised.
        is_short = (wanted > 0) & ~(wanted <= self.free[targets])
        first_short = np.where(is_short.any(axis=1), is_short.argmax(axis=1), -1)
        placement = self._placement(record)
        reasons: list[str | None] = []
        for node, short, cordoned in zip(
            targets.tolist(), first_short.tolist(), nodes.is_cordoned[targets].tolist(),
            strict=True,
        ):  # fmt: skip
            if cordoned:
                reasons.append("the node is cordoned")
            elif short >= 0:
                name = nodes.resources[short]
                reasons.append(f"requests of {name} exceed what is left of allocatable")
            else:
                if node not in placement.objections:
                    reason = placement_objection(
                        record, nodes.names[node], nodes.labels[node], nodes.taints[node]
                    )
                    placement.objections[node] = reason
                    placement.is_refused[node] = reason is not None
                reasons.append(placement.objections[node])
        return reasons

    def is_refused(self, pod: int) -> BoolArray:
        """The nodes that are known to refuse the pod whatever arrives there, (nodes,)."""
        return self._placement(self._pods.records[pod]).is_refused

    def _placement(self, pod: PodRecord) -> "_Placement":
        of_node = (pod.affinity or {}).get("nodeAffinity")
        constraints = repr((pod.node_selector, of_node, pod.tolerations))
        if constraints not in self._placements:
            self._placements[constraints] = _Placement({}, np.zeros(len(self._nodes), np.bool_))
        return self._placements[constraints]


class _Placement(NamedTuple):
    """The answers of `placement_objection` for pods of the same constraints, by node; `is_refused`
    (nodes,) is False where it was not asked."""

    objections: dict[int, str | None]
    is_refused: BoolArray
