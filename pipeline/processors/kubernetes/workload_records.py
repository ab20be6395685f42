"""Convert workloads and PodDisruptionBudgets of the Kubernetes API into records."""

from typing import Any

import msgspec

from pipeline.processors.kubernetes.objects import KubernetesObject, ObjectMetadata, decode_object
from pipeline.topics.workloads import Budget, WorkloadRecord


class _Metadata(ObjectMetadata, frozen=True, kw_only=True):
    name: str


class _Spec(KubernetesObject, frozen=True, kw_only=True):
    replicas: int | None = None
    parallelism: int | None = None
    selector: dict[str, Any] | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class _Status(KubernetesObject, frozen=True, kw_only=True):
    ready_replicas: int | None = None
    number_ready: int | None = None
    desired_number_scheduled: int | None = None
    ready: int | None = None
    disruptions_allowed: int | None = None
    current_healthy: int | None = None
    desired_healthy: int | None = None
    expected_pods: int | None = None


class _Workload(KubernetesObject, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_workloads = msgspec.json.Decoder(_Workload)

BUDGET = "PodDisruptionBudget"


def read_workload(data: bytes | msgspec.Raw, kind: str) -> WorkloadRecord:
    """Convert a JSON object of this kind. Raises `InvalidRecordError`."""
    workload = decode_object(data, _workloads, kind)
    metadata, spec, status = workload.metadata, workload.spec, workload.status
    ready = (status.ready_replicas, status.number_ready, status.ready)
    # A DaemonSet wants a pod for each of its nodes, a Job as many as run in parallel.
    wanted = (spec.replicas, status.desired_number_scheduled, spec.parallelism)
    return WorkloadRecord(
        namespace=metadata.namespace,
        kind=kind,
        name=metadata.name,
        uid=metadata.uid,
        owner=metadata.owner,
        selector=spec.selector,
        replicas=next((count for count in wanted if count is not None), None),
        ready_replicas=next((count for count in ready if count is not None), 0),
        budget=_budget(spec, status) if kind == BUDGET else None,
    )


def _budget(spec: _Spec, status: _Status) -> Budget:
    return Budget(
        min_available=None if spec.min_available is None else str(spec.min_available),
        max_unavailable=None if spec.max_unavailable is None else str(spec.max_unavailable),
        disruptions_allowed=status.disruptions_allowed or 0,
        current_healthy=status.current_healthy or 0,
        desired_healthy=status.desired_healthy or 0,
        expected_pods=status.expected_pods or 0,
    )
