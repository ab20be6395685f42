"""`springtide.workloads`: controllers of pods, and PodDisruptionBudgets.

The cluster watcher writes it, keyed `<namespace>/<kind>/<name>`; a tombstone when deleted.
Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs have `replicas`, PodDisruptionBudgets a
`budget`. The namespace decides the partition.
"""

from typing import Any, Final, NamedTuple

import msgspec

from pipeline.topics.codec import Record
from pipeline.topics.pods import Owner


class Workload(NamedTuple):
    """The name of a workload: the controller of pods that its users know, such as a Deployment."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class WorkloadContainer(NamedTuple):
    """A container of the pods of a workload."""

    namespace: str
    kind: str
    name: str
    container: str

    @property
    def workload(self) -> Workload:
        """The workload alone."""
        return Workload(*self[:3])


NO_WORKLOAD: Final = Workload("", "", "")
"""The workload of a pod that is known to have none."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Spec and status of a PodDisruptionBudget; `disruptions_allowed` pods may be evicted now."""

    min_available: str | None = None
    max_unavailable: str | None = None
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class WorkloadRecord(Record, frozen=True, kw_only=True):
    """A controller or budget. `selector` is its LabelSelector, `replicas` the desired number of
    pods; None if not stated."""

    namespace: str
    kind: str
    name: str
    uid: str = ""
    owner: Owner | None = None
    selector: dict[str, Any] | None = None
    replicas: int | None = None
    ready_replicas: int = 0
    budget: Budget | None = None


def workload_key(namespace: str, kind: str, name: str) -> bytes:
    """The record key of a workload."""
    return f"{namespace}/{kind}/{name}".encode()
