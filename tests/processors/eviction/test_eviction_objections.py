"""Objections to an eviction plan at its execution."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.eviction.eviction_objections import objection, pods_to_evict
from pipeline.processors.placement.victim_selection import AT_MOST
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.pods import Owner, PodRecord

FOR = WaitingPod(namespace="shop", name="web", uid="w", priority=9500)


def pod(uid: str, **more: Any) -> PodRecord:
    fields: dict[str, Any] = {"pod_class": "mid", "priority": 7500, "phase": "Running"} | more
    return PodRecord(node="n", uid=uid, cgroup_uid=uid, namespace="d", name=uid, **fields)


def plan(*uids: str, waiting: WaitingPod | None = FOR) -> EvictionPlanRecord:
    return EvictionPlanRecord(
        node="n", id="w/n", at="2026-01-01T00:00:00Z", valid_until="2026-01-01T00:00:30Z",
        planner="extender", why="", waiting=waiting,
        pods=tuple(LeavingPod(uid=uid, pod_class="mid") for uid in uids),
    )  # fmt: skip


WAITS = msgspec.structs.replace(pod("w"), node="", pod_class="prod", priority=9500)


def test_an_unchanged_plan_has_no_objection() -> None:
    assert objection(plan("a", "b"), WAITS, {"a": pod("a"), "b": pod("b"), "c": pod("c")}) is None


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        (None, "it was deleted"),
        (msgspec.structs.replace(WAITS, uid="another"), "it was deleted"),
        (msgspec.structs.replace(WAITS, node="m"), "is on m"),
        (msgspec.structs.replace(WAITS, deleted_at="2026-01-01T00:00:00Z"), "being deleted"),
        (msgspec.structs.replace(WAITS, pod_class="mid"), "not prod"),
        (msgspec.structs.replace(WAITS, priority=7500), "priority 7500"),
        (msgspec.structs.replace(WAITS, priority=None), "waiting pod 0"),
    ],
)
def test_an_ineligible_waiting_pod_refuses_the_plan(waiting: PodRecord | None, says: str) -> None:
    assert says in str(objection(plan("a"), waiting, {"a": pod("a")}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pod_class": "prod"}, "class prod"),
        ({"pod_class": "none"}, "class none"),
        ({"priority": 9500}, "priority 9500"),
        ({"priority": 10_000}, "priority 10000"),
        ({"owner": Owner(kind="DaemonSet", name="d")}, "opts out"),
        ({"owner": Owner(kind="Node", name="n")}, "opts out"),
        ({"labels": {"quota.scheduling.koordinator.sh/preemptible": "false"}}, "opts out"),
    ],
)
def test_a_pod_that_must_stay_refuses_the_whole_plan(changes: dict[str, Any], says: str) -> None:
    there = {"a": pod("a"), "b": pod("b", **changes)}
    assert says in str(objection(plan("a", "b"), WAITS, there))


def test_a_plan_without_waiting_pod_or_with_too_many_pods_is_refused() -> None:
    assert "names no waiting pod" in str(objection(plan("a", waiting=None), WAITS, {}))
    assert "preemptionPolicy" in str(objection(plan("a"), WAITS, {}, may_push_out=False))
    many = [f"p{at}" for at in range(AT_MOST + 1)]
    assert "more than" in str(objection(plan(*many), WAITS, {uid: pod(uid) for uid in many}))


def test_ended_and_deleted_pods_need_no_eviction() -> None:
    there = {
        "b": pod("b", deleted_at="2026-01-01T00:00:00Z"), "c": pod("c", phase="Failed"),
        "d": pod("d"),
    }  # fmt: skip
    assert [changes.uid for changes in pods_to_evict(plan("a", "b", "c", "d"), there)] == ["d"]
    assert pods_to_evict(plan(), there) == []
