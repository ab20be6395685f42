"""The usage of a cluster from answers of Prometheus to the queries of `prometheus_queries`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.model.model_config import RESOURCES
from pipeline.processors.report.cluster_usage import (
    ClusterUsage,
    check_size,
    default_classes,
)
from pipeline.processors.report.history_answers import (
    History,
    HourSamples,
    Labels,
    PartMeans,
    PodPlace,
    Vector,
    place_of,
    without_impossible,
)
from pipeline.processors.report.prometheus_queries import RATE_SECONDS
from pipeline.topics.workloads import Workload

POOL_LABELS: Final = (
    "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool", "agentpool", "doks.digitalocean.com/node-pool",
    "node.kubernetes.io/instance-type",
)  # fmt: skip
"""Labels of nodes whose value is the pool; the first that a node has decides."""

_TO_MILLICORES: Final = (1000.0, 1.0)
_SCHEDULED: Final = re.compile(r"(.+)-(\d{8})")
_NO_OWNERS: Final = ("", "<none>")
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_]")


def cluster_usage(history: History, pool_labels: Sequence[str] = POOL_LABELS) -> ClusterUsage:
    """The usage of the cluster by hour.

    A series of usage without a label `node` is of the only node on which its pod was, of the node
    that its `instance` names, or of the only one on which other pods of that instance run. Amounts
    that cannot be are unknown. Raises `InvalidRecordError` if no pod has known usage.
    """
    left_out: Counter[str] = Counter()
    history = without_impossible(history, left_out)
    vectors = history.vectors
    running = {place_of(labels) for labels, _ in vectors["running"]}
    owners = _owner_names(vectors)
    places = {place_of(labels): owners.workload(labels) for labels, _ in vectors["pods"]}
    places |= {place: "" for place in running if place not in places}
    allocatable = _by_node(vectors["allocatable"])
    nodes = sorted({*allocatable} | {place[2] for place in running})
    scraped = (labels for part in history.ranges["cpu"] for labels in part.labels)
    known_nodes = _Nodes(nodes, places, scraped)
    rows: dict[PodPlace, int] = {}

    def row_of(labels: Labels) -> int:
        place = known_nodes.place(labels)
        if place is None:
            left_out["series of pods without a known node"] += 1
            return -1
        return rows.setdefault(place, len(rows))

    for place in running:
        rows.setdefault(place, len(rows))
    pod_rows = {
        name: [_rows_of(part.labels, row_of) for part in history.ranges[name]] for name in RESOURCES
    }
    check_size(len(rows), history.hours)
    highest = np.full((len(rows), history.hours, 2), np.nan)
    for r, name in enumerate(RESOURCES):
        for part, own in zip(history.ranges[name], pod_rows[name], strict=True):
            _fill(highest[:, :, r], part, own, _TO_MILLICORES[r])
    if np.isnan(highest[:, :, 0]).all():
        raise InvalidRecordError(
            "no pod has known cpu usage",
            hint="Prometheus needs the series of kube-state-metrics (kube_pod_info) beside those "
            "of cAdvisor, with the same labels namespace and pod",
        )
    mean = _means(history.means, rows, known_nodes, highest)
    last_mean = np.stack(
        [
            _values(vectors[f"{name}_last"], r, rows, known_nodes)
            for r, name in enumerate(RESOURCES)
        ],
        axis=1,
    )
    requests, tiers = _stated(vectors["requests"], rows)
    limits, _ = _stated(vectors["limits"], rows)
    classes = _classes(requests, limits, tiers)
    if not vectors["requests"]:
        # Which pods request nothing is unknown: none may be taken for Batch.
        classes[:] = CLASS_CODES["prod"]
    names = [*rows]
    order = sorted(range(len(rows)), key=lambda row: (names[row][2], names[row]))
    number = {name: i for i, name in enumerate(nodes)}
    return ClusterUsage(
        end_seconds=history.end_seconds,
        nodes=tuple(nodes),
        pools=_pools(vectors["node_labels"], nodes, pool_labels),
        capacity=_node_amounts(_by_node(vectors["capacity"]), nodes),
        allocatable=_node_amounts(allocatable, nodes),
        node_usage=_node_usage(history, known_nodes),
        pods=tuple(f"{names[row][0]}/{names[row][1]}" for row in order),
        workloads=tuple(places.get(names[row], "") for row in order),
        classes=classes[order],
        node_index=np.array([number[names[row][2]] for row in order], np.int64),
        runs=np.array([names[row] in running for row in order], np.bool_),
        requests=requests[order],
        limits=limits[order],
        highest=highest[order],
        mean=mean[order],
        last_mean=last_mean[order],
        notes=tuple(_notes(history, left_out, tiers)),
    )


class _Nodes:
    """Which node a series of usage is of."""

    def __init__(
        self, nodes: Sequence[str], places: Iterable[PodPlace], scraped: Iterable[Labels]
    ) -> None:
        self.numbers = {name: i for i, name in enumerate(nodes)}
        self._of_pod: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for namespace, pod, node in places:
            self._of_pod[namespace, pod].add(node)
        by_instance: defaultdict[str, set[str]] = defaultdict(set)
        for labels in scraped:
            # Kubelets are scraped under the address of their node, which nodes that are gone had
            # before. An agent may scrape several kubelets under its own.
            of_pod = self._of_pod.get((labels.get("namespace", ""), labels.get("pod", "")), set())
            if len(of_pod) == 1:
                by_instance[labels.get("instance", "")] |= of_pod & self.numbers.keys()
        self._of_instance = {
            instance: node for instance, own in by_instance.items() if len(own) == 1 for node in own
        }

    def node(self, labels: Labels) -> str | None:
        """The node of a series of a node."""
        if (name := labels.get("node", "")) in self.numbers:
            return name
        instance = labels.get("instance", "")
        host = instance.rpartition(":")[0] or instance
        return host if host in self.numbers else self._of_instance.get(instance)

    def place(self, labels: Labels) -> PodPlace | None:
        """The place of the pod of a series; None without one that is known."""
        namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
        nodes = self._of_pod.get((namespace, pod), set())
        if labels.get("node") not in self.numbers and len(nodes) == 1:
            (node,) = nodes
            return (namespace, pod, node) if node in self.numbers else None
        named = self.node(labels)
        return None if named is None else (namespace, pod, named)


class _OwnerNames(NamedTuple):
    """Owners of ReplicaSets and Jobs, by namespace and name."""

    replicasets: Mapping[tuple[str, str], tuple[str, str]]
    jobs: Mapping[tuple[str, str], tuple[str, str]]

    def workload(self, labels: Labels) -> str:
        """The workload of a pod by its labels of kube_pod_info; "" without one."""
        namespace = labels.get("namespace", "")
        kind, name = labels.get("created_by_kind", ""), labels.get("created_by_name", "")
        if kind in _NO_OWNERS or kind == "Node":
            return ""
        if kind == "ReplicaSet":
            kind, name = self.replicasets.get((namespace, name), (kind, name))
        elif kind == "Job":
            scheduled = _SCHEDULED.fullmatch(name)
            default = ("CronJob", scheduled[1]) if scheduled else (kind, name)
            kind, name = self.jobs.get((namespace, name), default)
        return str(Workload(namespace, kind, name))


def _owner_names(vectors: Mapping[str, Vector]) -> _OwnerNames:
    replicasets, jobs = (
        {
            (labels.get("namespace", ""), labels.get(own, "")): (
                labels.get("owner_kind", ""),
                labels.get("owner_name", ""),
            )
            for labels, _ in vectors[name]
        }
        for name, own in (("replicasets", "replicaset"), ("jobs", "job_name"))
    )
    return _OwnerNames(replicasets, jobs)


def _rows_of(labels: Sequence[Labels], row_of: Callable[[Labels], int]) -> IntArray:
    return np.array([row_of(each) for each in labels], np.int64)


def _fill(target: FloatArray, part: HourSamples, rows: IntArray, unit: float) -> None:
    """Enter samples into `target` (n, h), the highest of several."""
    own = rows[part.owner]
    known = own >= 0
    at = own[known], part.hour[known]
    target[at] = np.fmax(target[at], part.values[known] * unit)


def _values(vector: Vector, r: int, rows: Mapping[PodPlace, int], nodes: _Nodes) -> FloatArray:
    """The amount of each row, (n,), the highest of several, NaN unknown."""
    values = np.full(len(rows), np.nan)
    for labels, value in vector:
        place = nodes.place(labels)
        if place is not None and place in rows:
            row = rows[place]
            values[row] = np.fmax(values[row], value * _TO_MILLICORES[r])
    return values


def _means(
    means: Mapping[str, Sequence[PartMeans]],
    rows: Mapping[PodPlace, int],
    nodes: _Nodes,
    highest: FloatArray,
) -> FloatArray:
    """Mean usage of each row over all parts, (n, 2), NaN unknown. A part weighs as much as it has
    hours of known usage in `highest` (n, h, 2), but at least one."""
    sums, weights = np.zeros((2, len(rows), 2))
    for r, name in enumerate(RESOURCES):
        for part in means[name]:
            values = _values(part.vector, r, rows, nodes)
            hours = (~np.isnan(highest[:, part.first : part.end, r])).sum(axis=1)
            weight = np.where(np.isnan(values), 0.0, np.maximum(hours, 1))
            sums[:, r] += np.nan_to_num(values) * weight
            weights[:, r] += weight
    return np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0.0)


def _by_node(vector: Vector) -> dict[str, list[float]]:
    """Amounts of cpu and memory by node, NaN unknown."""
    amounts: dict[str, list[float]] = {}
    for labels, value in vector:
        if (resource := labels.get("resource", "")) in RESOURCES and labels.get("node"):
            r = RESOURCES.index(resource)
            amounts.setdefault(labels["node"], [np.nan, np.nan])[r] = value * _TO_MILLICORES[r]
    return amounts


def _node_amounts(amounts: Mapping[str, Sequence[float]], nodes: Sequence[str]) -> FloatArray:
    unknown = (np.nan, np.nan)
    return np.array([amounts.get(node, unknown) for node in nodes], np.float64).reshape(-1, 2)


def _node_usage(history: History, nodes: _Nodes) -> FloatArray:
    usage = np.full((len(nodes.numbers), history.hours, 2), np.nan)
    for r, name in enumerate(RESOURCES):
        for part in history.ranges[f"node_{name}"]:
            own = [nodes.numbers.get(nodes.node(labels) or "", -1) for labels in part.labels]
            _fill(usage[:, :, r], part, np.array(own, np.int64), _TO_MILLICORES[r])
    return usage


def _stated(vector: Vector, rows: Mapping[PodPlace, int]) -> tuple[FloatArray, dict[int, str]]:
    """Requests or limits (n, 2) of cpu and memory, 0 without, and the tier of the rows that ask for
    resources of a tier."""
    amounts = np.zeros((len(rows), 2))
    tiers: dict[int, str] = {}
    for labels, value in vector:
        row, resource = rows.get(place_of(labels), -1), labels.get("resource", "")
        if row < 0:
            continue
        if resource in RESOURCES:
            r = RESOURCES.index(resource)
            amounts[row, r] = value * _TO_MILLICORES[r]
        else:
            tiers[row] = "batch" if "_batch_" in resource else "mid"
    return amounts, tiers


def _classes(requests: FloatArray, limits: FloatArray, tiers: Mapping[int, str]) -> IntArray:
    classes = default_classes(requests, limits)
    for row, tier in tiers.items():
        classes[row] = CLASS_CODES[tier]
    return classes


def _pools(vector: Vector, nodes: Sequence[str], pool_labels: Sequence[str]) -> tuple[str, ...]:
    """The pool of each node, "" where unknown."""
    names = [f"label_{_OTHER.sub('_', label)}" for label in pool_labels]
    pools = {
        labels.get("node", ""): next((labels[name] for name in names if labels.get(name)), "")
        for labels, _ in vector
    }
    return tuple(pools.get(node, "") for node in nodes)


def _notes(history: History, left_out: Counter[str], tiers: Mapping[int, str]) -> list[str]:
    notes = [f"Prometheus warns: {warning}" for warning in history.warnings]
    notes += [f"left out: {count:,} {what}" for what, count in left_out.items()]
    if history.rate_seconds > RATE_SECONDS:
        notes.append(
            f"cpu is averaged over {history.rate_seconds // 60} minutes, since scrapes are rare: "
            "shorter peaks are not seen"
        )
    for name, missing in (
        ("capacity", "capacity of nodes: allocatable stands for it"),
        ("node_labels", "labels of nodes: pools are unknown"),
        ("pods", "owners of pods: workloads are unknown"),
        ("requests", "requests: all pods count as Prod"),
    ):
        if not history.vectors[name]:
            notes.append(f"Prometheus has no {missing}")
    if tiers:
        notes.append(f"{len(tiers):,} pods ask for resources of Mid or Batch")
    return notes
