"""Recommendations as objects of Kubernetes: a VerticalPodAutoscaler, Koordinator's Recommendation.

Both describe containers. Where no container is known, as in records of older releases, both have
one entry without the name of a container, for the pod as a whole.
"""

import hashlib
from typing import Any, Final

import msgspec

from pipeline.topics.recommendations import ContainerRecommendation, RecommendationRecord

VPA_API_VERSION: Final = "autoscaling.k8s.io/v1"
RECOMMENDER: Final = "springtide"
"""The recommender that a VerticalPodAutoscaler names. The autoscaler's own recommender leaves the
status of such an object alone."""

_API_VERSIONS: Final = {
    "CronJob": "batch/v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "Rollout": "argoproj.io/v1alpha1",
    "StatefulSet": "apps/v1",
}
_LONGEST_NAME: Final = 253
_WHOLE_POD: Final = "for the pod as a whole, because no container is known"


def vpa_object(record: RecommendationRecord) -> dict[str, Any]:
    """The VerticalPodAutoscaler of a workload, which recommends and changes no pod (mode `Off`).

    Its name has a prefix, so that it never replaces an autoscaler of the same workload. The
    `apiVersion` of a kind that is not well-known is missing.
    """
    containers = [msgspec.to_builtins(each) for each in _containers(record)]
    scope = "per container" if record.containers else _WHOLE_POD
    target = {"kind": record.kind, "name": record.name}
    if record.kind in _API_VERSIONS:
        target = {"apiVersion": _API_VERSIONS[record.kind], **target}
    return {
        "apiVersion": VPA_API_VERSION,
        "kind": "VerticalPodAutoscaler",
        "metadata": {
            "namespace": record.namespace,
            "name": _object_name(record),
        },
        "spec": {
            "targetRef": target,
            "updatePolicy": {"updateMode": "Off"},
            "recommenders": [{"name": RECOMMENDER}],
        },
        "status": {
            "conditions": [
                {
                    "type": "RecommendationProvided",
                    "status": "True",
                    "message": f"{scope}; as of {record.as_of}, with "
                    f"{record.history_days:.1f} days of history{_oom_kills(record)}",
                }
            ],
            "recommendation": {"containerRecommendations": containers},
        },
    }


def _containers(record: RecommendationRecord) -> tuple[ContainerRecommendation, ...]:
    return record.containers or record.recommendation.container_recommendations


def _oom_kills(record: RecommendationRecord) -> str:
    kills = record.oom_kills
    if kills is None:
        return ""
    return f"; OOM killed at {kills.last_at}, which counts as a peak of {kills.peak} bytes"


def _object_name(record: RecommendationRecord) -> str:
    """The name of a workload's object. A hash stands for the end of one that is too long."""
    name = f"{RECOMMENDER}-{record.kind.lower()}-{record.name}"
    if len(name) <= _LONGEST_NAME:
        return name
    end = f"-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
    return name[: _LONGEST_NAME - len(end)].rstrip("-.") + end


def koordinator_object(record: RecommendationRecord) -> dict[str, Any]:
    """The workload's `Recommendation` of Koordinator."""
    statuses: list[dict[str, Any]] = [
        {
            **({"containerName": each.container_name} if each.container_name else {}),
            "resources": each.target,
        }
        for each in _containers(record)
    ]
    return {
        "apiVersion": "analysis.koordinator.sh/v1alpha1",
        "kind": "Recommendation",
        "metadata": {"namespace": record.namespace, "name": record.name},
        "spec": {
            "target": {
                "type": "workload", "workload": {"kind": record.kind, "name": record.name},
            }
        },
        "status": {"containerStatuses": statuses},
    }  # fmt: skip
