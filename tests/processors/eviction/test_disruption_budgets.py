"""The answers of the API server are predicted from disruption budgets."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.eviction.disruption_budgets import (
    DisruptionBudget,
    expected_answer,
    refused_by_budgets,
)
from pipeline.processors.eviction.live_pods import LivePod
from pipeline.topics.pods import PodRecord


def pod(name: str, *, is_ready: bool = True, **more: Any) -> LivePod:
    fields = {"labels": {"app": "web"}, "phase": "Running", "namespace": "shop"} | more
    record = PodRecord(node="n", uid=name, cgroup_uid=name, name=name, pod_class="mid", **fields)
    return LivePod(record=record, is_ready=is_ready)


def budget(
    allowed: int | None, selector: Any = None, spec: Any = None, **status: Any
) -> DisruptionBudget:
    selector = {"matchLabels": {"app": "web"}} if selector is None else selector
    stated = {} if allowed is None else {"disruptionsAllowed": allowed}
    tree = {
        "metadata": {"name": "b", "namespace": "shop", "generation": 1},
        "spec": {"selector": selector or None, "maxUnavailable": 1} | (spec or {}),
        "status": stated | {"observedGeneration": 1} | status,
    }
    return msgspec.convert(tree, DisruptionBudget)


@pytest.mark.parametrize(
    ("allowed", "pods", "says"),
    [
        (2, [pod("a"), pod("b")], None),
        (1, [pod("a"), pod("b")], "budget shop/b allows 1 evictions now, not 2"),
        (None, [pod("a")], "allows 0 evictions now, not 1"),
        (0, [], None),
        # Of others, and of what does not run, it says nothing.
        (0, [pod("a", namespace="other"), pod("b", labels={}), pod("c", phase="Pending")], None),
        (0, [pod("a", deleted_at="2026-01-01T00:00:00Z")], None),
    ],
)
def test_a_budget_refuses_more_evictions_than_it_allows(
    allowed: int | None, pods: list[LivePod], says: str | None
) -> None:
    result = refused_by_budgets(pods, [budget(allowed)])
    assert (result is None) == (says is None)
    assert (says or "") in (result or "")


def test_expressions_select_as_in_kubernetes_and_a_missing_selector_selects_no_pod() -> None:
    one_of = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
    assert refused_by_budgets([pod("a")], [budget(0, one_of)])
    assert refused_by_budgets([pod("a")], [budget(0, {})]) is None
    every = msgspec.convert(
        {"metadata": {"name": "b", "namespace": "shop"}, "spec": {"selector": {}}}, DisruptionBudget
    )
    assert refused_by_budgets([pod("a", labels={})], [every])


@pytest.mark.parametrize(
    ("budgets", "is_ready", "status"),
    [
        ([budget(1), budget(1)], True, 500),
        ([budget(-1)], True, 403),
        ([budget(1, disruptedPods=dict.fromkeys(map(str, range(2001)), "t"))], True, 403),
        ([budget(1, observedGeneration=0)], True, 429),
        ([budget(0, spec={"unhealthyPodEvictionPolicy": "AlwaysAllow"})], False, 201),
        ([budget(0, currentHealthy=2, desiredHealthy=2)], False, 201),
        ([budget(0, currentHealthy=2, desiredHealthy=2)], True, 429),
        ([budget(0, currentHealthy=1, desiredHealthy=2)], False, 429),
    ],
)
def test_each_state_of_a_budget_has_its_answer(
    budgets: list[DisruptionBudget], is_ready: bool, status: int
) -> None:
    assert expected_answer(pod("a", is_ready=is_ready), "a", budgets).status == status


def test_a_pod_of_another_uid_is_a_conflict_unless_a_budget_refuses_first() -> None:
    assert expected_answer(pod("a"), "other", [budget(1)]).status == 409
    assert expected_answer(pod("a"), "other", [budget(0)]).status == 429
    assert expected_answer(None, "a", [budget(0)]).status == 404


def test_pods_that_are_not_ready_leave_the_budget_to_others() -> None:
    healthy = budget(1, currentHealthy=3, desiredHealthy=2)
    pods = [pod("a", is_ready=False), pod("b", is_ready=False), pod("c")]
    assert refused_by_budgets(pods, [healthy]) is None
    assert refused_by_budgets([*pods, pod("d")], [healthy])
