"""Evictions of a plan share disruption budgets."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.eviction.disruption_budgets import DisruptionBudget, exceeded_budget
from pipeline.topics.pods import PodRecord


def pod(name: str, **more: Any) -> PodRecord:
    fields = {"labels": {"app": "web"}, "phase": "Running", "namespace": "shop"} | more
    return PodRecord(node="n", uid=name, cgroup_uid=name, name=name, pod_class="mid", **fields)


def budget(allowed: int | None, selector: Any = None) -> DisruptionBudget:
    selector = {"matchLabels": {"app": "web"}} if selector is None else selector
    tree = {
        "metadata": {"name": "b", "namespace": "shop"},
        "spec": {"selector": selector or None, "maxUnavailable": 1},
        "status": {} if allowed is None else {"disruptionsAllowed": allowed},
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
    ],
)
def test_a_budget_refuses_more_evictions_than_it_allows(
    allowed: int | None, pods: list[PodRecord], says: str | None
) -> None:
    result = exceeded_budget([budget(9), budget(allowed)], pods)
    assert (result is None) == (says is None)
    assert (says or "") in (result or "")


def test_expressions_select_as_in_kubernetes_and_a_missing_selector_selects_no_pod() -> None:
    one_of = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
    assert exceeded_budget([budget(0, one_of)], [pod("a")])
    assert exceeded_budget([budget(0, {})], [pod("a")]) is None
    every = msgspec.convert(
        {"metadata": {"name": "b", "namespace": "shop"}, "spec": {"selector": {}}}, DisruptionBudget
    )
    assert exceeded_budget([every], [pod("a", labels={})])
