"""A pod as the API server has it now, with the parts of its state that no record holds."""

import re
from typing import Final

import msgspec

from pipeline.errors import InvalidRecordError
from pipeline.processors.eviction.migration_limits import GRACE_SECONDS, Candidate
from pipeline.processors.kubernetes.object_records import read_manifest
from pipeline.processors.kubernetes.objects import KubernetesObject, PodCondition, decode_object
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.topics.pods import PodRecord
from pipeline.topics.workloads import Workload

POLICY_LABEL: Final = "koordinator.sh/evict-policy"
"""The label of a pod that names how it is evicted."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class LivePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod: its record, whether its condition Ready is true, its Kubernetes QoS class, whether it
    may preempt others, how long it may take to end once its deletion has begun, and the API version
    of its controller."""

    record: PodRecord
    is_ready: bool = False
    kube_qos: str = ""
    may_preempt: bool = True
    grace_seconds: float = GRACE_SECONDS
    owner_api_version: str = ""

    @property
    def workload(self) -> Workload | None:
        """The workload of the pod: a Deployment, not its ReplicaSet; None for a bare pod."""
        return workload_of(self.record)

    @property
    def candidate(self) -> Candidate:
        """The pod as limits see it."""
        pod = self.record
        return Candidate(pod.uid, pod.node, pod.namespace, pod.name, self.workload)

    @property
    def is_deleted(self) -> bool:
        """Whether the pod is being deleted."""
        return self.record.deleted_at is not None


class _OwnerReference(KubernetesObject, frozen=True, kw_only=True):
    api_version: str = ""
    controller: bool = False


class _Metadata(KubernetesObject, frozen=True, kw_only=True):
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[_OwnerReference, ...] = ()


class _Spec(KubernetesObject, frozen=True, kw_only=True):
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None


class _Status(KubernetesObject, frozen=True, kw_only=True):
    conditions: tuple[PodCondition, ...] = ()
    qos_class: str = ""


class _Pod(KubernetesObject, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_pods: Final = msgspec.json.Decoder(_Pod)


def is_pod_name(namespace: str, name: str) -> bool:
    """Whether a pod may have these names."""
    return bool(_NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(name))


def read_live_pod(data: bytes | msgspec.Raw) -> LivePod:
    """Convert a JSON object. Raises `InvalidRecordError`."""
    record, pod = read_manifest(data), decode_object(data, _pods, "Pod")
    if not record.uid or not record.name or not record.namespace:
        raise InvalidRecordError("a pod has no uid, name or namespace")
    # A deletion may have another grace period than the pod.
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None:
        grace = pod.spec.termination_grace_period_seconds
    versions = [o.api_version for o in pod.metadata.owner_references if o.controller]
    return LivePod(
        record=record,
        is_ready=any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions),
        kube_qos=pod.status.qos_class,
        may_preempt=pod.spec.preemption_policy != "Never",
        grace_seconds=GRACE_SECONDS if grace is None else max(float(grace), 0.0),
        owner_api_version=versions[0] if versions else "",
    )
