"""Plans for a Prod pod that every node refuses: which pods leave, and when none do."""

from typing import Any

import msgspec
import pytest

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.eviction_planner import EvictionPlanner
from pipeline.extender.limits import (
    PLAN_BEGUN_SECONDS,
    PLAN_PAIR_SECONDS,
    PLAN_SETTLED_SECONDS,
    PLAN_VALID_SECONDS,
    PLANS_PER_POD,
)
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import TableNode
from pipeline.times import format_time, parse_time
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources, Usage
from tests.table.records import GIB, NOW, any_pod, node_state, running

MID, BATCH = "kubernetes.io/mid-cpu", "kubernetes.io/batch-cpu"


def pod(uid: str, pod_class: str, cores: float, node: str = "", **more: Any) -> PodRecord:
    """A pod of its class, there for long."""
    millicores = round(cores * 1000)
    by_class = {"mid": MID, "batch": BATCH}
    native = Resources() if pod_class in by_class else Resources(cpu_millicores=millicores)
    scalars = {by_class[pod_class]: millicores} if pod_class in by_class else None
    priority = {"prod": 9500, "mid": 7500, "batch": 5500, "free": 3500}[pod_class]
    fields: dict[str, Any] = {"priority": priority, "phase": "Running"} | more
    return any_pod(
        uid, node=node, pod_class=pod_class, requests=native, limits=native, scalars=scalars,
        scheduled_at=format_time(NOW - 9000), **fields,
    )  # fmt: skip


def put_node(table: Table, name: str, cpu: float, now: float = NOW, **of_classes: float) -> None:
    """A node of 64 cores that uses so much, its classes so much of it."""
    used = {key: Usage(cpu_cores=cores, memory_bytes=GIB) for key, cores in of_classes.items()}
    table.put_state(
        node_state(
            name, cpu=cpu, memory=16 * GIB, cores=64.0, room=256 * GIB, class_usage=used,
            offset=round(now - NOW), age=10.0 + NOW - now,
        )
    )  # fmt: skip


def world(*pods: PodRecord, **nodes: dict[str, float]) -> tuple[Table, Decisions, EvictionPlanner]:
    rules = rules_of(ExtenderSettings())
    table = Table(counting=rules.counting)
    for name, used in nodes.items():
        put_node(table, name, sum(used.values()), **used)
    for item in pods:
        table.put_pod(item)
    table.bring_up_to_date(NOW)
    decisions = Decisions(table, rules)
    return table, decisions, EvictionPlanner(decisions)


WAITING = pod("urgent", "prod", 8.0)


def asked(
    decisions: Decisions, planner: EvictionPlanner, *names: str, asking: PodRecord = WAITING,
    now: float = NOW,
) -> EvictionPlanRecord | None:  # fmt: skip
    """What is planned for a pod that all of these nodes refuse."""
    result = decisions.filter(asking, names, now)
    assert set(result.refused) == set(names)
    return planner.plan(asking, result.refused, now)


def planned(
    decisions: Decisions, planner: EvictionPlanner, *names: str, **more: Any
) -> EvictionPlanRecord:
    """The plan for a pod that all of these nodes refuse."""
    plan = asked(decisions, planner, *names, **more)
    assert plan is not None
    return plan


def leave(plan: EvictionPlanRecord) -> list[str]:
    return [item.uid for item in plan.pods]


def test_only_pods_in_the_way_leave() -> None:
    _, decisions, planner = world(
        pod("large", "mid", 20.0, "a"), pod("small", "mid", 2.0, "a"), pod("b", "batch", 1.0, "a"),
        pod("other", "mid", 2.0, "b"), pod("p", "prod", 20.0, "a"),
        a={"prod": 25.0, "mid": 20.0, "batch": 1.0}, b={"prod": 44.0, "mid": 2.0},
    )  # fmt: skip
    plan = planned(decisions, planner, "a", "b")
    assert (plan.node, leave(plan)) == ("a", ["large"])
    # It has 20 of the 22 that Mid asks for, so 20/22 of what Mid uses.
    assert plan.pods[0].cpu_millicores == round(20_000 * 20 / 22)
    assert plan.waiting
    assert (plan.waiting.uid, plan.waiting.priority) == ("urgent", 9500)
    assert parse_time(plan.valid_until) - parse_time(plan.at) == PLAN_VALID_SECONDS
    assert "without 1 mid pod, which use about" in plan.why


