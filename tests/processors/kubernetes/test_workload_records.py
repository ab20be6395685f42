"""Workloads and PodDisruptionBudgets as records."""

import json
from typing import Any

import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.kubernetes.workload_records import BUDGET, read_workload
from pipeline.topics.pods import Owner
from pipeline.topics.workloads import Budget, WorkloadRecord, workload_key


def read(kind: str = "Deployment", **of: Any) -> WorkloadRecord:
    of.setdefault("metadata", {"name": "cart", "namespace": "shop"})
    return read_workload(json.dumps(of).encode(), kind)


@pytest.mark.parametrize(
    ("kind", "spec", "status", "replicas", "ready"),
    [
        ("Deployment", {"replicas": 3}, {"readyReplicas": 2}, 3, 2),
        ("Deployment", {"replicas": 0}, {}, 0, 0),
        ("Deployment", {}, None, None, 0),
        ("DaemonSet", {}, {"desiredNumberScheduled": 5, "numberReady": 4}, 5, 4),
        ("Job", {"parallelism": 2, "completions": 9}, {"ready": 1}, 2, 1),
        ("StatefulSet", None, None, None, 0),
        ("ReplicaSet", {"replicas": None}, {"readyReplicas": None}, None, 0),
    ],
)
def test_replicas_and_ready_pods_of_each_kind(
    kind: str, spec: Any, status: Any, replicas: int | None, ready: int
) -> None:
    result = read(kind, spec=spec, status=status)
    assert (result.kind, result.replicas, result.ready_replicas, result.budget) == (
        kind, replicas, ready, None,
    )  # fmt: skip


def test_a_budget_keeps_percentages_as_written() -> None:
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["cart"]}]}
    result = read(
        BUDGET,
        spec={"minAvailable": "50%", "selector": selector},
        status={
            "disruptionsAllowed": 1,
            "currentHealthy": 3,
            "desiredHealthy": 2,
            "expectedPods": 4,
        },
    )
    assert result.selector == selector
    assert result.budget == Budget(
        min_available="50%",
        disruptions_allowed=1,
        current_healthy=3,
        desired_healthy=2,
        expected_pods=4,
    )
    assert read(BUDGET, spec={"maxUnavailable": 0}).budget == Budget(max_unavailable="0")
    # Nobody has worked out yet how many may go: none may.
    assert read(BUDGET).budget == Budget()


def test_the_owner_is_the_controlling_reference() -> None:
    owners = [
        {"kind": "Other", "name": "o"},
        {"kind": "Other", "name": "p", "controller": None},
        {"kind": "Deployment", "name": "cart", "controller": True},
    ]
    result = read(
        "ReplicaSet", metadata={"name": "cart-1", "namespace": "s", "ownerReferences": owners}
    )
    assert result.owner == Owner(kind="Deployment", name="cart")
    assert read().owner is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"metadata": 5, ', b"[]", b"null", b"{}", b'{"metadata": {}}',
     b'{"metadata": {"name": 1}}',
     b'{"metadata": {"name": "a"}, "spec": {"replicas": "3"}}', b"\xff", b"[" * 99_999],
)  # fmt: skip
def test_an_invalid_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="not a Job object"):
        read_workload(data, "Job")


def test_workload_keys_have_namespace_kind_and_name() -> None:
    assert workload_key("shop", "Job", "cart") == b"shop/Job/cart"
