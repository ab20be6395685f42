"""How many pods workloads should have, from `springtide.workloads`: a plan names no pod that the
evictor refuses because its workload has too few."""

from collections import OrderedDict
from typing import Final

from pipeline.processors.eviction.migration_limits import WorkloadState
from pipeline.processors.kubernetes.top_owner import workload_of
from pipeline.topics.codec import decode_json
from pipeline.topics.pods import PodRecord
from pipeline.topics.workloads import NO_WORKLOAD, Workload, WorkloadRecord

_SCALED: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})
"""Kinds whose records say how many pods a workload should have."""
_NEVER_MOVED: Final = frozenset({"Job", "CronJob"})
"""Kinds without a scale: an eviction loses the work of their pods."""
MOST_WORKLOADS: Final = 500_000
"""Workloads that are remembered; of more, those whose records are the oldest are unknown."""


class KnownReplicas:
    """The desired replicas of workloads. Those of ReplicaSets that belong to a Deployment are not
    kept: a cluster has ten of each."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[Workload, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def take(self, key: bytes | None, value: bytes | None) -> bool:
        """Take a record, or the tombstone of its key; False if it says no replicas. Raises
        `RecordError`."""
        if value is None:
            parts = (key or b"").decode(errors="replace").split("/")
            deleted = Workload(*parts) if len(parts) == len(Workload._fields) else NO_WORKLOAD
            return self._replicas.pop(deleted, None) is not None
        record = decode_json(WorkloadRecord, value)
        workload = Workload(record.namespace, record.kind, record.name)
        self._replicas.pop(workload, None)
        if record.kind not in _SCALED or record.owner is not None or record.replicas is None:
            return False
        self._replicas[workload] = record.replicas
        if len(self._replicas) > MOST_WORKLOADS:
            self._replicas.popitem(last=False)
        return True

    def state_of(self, pod: PodRecord) -> WorkloadState | None:
        """What is known of the pod's workload; None if its replicas are not known here. Only the
        evictor knows which of its pods are missing."""
        workload = workload_of(pod)
        if workload is None:
            return None
        if workload.kind in _NEVER_MOVED:
            return WorkloadState(has_scale=False)
        replicas = self._replicas.get(workload)
        return None if replicas is None else WorkloadState(replicas=replicas)