def test_a_plan_of_many_pods_is_valid_and_reserves_its_node_for_longer() -> None:
    """By default two pods may leave a node at the same time."""
    pods = [pod(f"m{number}", "mid", 6.0, "a") for number in range(3)]
    table, decisions, planner = world(*pods, a={"prod": 33.0, "mid": 18.0})
    plan = planned(decisions, planner, "a")
    assert len(plan.pods) == 3
    valid_seconds = parse_time(plan.valid_until) - parse_time(plan.at)
    assert valid_seconds == PLAN_VALID_SECONDS + PLAN_PAIR_SECONDS
    # Nobody else gets the room while the plan may still begin.
    assert asked(decisions, planner, "a", now=NOW + 65) is None
    put_node(table, "a", 30.0, NOW + 70, prod=30.0)
    small, end = pod("small", "prod", 10.0), NOW + PLAN_BEGUN_SECONDS + PLAN_PAIR_SECONDS
    assert decisions.filter(small, ["a"], end - 1).refused
    assert not decisions.filter(small, ["a"], end + 1).refused


def test_batch_leaves_before_mid_on_any_node() -> None:
    """One Mid pod on `a` would do; on `b` it takes two of Batch."""
    _, decisions, planner = world(
        pod("m", "mid", 20.0, "a"), pod("b1", "batch", 9.0, "b"), pod("b2", "batch", 9.0, "b"),
        a={"prod": 25.0, "mid": 20.0}, b={"prod": 28.0, "batch": 18.0},
    )  # fmt: skip
    plan = planned(decisions, planner, "a", "b")
    assert (plan.node, sorted(leave(plan))) == ("b", ["b1", "b2"])


@pytest.mark.parametrize(
    "protected",
    [
        {"priority": 9500}, {"priority": 20_000}, {"owner": Owner(kind="DaemonSet", name="d")},
        {"owner": Owner(kind="Node", name="a")},
        {"labels": {"quota.scheduling.koordinator.sh/preemptible": "false"}},
        {"deleted_at": format_time(NOW - 1)}, {"phase": "Pending"}, {"phase": "Succeeded"},
    ],
)  # fmt: skip
def test_protected_pods_stay(protected: dict[str, Any]) -> None:
    _, decisions, planner = world(
        pod("m", "mid", 20.0, "a", **protected), a={"prod": 25.0, "mid": 20.0}
    )
    assert asked(decisions, planner, "a") is None


@pytest.mark.parametrize(
    ("others", "used"),
    [
        # Pods of Prod, and pods without a class, are never evicted.
        ([pod("p", "prod", 20.0, "a", priority=9000)], {"prod": 46.0}),
        # Evicting a pod frees only usage that is known.
        ([pod("m", "mid", 20.0, "a")], {"prod": 46.0}),
        ([pod("m", "mid", 20.0, "a")], {"prod": 40.0, "mid": 6.0}),
        # No pod of the table is on the node.
        ([], {"prod": 1.0, "mid": 45.0}),
    ],
)
def test_no_pod_leaves_where_that_does_not_help(
    others: list[PodRecord], used: dict[str, float]
) -> None:
    _, decisions, planner = world(*others, a=used)
    assert asked(decisions, planner, "a") is None


@pytest.mark.parametrize("pod_class", ["mid", "batch", "free"])
def test_only_prod_pods_get_plans(pod_class: str) -> None:
    _, decisions, planner = world(pod("b", "free", 20.0, "a"), a={"prod": 25.0, "free": 30.0})
    assert asked(decisions, planner, "a", asking=pod("asks", pod_class, 8.0, priority=9999)) is None


def test_a_pod_without_uid_gets_no_plan() -> None:
    _, decisions, planner = world(pod("m", "mid", 20.0, "a"), a={"prod": 25.0, "mid": 20.0})
    assert asked(decisions, planner, "a", asking=pod("", "prod", 8.0)) is None


def test_a_pod_gets_one_plan_at_a_time_on_different_nodes_and_few_in_all() -> None:
    names = [f"n{number}" for number in range(PLANS_PER_POD + 2)]
    mids = [pod(f"m-{name}", "mid", 20.0, name) for name in names]
    table, decisions, planner = world(
        *mids, **{name: {"prod": 25.0, "mid": 20.0} for name in names}
    )
    tried, now = [], NOW
    for _ in range(PLANS_PER_POD):
        plan = planned(decisions, planner, *names, now=now)
        tried.append(plan.node)
        # While it may still help it is expected there, and nothing else is tried.
        assert asked(decisions, planner, *names, now=now + 1) is None
        assert table.pods.row_of("urgent") == table.lookup([plan.node])[0]
        table.bring_up_to_date(now + PLAN_BEGUN_SECONDS - 1)
        assert table.pods.row_of("urgent") is not None
        now += PLAN_SETTLED_SECONDS + 1
        for name in names:
            put_node(table, name, 45.0, now, prod=25.0, mid=20.0)
        table.bring_up_to_date(now)
        assert table.pods.row_of("urgent") is None
    assert len(set(tried)) == PLANS_PER_POD
    assert asked(decisions, planner, *names, now=now) is None


