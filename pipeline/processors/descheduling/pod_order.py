"""The order in which nodes are relieved and in which their pods leave, by Koordinator's rules."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import PodRanks
from pipeline.processors.eviction.arbitration import PodRank, pod_rank
from pipeline.topics.pods import PodRecord

_FULL: Final = 1000


def kube_qos(pod: PodRecord) -> str:
    """Kubernetes' QoS class of a pod, from requests and limits of its containers."""
    containers = (*pod.containers, *pod.init_containers)
    amounts = [
        amount
        for each in containers
        for part in (each.requests, each.limits)
        for amount in (part.cpu_millicores, part.memory_bytes)
    ]
    if not any(amounts):
        return "BestEffort"
    is_guaranteed = all(
        each.limits.cpu_millicores and each.limits.memory_bytes and each.requests == each.limits
        for each in containers
    )
    return "Guaranteed" if is_guaranteed else "Burstable"


def pod_ranks(pods: Sequence[PodRecord], kube_qos_classes: Sequence[str] | None = None) -> PodRanks:
    """The ranks of pods; `kube_qos_classes` are those of `status.qosClass` where they are known."""
    qos = [kube_qos(pod) for pod in pods] if kube_qos_classes is None else kube_qos_classes
    ranks = [pod_rank(pod, of_kube) for pod, of_kube in zip(pods, qos, strict=True)]
    columns = np.array(ranks, np.float64).reshape(len(pods), len(PodRank._fields)).T
    *whole, age = columns
    names = PodRank._fields[:-1]
    return PodRanks(
        **{name: column.astype(np.int64) for name, column in zip(names, whole, strict=True)},
        created_seconds=-age,
    )


def weights_of(resources: Sequence[str], weights: Mapping[str, int]) -> FloatArray:
    """The weight of each resource, (resources,); 0 where none is given."""
    return np.array([weights.get(name, 0) for name in resources], np.float64)


def node_scores(usage: FloatArray, capacity: FloatArray, weights: FloatArray) -> IntArray:
    """The usage of nodes in whole thousandths, weighted over resources, (nodes,). Unknown usage and
    a capacity of 0 add nothing."""
    known = (capacity > 0) & ~np.isnan(usage)
    shares = np.zeros(usage.shape)
    used = np.minimum(np.where(known, usage, 0.0), np.where(known, capacity, 0.0))
    np.divide(used * _FULL, capacity, out=shares, where=known)
    total = float(weights.sum())
    if not total:
        return np.zeros(len(usage), np.int64)
    scores: IntArray = np.floor(np.floor(shares) @ weights / total).astype(np.int64)
    return scores


def fit_scores(usage: FloatArray, excess: FloatArray, weights: FloatArray) -> FloatArray:
    """How well each pod fits what a node uses above its limits, `excess` (resources,): 2 for a pod
    that uses just that, towards 1 for larger ones, below 1 for smaller ones. NaN for unknown usage.
    """
    total = float(weights.sum()) or 1.0
    ratio = np.zeros(usage.shape)
    np.divide(usage, excess, out=ratio, where=excess > 0)
    scores = np.where(ratio < 1, ratio, 1 + 1 / np.fmax(ratio, 1))
    fit: FloatArray = scores @ weights / total
    fit[np.isnan(usage).any(axis=1)] = np.nan
    return fit


def eviction_order(ranks: PodRanks, fits: FloatArray) -> IntArray:
    """The positions of pods in the order in which they leave: by rank, then the best fit, pods of
    unknown usage last, then the newest."""
    known_first = np.where(np.isnan(fits), 1.0, -fits)
    return np.lexsort(
        (
            -ranks.created_seconds, known_first, ranks.eviction_cost,
            ranks.deletion_cost, ranks.qos, ranks.kube_qos, ranks.priority, ranks.pod_class,
        )
    )  # fmt: skip
