"""Pods, profiles and clusters for tests of admission."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.processors.admission.colocation_profile import Profile, read_profile
from pipeline.processors.admission.pod_schema import PodSchema
from pipeline.processors.admission.profile_application import (
    Cluster,
    PriorityClass,
    Request,
    Result,
    apply_profiles,
)

SCHEMA = Path(__file__).parents[2] / "data/pod_schema.json"
"""What an API server of version 1.34 serves at /openapi/v3/api/v1, of pods alone and without
descriptions."""
CLASSES = {
    "koord-prod": PriorityClass(9000, "PreemptLowerPriority"),
    "koord-mid": PriorityClass(7000, "PreemptLowerPriority"),
    "koord-batch": PriorityClass(5000, "Never"),
}


@cache
def schema() -> PodSchema:
    return PodSchema(json.loads(SCHEMA.read_text()))


def container(name: str = "main", **resources: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": resources}


def pod(
    *containers: dict[str, Any], labels: dict[str, str] | None = None, name: str = "p", **spec: Any
) -> dict[str, Any]:
    """A pod as the API server sends it, with the priority that it sets before webhooks."""
    metadata: dict[str, Any] = {"labels": labels or {"app": "a"}}
    metadata |= {"name": name} if name else {"generateName": "d-"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers) or [container(requests={"cpu": "1"})],
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "schedulerName": "default-scheduler",
            **spec,
        },
        "status": {},
    }


def encoded(name: str = "p", *, noted: dict[str, str] | None = None, **spec: Any) -> bytes:
    """A profile as JSON, `noted` with annotations of its own."""
    metadata = {"name": name, "uid": "u", "generation": 1, "annotations": noted}
    kind = {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile"}
    return json.dumps({**kind, "metadata": metadata, "spec": spec}).encode()


def profile(name: str = "p", **more: Any) -> Profile:
    return read_profile(encoded(name, **more))


def applied(given: dict[str, Any], *profiles: Profile, uid: str = "r1", **options: Any) -> Result:
    cluster = Cluster(CLASSES, {"shop": {"team": "shop"}, "default": {}}, schema())
    namespace = options.pop("namespace", "default")
    return apply_profiles(given, Request(uid, namespace), profiles, cluster, **options)
