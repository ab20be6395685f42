"""What speaks against an eviction, by the world as it is."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.eviction.eviction_objections import leaving, objection
from pipeline.processors.placement.victim_selection import AT_MOST
from pipeline.topics.eviction_plans import EvictionPlanRecord, LeavingPod, WaitingPod
from pipeline.topics.pods import Owner, PodRecord

FOR = WaitingPod(namespace="shop", name="web", uid="w", priority=9500)


def pod(uid: str, **more: Any) -> PodRecord:
    fields = {"pod_class": "mid", "priority": 7500, "phase": "Running"} | more
    return PodRecord(node="n", uid=uid, cgroup_uid=uid, namespace="d", name=uid, **fields)


def plan(*uids: str, waiting: WaitingPod | None = FOR) -> EvictionPlanRecord:
    return EvictionPlanRecord(
        node="n", id="w/n", at="2026-01-01T00:00:00Z", valid_until="2026-01-01T00:00:30Z",
        planner="extender", why="", waiting=waiting,
        pods=tuple(LeavingPod(uid=uid, pod_class="mid") for uid in uids),
    )  # fmt: skip


WAITS = msgspec.structs.replace(pod("w"), node="", pod_class="prod", priority=9500)


def test_nothing_speaks_against_what_is_as_planned() -> None:
    assert objection(plan("a", "b"), WAITS, {"a": pod("a"), "b": pod("b"), "c": pod("c")}) is None


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        (None, "gone"),
        (msgspec.structs.replace(WAITS, uid="another"), "gone"),
        (msgspec.structs.replace(WAITS, node="m"), "is on m"),
        (msgspec.structs.replace(WAITS, deleted_at="2026-01-01T00:00:00Z"), "deleted"),
        (msgspec.structs.replace(WAITS, pod_class="mid"), "not prod"),
        (msgspec.structs.replace(WAITS, priority=7500), "priority 7500"),
        (msgspec.structs.replace(WAITS, priority=None), "waits 0"),
    ],
)
def test_for_whom_nobody_leaves(waiting: PodRecord | None, says: str) -> None:
    assert says in str(objection(plan("a"), waiting, {"a": pod("a")}))


@pytest.mark.parametrize(
    ("one", "says"),
    [
        ({"pod_class": "prod"}, "class prod"),
        ({"pod_class": "none"}, "class none"),
        ({"priority": 9500}, "priority 9500"),
        ({"priority": 10_000}, "priority 10000"),
        ({"owner": Owner(kind="DaemonSet", name="d")}, "stays"),
        ({"owner": Owner(kind="Node", name="n")}, "stays"),
        ({"labels": {"quota.scheduling.koordinator.sh/preemptible": "false"}}, "stays"),
    ],
)
def test_one_who_must_stay_keeps_all(one: dict[str, Any], says: str) -> None:
    there = {"a": pod("a"), "b": pod("b", **one)}
    assert says in str(objection(plan("a", "b"), WAITS, there))


def test_a_plan_of_nothing_and_of_too_many() -> None:
    assert "for whom" in str(objection(plan("a", waiting=None), WAITS, {}))
    assert "preemptionPolicy" in str(objection(plan("a"), WAITS, {}, may_push_out=False))
    many = [f"p{at}" for at in range(AT_MOST + 1)]
    assert "more than" in str(objection(plan(*many), WAITS, {uid: pod(uid) for uid in many}))


def test_who_is_gone_or_about_to_go_need_not_be_evicted() -> None:
    there = {
        "b": pod("b", deleted_at="2026-01-01T00:00:00Z"), "c": pod("c", phase="Failed"),
        "d": pod("d"),
    }  # fmt: skip
    assert [one.uid for one in leaving(plan("a", "b", "c", "d"), there)] == ["d"]
    assert leaving(plan(), there) == []
