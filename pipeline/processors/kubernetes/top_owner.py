"""The workload behind a pod's controller: the Deployment of a ReplicaSet, the CronJob of a Job.

A pod names only its controller. What stands behind it follows from names that Kubernetes composes,
so that no second object has to be known when a sample is joined.
"""

import re
from typing import Final

from pipeline.times import time_or_none
from pipeline.topics.pods import Owner, PodFacts, PodRecord
from pipeline.topics.workloads import Workload

_HASH_LABELS: Final = {
    "pod-template-hash": "Deployment",
    "rollouts-pod-template-hash": "Rollout",
}
"""The label with which a controller marks the ReplicaSet of a template, and its pods."""
_SCHEDULED: Final = re.compile(r"(.+)-(\d{8})")
_LATE_SECONDS: Final = 86_400.0


def top_owner(pod: PodFacts | PodRecord) -> Owner | None:
    """The workload of a pod; its controller if nothing is known to be behind that.

    A ReplicaSet of a Deployment is named after it and the template's hash, which its pods have as a
    label; a Job of a CronJob after it and the minute for which it was scheduled, in minutes since
    1970.
    """
    owner = pod.owner
    if owner is None:
        return None
    if owner.kind == "ReplicaSet":
        for label, kind in _HASH_LABELS.items():
            name = owner.name.removesuffix(f"-{pod.labels.get(label, '')}")
            if name and name != owner.name and pod.labels.get(label):
                return Owner(kind=kind, name=name)
    elif owner.kind == "Job" and (match := _SCHEDULED.fullmatch(owner.name)):
        created = time_or_none(pod.created_at)
        # Other numbers at the end, such as a date, are no minute shortly before the pod began.
        if created is not None and 0 <= created - 60 * int(match[2]) <= _LATE_SECONDS:
            return Owner(kind="CronJob", name=match[1])
    return owner


def workload_of(pod: PodFacts | PodRecord) -> Workload | None:
    """The workload of a pod: a Deployment, not its ReplicaSet; None for a bare pod."""
    owner = top_owner(pod)
    return None if owner is None else Workload(pod.namespace, owner.kind, owner.name)
