"""Replicas of workloads as the planner knows them, from their topic."""

from typing import Any

import pytest

from pipeline.errors import RecordError
from pipeline.processors.eviction import known_replicas
from pipeline.processors.eviction.known_replicas import KnownReplicas
from pipeline.processors.eviction.migration_limits import WorkloadState, replica_guard
from pipeline.processors.eviction.migration_policy import MigrationLimits
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.workloads import WorkloadRecord, workload_key
from tests.table.records import any_pod


def put(known: KnownReplicas, kind: str, replicas: int | None, **fields: Any) -> bool:
    record = WorkloadRecord(
        **({"namespace": "d", "kind": kind, "name": "web", "replicas": replicas} | fields)
    )
    key = workload_key(record.namespace, record.kind, record.name)
    return known.take(key, encode_json(record))


def of_deployment() -> PodRecord:
    owner = Owner(kind="ReplicaSet", name="web-6f5d")
    return any_pod(owner=owner, labels={"pod-template-hash": "6f5d"})


def is_refused(known: KnownReplicas, pod: PodRecord) -> bool:
    return any(replica_guard(known.state_of(pod), MigrationLimits()))


@pytest.mark.parametrize(
    ("replicas", "refused"), [(0, True), (1, True), (2, False), (3, False), (None, False)]
)
def test_pods_of_a_workload_with_too_few_replicas_stay(replicas: int | None, refused: bool) -> None:
    known = KnownReplicas()
    assert put(known, "Deployment", replicas) == (replicas is not None)
    assert is_refused(known, of_deployment()) == refused


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_other_controllers_with_a_scale_are_known_by_their_own_replicas(kind: str) -> None:
    known = KnownReplicas()
    put(known, kind, 1)
    assert is_refused(known, any_pod(owner=Owner(kind=kind, name="web")))
    assert not is_refused(known, any_pod(owner=Owner(kind=kind, name="other")))
    other = any_pod(owner=Owner(kind=kind, name="web"), namespace="e")
    assert not is_refused(known, other)


def test_what_is_not_known_is_left_to_the_evictor() -> None:
    known = KnownReplicas()
    assert known.state_of(of_deployment()) is None
    assert known.state_of(any_pod(owner=None)) is None
    assert known.state_of(any_pod(owner=Owner(kind="CloneSet", name="web"))) is None


def test_an_eviction_would_lose_the_work_of_a_job() -> None:
    job = any_pod(owner=Owner(kind="Job", name="import"))
    assert KnownReplicas().state_of(job) == WorkloadState(has_scale=False)
    assert is_refused(KnownReplicas(), job)


def test_the_last_record_counts_and_a_deleted_workload_is_unknown() -> None:
    known = KnownReplicas()
    put(known, "Deployment", 1)
    put(known, "Deployment", 5)
    assert not is_refused(known, of_deployment())
    put(known, "Deployment", 1)
    assert known.take(b"d/Deployment/web", None)
    assert not known.take(b"d/Deployment/web", None)
    assert not known.take(b"\xff/x", None)
    assert not known.take(None, None)
    assert (known.state_of(of_deployment()), len(known)) == (None, 0)
    put(known, "Deployment", 1)
    put(known, "Deployment", None)
    assert len(known) == 0


def test_budgets_and_replica_sets_of_deployments_take_no_memory() -> None:
    known = KnownReplicas()
    assert not put(known, "ReplicaSet", 1, owner=Owner(kind="Deployment", name="web"))
    assert not put(known, "PodDisruptionBudget", None)
    assert not put(known, "DaemonSet", 7)
    assert not put(known, "Job", 7)
    assert len(known) == 0


def test_memory_is_bounded_and_garbage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_replicas, "MOST_WORKLOADS", 3)
    known = KnownReplicas()
    for number in range(9):
        put(known, "Deployment", 1, name=f"w{number}")
    assert len(known) == 3
    for value in (b"", b"{", b"[]", b'{"version":1}'):
        with pytest.raises(RecordError):
            known.take(b"d/Deployment/web", value)
    assert len(known) == 3
