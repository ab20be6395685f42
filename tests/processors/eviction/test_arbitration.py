"""The order of waiting evictions."""

from typing import Any

from pipeline.processors.eviction.arbitration import Request, arbitration_order, judge, pod_rank
from pipeline.topics.pods import PodRecord


def pod(**more: Any) -> PodRecord:
    return PodRecord(node="n", uid="a", cgroup_uid="a", namespace="d", name="a", **more)


def test_cheap_pods_come_first_by_each_part_of_the_rank() -> None:
    created = "2026-01-01T00:00:00Z"
    base: dict[str, Any] = {
        "pod_class": "batch", "priority": 5500, "qos": "LS", "created_at": created,
    }  # fmt: skip
    cheaper: list[dict[str, Any]] = [
        {"pod_class": "free", "priority": 9999}, {"priority": 5000}, {"qos": "BE"},
        {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1"}},
        {"annotations": {"scheduling.koordinator.sh/eviction-cost": "-1"}},
        {"created_at": "2026-01-01T00:00:01Z"},
    ]  # fmt: skip
    for changes in cheaper:
        assert pod_rank(pod(**(base | changes)), "Burstable") < pod_rank(pod(**base), "Burstable")
    assert pod_rank(pod(**base), "BestEffort") < pod_rank(pod(**base), "Burstable")
    # A class that is unknown protects as the highest.
    assert pod_rank(pod(pod_class="prod"), "") < pod_rank(pod(pod_class="none"), "")


def test_moving_jobs_come_before_siblings_before_ranks_before_newer_requests() -> None:
    requests = [
        Request(created_at=1, rank=(5,)), Request(created_at=2, rank=(5,)),
        Request(created_at=1, rank=(9,), batch_job="a"), Request(rank=(1,), batch_job="a"),
        Request(created_at=1, rank=(7,), batch_job="b"), Request(created_at=1),
    ]  # fmt: skip
    assert arbitration_order(requests, {}) == [5, 3, 2, 1, 0, 4]
    assert arbitration_order(requests, {"b": 1}) == [4, 5, 3, 2, 1, 0]


def test_a_pod_that_may_never_be_evicted_fails_and_one_above_a_limit_waits() -> None:
    assert judge(exists=True, is_evictable=True, is_within_limits=True) == "pass"
    assert judge(exists=True, is_evictable=True, is_within_limits=False) == "wait"
    assert judge(exists=True, is_evictable=False, is_within_limits=False) == "fail"
    assert judge(exists=False, is_evictable=False, is_within_limits=False) == "pass"
