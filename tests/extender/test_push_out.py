"""Room for a Prod pod that all nodes refuse: who would leave, and when nobody is asked to."""

from typing import Any

import pytest

from pipeline.clock import format_time, parse_time
from pipeline.extender.decide import Decisions
from pipeline.extender.push_out import (
    PLANS_OF_A_POD,
    SETTLE_SECONDS,
    VALID_SECONDS,
    PushingOut,
)
from pipeline.extender.server import rules_of
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.topics.eviction_plans import EvictionPlanRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resources import Resources, Usage
from tests.table.records import GIB, NOW, node_state

MID, BATCH = "kubernetes.io/mid-cpu", "kubernetes.io/batch-cpu"


def pod(uid: str, pod_class: str, cores: float, node: str = "", **more: Any) -> PodRecord:
    """A pod of its class, there for long."""
    millicores = round(cores * 1000)
    by_class = {"mid": MID, "batch": BATCH}
    native = Resources() if pod_class in by_class else Resources(cpu_millicores=millicores)
    scalars = {by_class[pod_class]: millicores} if pod_class in by_class else None
    priority = {"prod": 9500, "mid": 7500, "batch": 5500, "free": 3500}[pod_class]
    fields = {"priority": priority, "phase": "Running"} | more
    return PodRecord(
        node=node, uid=uid, cgroup_uid=uid, namespace="d", name=uid, pod_class=pod_class,
        requests=native, limits=native, scalars=scalars, scheduled_at=format_time(NOW - 9000),
        **fields,
    )  # fmt: skip


def put_node(table: Table, name: str, cpu: float, offset: int = 0, **of_classes: float) -> None:
    """A node of 64 cores that uses so much, its classes so much of it."""
    used = {key: Usage(cpu_cores=cores, memory_bytes=GIB) for key, cores in of_classes.items()}
    table.put_state(
        node_state(
            name, cpu=cpu, memory=16 * GIB, cores=64.0, room=256 * GIB, class_usage=used,
            offset=offset,
        )
    )  # fmt: skip


def world(*pods: PodRecord, **nodes: dict[str, float]) -> tuple[Table, Decisions, PushingOut]:
    table = Table()
    for name, used in nodes.items():
        put_node(table, name, sum(used.values()), **used)
    for one in pods:
        table.put_pod(one)
    table.bring_up_to_date(NOW)
    decisions = Decisions(table, rules_of(ExtenderSettings()))
    return table, decisions, PushingOut(decisions)


WAITING = pod("urgent", "prod", 8.0)


def asked(
    decisions: Decisions, pushing_out: PushingOut, *names: str, of: PodRecord = WAITING,
    now: float = NOW,
) -> EvictionPlanRecord | None:  # fmt: skip
    """What is planned for a pod that all of these nodes refuse."""
    found = decisions.filter(of, names, now)
    assert set(found.refused) == set(names)
    return pushing_out.plan(of, found.refused, now)


def leave(plan: EvictionPlanRecord | None) -> list[str]:
    return [] if plan is None else [one.uid for one in plan.pods]


def test_who_is_in_the_way_leaves_and_nobody_else() -> None:
    _, decisions, pushing_out = world(
        pod("large", "mid", 20.0, "a"), pod("small", "mid", 2.0, "a"), pod("b", "batch", 1.0, "a"),
        pod("other", "mid", 2.0, "b"), pod("p", "prod", 20.0, "a"),
        a={"prod": 25.0, "mid": 20.0, "batch": 1.0}, b={"prod": 44.0, "mid": 2.0},
    )  # fmt: skip
    plan = asked(decisions, pushing_out, "a", "b")
    assert plan is not None
    assert (plan.node, leave(plan)) == ("a", ["large"])
    # It has 20 of the 22 that Mid asks for, so 20/22 of what Mid uses.
    assert plan.pods[0].cpu_millicores == round(20_000 * 20 / 22)
    assert plan.waiting is not None
    assert (plan.waiting.uid, plan.waiting.priority) == ("urgent", 9500)
    assert parse_time(plan.valid_until) - parse_time(plan.at) == VALID_SECONDS
    assert "without 1 of mid" in plan.why
    assert "%" not in plan.why
