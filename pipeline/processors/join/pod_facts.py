"""Facts of one pod as a window carries them, computed once from its record.

A worker holds up to a million: texts that repeat are interned, and only the `view` is encoded.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pipeline.processors.join.view_documents import pod_view
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.processors.kubernetes.top_owner import top_owner
from pipeline.times import time_or_none
from pipeline.topics.pod_columns import GONE
from pipeline.topics.pods import PodFacts, PodRecord
from pipeline.topics.samples import MAX_CONTAINERS_PER_POD

LONGEST_CONTAINER_NAME: Final = 63
"""Kubernetes' limit of the names of containers."""


class PodRow(NamedTuple):
    """The facts of a pod by column.

    `owner_kind` and `owner_name` are of the workload: a Deployment, not its ReplicaSet. `uid` tells
    the pod from another one with the same cgroup. `view` is its part of the node's view, as JSON.
    `containers` are the names of its containers and sidecars with their ids, which are empty for a
    container that has not started, and for an only one, which needs none.
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
    containers: tuple[tuple[str, str], ...] = ()

    def container_names(self, ids: Sequence[str]) -> tuple[str | None, ...]:
        """The names of the containers with these `ids`, None is unknown; without ids that of the
        only container of the pod, `()` if it has several."""
        if not ids:
            return (self.containers[0][0],) if len(self.containers) == 1 else ()
        names = {id: name for name, id in self.containers if id}
        return tuple(map(names.get, ids))


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
        containers=_containers(pod),
    )


def _containers(pod: PodFacts | PodRecord) -> tuple[tuple[str, str], ...]:
    sidecars = (each for each in pod.init_containers if each.restartable)
    names = [each.name for each in (*pod.containers, *sidecars)]
    if (
        any(len(name) > LONGEST_CONTAINER_NAME for name in names)
        or len(names) > MAX_CONTAINERS_PER_POD
    ):
        return ()
    if len(names) == 1:
        return ((sys.intern(names[0]), ""),)
    return tuple((sys.intern(name), pod.container_ids.get(name, "")) for name in names)


def deleted_row(row: PodRow) -> PodRow:
    """The facts of this pod once it is deleted: its requests count no longer."""
    return row._replace(phase=GONE, deleting=True, view=None)


@lru_cache(maxsize=4096)  # many pods have the same requests
def _number(amount: int | None) -> float | None:
    # A record may hold whole numbers that no float can; these bounds are invalid values, too.
    return None if amount is None else float(min(max(amount, -1), 2**63))
