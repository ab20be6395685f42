"""The usage of a cluster from what metrics-server reported for a while, and the Nodes and Pods.

A while is ten minutes at most, and is the only hour of the report. Pods that ended are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np

from pipeline.errors import InvalidRecordError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.imported_usage.fetched_usage import FetchedUsage, PodName, SampleColumns
from pipeline.processors.kubernetes.durations import duration_text
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.processors.report.cluster_usage import ClusterUsage
from pipeline.processors.report.prometheus_history import POOL_LABELS
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources

MOST_SECONDS: Final = 600
"""The longest while: every reading is kept, for 50,000 pods about 260 MB."""

_COLUMNS: Final = (("cpu_cores", 1000.0), ("memory_bytes", 1.0))
_RUNNING: Final = ("Pending", "Running")
_REASONS: Final = {
    "stale": "nodes and pods without a reading of the last five minutes",
    "ahead": "nodes and pods whose readings are of a later time: check the clock of metrics-server",
    "unreadable": "readings that cannot be read",
}
"""What the reasons of `FetchedUsage.left_out` mean here."""


class WatchedCluster(NamedTuple):
    """Usage in the `seconds` before `end_seconds`, and the nodes and pods at the end; `refused`
    counts objects that are invalid, by kind."""

    end_seconds: int
    seconds: int
    usage: FetchedUsage
    nodes: Sequence[NodeRecord]
    pods: Sequence[PodRecord]
    refused: Counter[str]


def watched_usage(
    watched: WatchedCluster, pool_labels: Sequence[str] = POOL_LABELS
) -> ClusterUsage:
    """The usage of the cluster in one hour. Raises `InvalidRecordError` if no pod has known usage.

    Pods that are not placed yet are left out. Of objects with one name the last counts.
    """
    by_name = {node.node: node for node in watched.nodes}
    nodes = [by_name[name] for name in sorted(by_name)]
    number = {node.node: i for i, node in enumerate(nodes)}
    running = {
        (pod.node, pod.namespace, pod.name): pod
        for pod in watched.pods
        if pod.node in number and pod.phase in _RUNNING
    }
    pods = [running[name] for name in sorted(running)]
    of_pods = [watched.usage.pods.get(PodName(pod.namespace, pod.name), {}) for pod in pods]
    highest, mean = _amounts(of_pods, "max", "avg"), _amounts(of_pods, "avg")
    if np.isnan(highest).all():
        raise InvalidRecordError(
            "; ".join(["metrics-server reports usage of no pod that runs", *_left_out(watched)]),
            hint="check that `kubectl top pods --all-namespaces` works",
        )
    node_usage = _amounts([watched.usage.nodes.get(node.node, {}) for node in nodes], "avg")
    return ClusterUsage(
        end_seconds=watched.end_seconds,
        nodes=tuple(number),
        pools=tuple(_pool(node, pool_labels) for node in nodes),
        capacity=_stated([node.capacity for node in nodes], np.nan),
        allocatable=_stated([node.allocatable for node in nodes], np.nan),
        node_usage=node_usage[:, None],
        pods=tuple(f"{pod.namespace}/{pod.name}" for pod in pods),
        workloads=tuple(str(workload_of(pod) or "") for pod in pods),
        classes=np.array([CLASS_CODES[pod.pod_class] for pod in pods], np.int64),
        node_index=np.array([number[pod.node] for pod in pods], np.int64),
        runs=np.ones(len(pods), np.bool_),
        requests=_stated([pod.requests for pod in pods], 0.0),
        limits=_stated([pod.limits for pod in pods], 0.0),
        highest=highest[:, None],
        mean=mean,
        last_mean=mean,
        watched_seconds=watched.seconds,
        notes=tuple(_notes(watched)),
    )


def _amounts(usages: Sequence[SampleColumns], *statistics: str) -> FloatArray:
    """Millicores and bytes (n, 2), NaN unknown: the first of these statistics that is known."""
    amounts = np.full((len(usages), 2), np.nan)
    for row, columns in enumerate(usages):
        for r, (name, unit) in enumerate(_COLUMNS):
            known = (columns.get(f"{name}_{statistic}") for statistic in statistics)
            value = next((value for value in known if value is not None), None)
            if value is not None:
                amounts[row, r] = value * unit
    return amounts


def _stated(resources: Sequence[Resources], unknown: float) -> FloatArray:
    """Millicores and bytes, (n, 2)."""
    amounts = [(each.cpu_millicores, each.memory_bytes) for each in resources]
    known = [unknown if amount is None else amount for pair in amounts for amount in pair]
    return np.array(known, np.float64).reshape(-1, 2)


def _pool(node: NodeRecord, pool_labels: Sequence[str]) -> str:
    return next((node.labels[label] for label in pool_labels if node.labels.get(label)), "")


def _notes(watched: WatchedCluster) -> list[str]:
    return [
        f"usage was watched for {duration_text(Decimal(watched.seconds))}: what pods use at other "
        "times is unknown, so peaks follow from what pods of other clusters did",
        *_left_out(watched),
    ]


def _left_out(watched: WatchedCluster) -> list[str]:
    """What was not read, and why."""
    notes = [f"metrics-server: {why}" for why in watched.usage.failed.values()]
    left_out = watched.usage.left_out + watched.refused
    notes += [f"left out: {count:,} {_REASONS.get(why, why)}" for why, count in left_out.items()]
    if bad := watched.usage.bad_values.total():
        notes.append(f"left out: {bad:,} values that are negative, not finite, or too large")
    return notes
