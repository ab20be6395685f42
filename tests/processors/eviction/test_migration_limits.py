"""Limits, one at a time: how many pods may be on the move, how often, and how many replicas."""

from typing import Any

import pytest

from pipeline.processors.eviction.eviction_history import EvictionHistory
from pipeline.processors.eviction.migration_limits import (
    Candidate,
    Eviction,
    WorkloadState,
    limits_reached,
    replica_guard,
    tokens,
    workload_limit,
)
from pipeline.processors.eviction.migration_policy import MigrationLimits, ObjectLimiter
from pipeline.topics.actions import ActionRecord
from pipeline.topics.workloads import Workload

NOW = 1_700_000_000.0
WEB = Workload("shop", "Deployment", "web")
OPEN: dict[str, Any] = {
    "max_migrating_per_node": None, "workload_limiter": ObjectLimiter(duration_seconds=0),
}  # fmt: skip


def pod(uid: str, workload: Workload | None = WEB, **more: Any) -> Candidate:
    values = {"node": "n", "namespace": "shop", "name": uid} | more
    return Candidate(uid=uid, workload=workload, **values)


def reached(
    history: EvictionHistory, state: WorkloadState | None = None, now: float = NOW, **limits: Any
) -> list[str]:
    candidate = pod("x")
    situation = history.situation(candidate, now, state or WorkloadState(replicas=100))
    policy = MigrationLimits(**(OPEN | limits))
    return [refusal.reason for refusal in limits_reached(candidate, situation, policy)]


def evicted(*uids: str, at: float = NOW, **more: Any) -> EvictionHistory:
    history = EvictionHistory(3600.0, 300.0)
    for uid in uids:
        history.note(pod(uid, **more), at)
    return history


@pytest.mark.parametrize(
    ("replicas", "setting", "limit"),
    [
        (11, None, 1), (10, None, 2), (4, None, 2), (3, None, 1), (0, None, 0), (None, 50, 1),
        (10, "19%", 1), (10, 0, 1), (10, -3, 1), (3, 9, 3),
    ],
)  # fmt: skip
def test_a_limit_is_rounded_down_but_never_to_zero(
    replicas: int | None, setting: Any, limit: int
) -> None:
    assert workload_limit(replicas, setting) == limit


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_migrating_globally": 1}, "MaxMigratingGlobally"),
        ({"max_migrating_per_node": 1}, "MaxMigratingPerNode"),
        ({"max_migrating_per_namespace": 1}, "MaxMigratingPerNamespace"),
        ({"max_migrating_per_workload": 1}, "MaxMigratingPerWorkload"),
        ({"max_unavailable_per_workload": 1}, "MaxUnavailablePerWorkload"),
        ({"workload_limiter": ObjectLimiter(duration_seconds=300)}, "ObjectLimiter"),
        (
            {"namespace_limiter": ObjectLimiter(duration_seconds=300, max_migrating=1)},
            "ObjectLimiter",
        ),
        ({"cycle_per_node": 1}, "CycleCap"),
        ({"cycle_per_namespace": 1}, "CycleCap"),
        ({"cycle_total": 1}, "CycleCap"),
    ],
)
def test_each_limit_alone_refuses_a_second_pod(limits: dict[str, Any], reason: str) -> None:
    assert reached(evicted("a"), **limits) == [reason]
    assert reached(evicted(), **limits) == []
    # The pod itself does not count against its own eviction at the same time.
    at_once = reason.startswith("Max")
    assert not at_once or reached(evicted("x"), **limits) == []


def test_limits_at_once_end_when_the_pod_is_gone() -> None:
    history = evicted("a")
    limits: dict[str, Any] = {"max_migrating_globally": 1, "max_migrating_per_node": 1}
    assert len(reached(history, **limits)) == 2
    history.left("a")
    assert reached(history, **limits) == []


