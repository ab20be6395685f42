"""Facts of one pod as a window carries them, computed once from its record.

A worker holds up to a million: texts that repeat are interned, and only the `view` is encoded.
"""

import sys
from functools import lru_cache
from typing import NamedTuple

from pipeline.processors.join.view_documents import pod_view
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.kubernetes.top_owner import top_owner
from pipeline.times import time_or_none
from pipeline.topics.pod_columns import GONE
from pipeline.topics.pods import PodFacts, PodRecord


class PodRow(NamedTuple):
    """The facts of a pod by column.

    `owner_kind` and `owner_name` are of the workload: a Deployment, not its ReplicaSet. `uid` tells
    the pod from another one with the same cgroup. `view` is its part of the node's view, as JSON.
    """

    pod_class: int | None = None
    namespace: str | None = None
    name: str | None = None
    koordinator_qos: str | None = None
    phase: str | None = None
    owner_kind: str | None = None
    owner_name: str | None = None
    request_cpu_millicores: float | None = None
    request_memory_bytes: float | None = None
    limit_cpu_millicores: float | None = None
    limit_memory_bytes: float | None = None
    created_seconds: float | None = None
    deleting: bool | None = None
    uid: str | None = None
    view: bytes | None = None


def pod_row(pod: PodFacts | PodRecord) -> PodRow:
    """The facts of this pod."""
    owner = top_owner(pod)
    return PodRow(
        pod_class=CLASS_CODES.get(pod.pod_class, CLASS_CODES["unknown"]),
        namespace=sys.intern(pod.namespace),
        name=pod.name,
        koordinator_qos=sys.intern(pod.qos),
        phase=sys.intern(pod.phase),
        owner_kind=sys.intern(owner.kind) if owner else None,
        owner_name=sys.intern(owner.name) if owner else None,
        # Absent requests of a known pod are 0, not unknown.
        request_cpu_millicores=_number(pod.requests.cpu_millicores or 0),
        request_memory_bytes=_number(pod.requests.memory_bytes or 0),
        limit_cpu_millicores=_number(pod.limits.cpu_millicores),
        limit_memory_bytes=_number(pod.limits.memory_bytes),
        created_seconds=time_or_none(pod.created_at),
        deleting=pod.deleted_at is not None,
        uid=sys.intern(pod.uid),
        view=pod_view(pod),
    )


def deleted_row(row: PodRow) -> PodRow:
    """The facts of this pod once it is deleted: its requests count no longer."""
    return row._replace(phase=GONE, deleting=True, view=None)


@lru_cache(maxsize=4096)  # many pods have the same requests
def _number(amount: int | None) -> float | None:
    # A record may hold whole numbers that no float can; these bounds are invalid values, too.
    return None if amount is None else float(min(max(amount, -1), 2**63))
