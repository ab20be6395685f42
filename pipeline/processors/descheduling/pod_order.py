"""The order in which nodes are relieved and in which their pods leave, by Koordinator's rules."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.descheduling.cluster_columns import PodRanks
from pipeline.processors.placement.preemption_order import rank
from pipeline.times import time_or_none
from pipeline.topics.pods import PodRecord

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
EVICTION_COST: Final = "scheduling.koordinator.sh/eviction-cost"
NEVER_EVICTED_COST: Final = 2**31 - 1
_KUBE_QOS: Final = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}
_QOS: Final = {"BE": 0, "LS": 1, "LSR": 2, "LSE": 3, "SYSTEM": 3}
_NONE: Final = 4
_FULL: Final = 1000


def cost(text: str | None) -> int | None:
    """The value of a cost annotation; None if it is no 32-bit integer as Koordinator reads them: a
    plus sign and leading zeros of a positive number are invalid.

    >>> [cost(text) for text in ("7", "-3", "-008", "+7", "007", "2147483648", "much", None)]
    [7, -3, -8, None, None, None, None, None]
    """
    if text is None or len(text) > 64 or not text.isascii() or not text.removeprefix("-").isdigit():
        return None
    if text.startswith("0") and text != "0":
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


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
    whole = np.array(
        [
            (
                _NONE if pod.pod_class == "none" else rank(pod.pod_class),
                pod.priority or 0,
                _KUBE_QOS.get(of_kube, _NONE),
                _QOS.get(pod.qos, _NONE),
                cost(pod.annotations.get(DELETION_COST)) or 0,
                cost(pod.annotations.get(EVICTION_COST)) or 0,
            )
            for pod, of_kube in zip(pods, qos, strict=True)
        ],
        np.int64,
    ).reshape(len(pods), 6)
    created = np.array([time_or_none(pod.created_at) or 0.0 for pod in pods], np.float64)
    names = ("pod_class", "priority", "kube_qos", "qos", "deletion_cost", "eviction_cost")
    return PodRanks(
        **{name: whole[:, index] for index, name in enumerate(names)}, created_seconds=created
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
    return np.lexsort(
        (
            -ranks.created_seconds, -np.nan_to_num(fits, nan=-1.0), ranks.eviction_cost,
            ranks.deletion_cost, ranks.qos, ranks.kube_qos, ranks.priority, ranks.pod_class,
        )
    )  # fmt: skip
