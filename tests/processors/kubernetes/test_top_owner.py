"""The workload of a pod is what stands behind its controller."""

import pytest

from pipeline.processors.kubernetes.top_owner import top_owner
from pipeline.topics.pods import Owner, PodRecord

CREATED = "2026-03-01T10:00:05Z"
SCHEDULED = 29_539_320
"""The minute 2026-03-01T10:00Z."""


def pod(kind: str, name: str, created_at: str | None = CREATED, **labels: str) -> PodRecord:
    return PodRecord(
        node="a", uid="u", cgroup_uid="u", namespace="shop", name="p", created_at=created_at,
        owner=Owner(kind=kind, name=name),
        labels={name.replace("_", "-"): value for name, value in labels.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod("ReplicaSet", "web-5d4f8", pod_template_hash="5d4f8"), ("Deployment", "web")),
        (pod("ReplicaSet", "web-5d4f8", rollouts_pod_template_hash="5d4f8"), ("Rollout", "web")),
        (pod("ReplicaSet", "web-5d4f8"), ("ReplicaSet", "web-5d4f8")),
        (pod("ReplicaSet", "web-5d4f8", pod_template_hash="other"), ("ReplicaSet", "web-5d4f8")),
        (pod("ReplicaSet", "web-", pod_template_hash=""), ("ReplicaSet", "web-")),
        (pod("ReplicaSet", "-5d4f8", pod_template_hash="5d4f8"), ("ReplicaSet", "-5d4f8")),
        (pod("StatefulSet", "db-5d4f8", pod_template_hash="5d4f8"), ("StatefulSet", "db-5d4f8")),
        (pod("Job", f"nightly-{SCHEDULED}"), ("CronJob", "nightly")),
        (pod("Job", f"nightly-{SCHEDULED - 1441}"), ("Job", f"nightly-{SCHEDULED - 1441}")),
        (pod("Job", f"nightly-{SCHEDULED + 1}"), ("Job", f"nightly-{SCHEDULED + 1}")),
        (pod("Job", f"nightly-{SCHEDULED}", None), ("Job", f"nightly-{SCHEDULED}")),
        (pod("Job", "migrate-20260301"), ("Job", "migrate-20260301")),
    ],
)
def test_top_owner(given: PodRecord, expected: tuple[str, str]) -> None:
    owner = top_owner(given)
    assert owner is not None
    assert (owner.kind, owner.name) == expected


def test_pod_without_a_controller_has_none() -> None:
    assert top_owner(PodRecord(node="a", uid="u", cgroup_uid="u", namespace="s", name="p")) is None