def test_two_pods_get_no_plans_on_one_node() -> None:
    _, decisions, planner = world(
        pod("m1", "mid", 20.0, "a"), pod("m2", "mid", 20.0, "a"), a={"prod": 10.0, "mid": 45.0}
    )
    assert leave(planned(decisions, planner, "a"))
    other = pod("other", "prod", 8.0)
    assert asked(decisions, planner, "a", asking=other) is None
    assert asked(decisions, planner, "a", asking=other, now=NOW + PLAN_BEGUN_SECONDS - 1) is None
    assert asked(decisions, planner, "a", asking=other, now=NOW + PLAN_SETTLED_SECONDS) is not None


@pytest.mark.parametrize("begins", ["gone", "on its way", "nobody"])
def test_a_node_is_reserved_while_its_plan_is_carried_out(begins: str) -> None:
    leaves = pod("m", "mid", 20.0, "a")
    table, decisions, planner = world(leaves, a={"prod": 25.0, "mid": 20.0})
    assert leave(planned(decisions, planner, "a")) == ["m"]
    if begins == "gone":
        table.drop_pod("a", "m")
    elif begins == "on its way":
        table.put_pod(msgspec.structs.replace(leaves, deleted_at=format_time(NOW)))
    # The scheduler asks again when a pod has left.
    assert asked(decisions, planner, "a", now=NOW + 50) is None
    put_node(table, "a", 30.0, NOW + 55, prod=30.0)
    small = pod("small", "prod", 10.0)
    refused = decisions.filter(small, ["a"], NOW + PLAN_BEGUN_SECONDS + 1).refused
    assert bool(refused) == (begins != "nobody")
    assert not decisions.filter(small, ["a"], NOW + PLAN_SETTLED_SECONDS + 1).refused


def test_plans_respect_the_reservation_of_a_node() -> None:
    """Requests of Mid that is only so by its label stand against what the node reserves."""
    only_by_label = any_pod(
        "m", pod_class="mid", requests=Resources(cpu_millicores=30_000), priority=7500
    )
    table, decisions, planner = world(running(only_by_label, "a"), a={"prod": 5.0, "mid": 5.0})
    reserves = {"node.koordinator.sh/reservation": '{"resources": {"cpu": "30"}}'}
    room = Resources(cpu_millicores=64_000, memory_bytes=256 << 30)
    table.put_node(TableNode(node="a", allocatable=room, annotations=reserves))
    assert leave(planned(decisions, planner, "a")) == ["m"]


def test_protected_pods_keep_their_share_of_usage() -> None:
    """Two use 20 cores together; the evictable pod uses a tenth of them."""
    protected = pod("stays", "mid", 18.0, "a", owner=Owner(kind="DaemonSet", name="d"))
    leaves = pod("leaves", "mid", 2.0, "a")
    _, decisions, planner = world(protected, leaves, a={"prod": 25.0, "mid": 20.0})
    assert asked(decisions, planner, "a") is None
    _, decisions, planner = world(protected, leaves, a={"prod": 17.0, "mid": 20.0})
    assert leave(planned(decisions, planner, "a")) == ["leaves"]


def test_planning_is_retried_after_a_pause() -> None:
    table, decisions, planner = world(pod("m", "mid", 20.0, "a"), a={"prod": 46.0})
    assert asked(decisions, planner, "a") is None
    put_node(table, "a", 46.0, NOW + 1, prod=26.0, mid=20.0)
    assert asked(decisions, planner, "a", now=NOW + 9) is None
    assert leave(planned(decisions, planner, "a", now=NOW + 10)) == ["m"]


def test_at_most_one_request_a_second_is_planned_for() -> None:
    _, decisions, planner = world(
        pod("m", "mid", 20.0, "a"), pod("n", "mid", 20.0, "b"),
        a={"prod": 25.0, "mid": 20.0}, b={"prod": 25.0, "mid": 20.0},
    )  # fmt: skip
    assert asked(decisions, planner, "a", "b") is not None
    other = pod("other", "prod", 8.0)
    assert asked(decisions, planner, "a", "b", asking=other, now=NOW + 0.9) is None
    assert asked(decisions, planner, "a", "b", asking=other, now=NOW + 1) is not None


def test_a_partly_known_usage_counts_for_its_known_resource() -> None:
    table, decisions, planner = world(pod("m", "mid", 20.0, "a"), a={"prod": 25.0, "mid": 20.0})
    used = {"mid": Usage(cpu_cores=20.0), "batch": Usage(memory_bytes=GIB)}
    table.put_state(
        node_state("a", cpu=45.0, memory=None, cores=64.0, room=None, class_usage=used, offset=1)
    )
    plan = planned(decisions, planner, "a")
    assert (plan.pods[0].cpu_millicores, plan.pods[0].memory_bytes) == (20_000, 0)


def test_a_request_without_nodes_gets_no_plan() -> None:
    _, _, planner = world(a={"prod": 60.0})
    assert planner.plan(WAITING, [], NOW) is None
