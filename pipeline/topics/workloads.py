"""`springtide.workloads`: what owns pods, and what limits their evictions.

Keyed `<namespace>/<kind>/<name>`, a tombstone when it is deleted; written by the cluster watcher.
Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs have replicas, PodDisruptionBudgets what
they allow. Where a record lies is decided by its namespace.
"""

from typing import Any

import msgspec

from pipeline.topics.codec import Record
from pipeline.topics.pods import Owner


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Of a PodDisruptionBudget: what it asks for, as written, and how many pods may go now."""

    min_available: str | None = None
    max_unavailable: str | None = None
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class WorkloadRecord(Record, frozen=True, kw_only=True):
    """One object. `selector` is its LabelSelector, None where it has none; `replicas` is how many
    pods there are to be, None where nobody says."""

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
    """The record key of an object."""
    return f"{namespace}/{kind}/{name}".encode()