def test_a_workload_counts_a_pod_until_its_replacement_is_ready() -> None:
    history = evicted("a")
    history.left("a")
    limits: dict[str, Any] = {"max_migrating_per_workload": 1, "max_unavailable_per_workload": 9}
    waiting = WorkloadState(replicas=10, unavailable=frozenset({"new"}))
    for state in (waiting, WorkloadState(replicas=10, missing=1)):
        assert reached(history, state, **limits) == ["MaxMigratingPerWorkload"]
    assert reached(history, WorkloadState(replicas=10), **limits) == []
    # After the TTL only the workload's own state counts.
    assert reached(history, waiting, NOW + 301, **limits) == []


def test_missing_and_unready_pods_of_any_cause_count_as_unavailable() -> None:
    limits: dict[str, Any] = {"max_unavailable_per_workload": 2}
    state = WorkloadState(replicas=10, unavailable=frozenset({"u"}), missing=1)
    assert reached(evicted(), state, **limits) == ["MaxUnavailablePerWorkload"]
    # The eviction of an unavailable pod makes no other unavailable.
    own = WorkloadState(replicas=10, unavailable=frozenset({"x", "u"}))
    assert reached(evicted(), own, **limits) == []
    # A pod that is being deleted counts as missing, or by its replacement.
    gone = WorkloadState(replicas=10, unavailable=frozenset({"new"}), present=frozenset({"x"}))
    assert reached(evicted("a"), gone, **limits) == []


def test_of_a_workload_of_unknown_size_one_pod_moves_at_a_time() -> None:
    assert reached(evicted("a"), WorkloadState()) == [
        "MaxMigratingPerWorkload", "MaxUnavailablePerWorkload",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "is_refused"),
    [
        (None, False), (WorkloadState(), True), (WorkloadState(replicas=1), True),
        (WorkloadState(replicas=2), False), (WorkloadState(replicas=9, has_scale=False), True),
    ],
)  # fmt: skip
def test_a_single_replica_stays(state: WorkloadState | None, is_refused: bool) -> None:
    assert bool([*replica_guard(state, MigrationLimits())]) == is_refused
    assert not [*replica_guard(state, MigrationLimits(skip_check_expected_replicas=True))]


def test_a_bucket_refills_with_time_and_ignores_clocks_ahead() -> None:
    evictions = [Eviction(pod("a"), NOW), Eviction(pod("b"), NOW + 500)]
    assert tokens(evictions, NOW, 0.1, 2) == 0.0
    assert tokens(evictions[:1], NOW + 5, 0.1, 2) == 1.5
    assert tokens([], NOW, 0.1, 2) == 2.0
    assert tokens(evictions[:1], NOW + 1e6, 0.1, 2) == 2.0


def test_a_new_leader_has_the_history_of_the_former_one() -> None:
    def action(outcome: Any) -> ActionRecord:
        return ActionRecord(
            node="n", at="2026-01-01T00:00:00Z", actuator="evictor", action="evict",
            outcome=outcome, why="", before={"shop/a": "a"}, after={"shop/a": None}, plan="p",
            workload="Deployment/shop/web",
        )  # fmt: skip

    history = EvictionHistory(3600.0, 300.0)
    history.learn(action("observed"), NOW, NOW)
    assert len(history) == 0
    history.learn(action("intended"), NOW - 100, NOW)
    (eviction,) = history.leaving
    # The call may have come later than its record, but not later than now.
    assert eviction == Eviction(pod("a"), NOW - 40)
    history.learn(action("intended"), NOW - 10, NOW)
    assert [e.at for e in history.leaving] == [NOW]
    assert len(history) == 1
    history.learn(action("refused"), NOW, NOW)
    assert len(history) == 1


def test_old_evictions_are_forgotten_but_not_pods_that_still_leave() -> None:
    history = evicted("a", "b")
    history.left("b")
    history.forget(NOW + 4000)
    assert [e.pod.uid for e in history.leaving] == ["a"]
    assert len(history) == 1
    history.stays("a")
    history.forget(NOW + 4000)
    assert len(history) == 0
