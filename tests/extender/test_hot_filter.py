"""Nodes with an open alert are a last resort, and never the reason that a pod finds no node."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeline.extender import limits
from pipeline.extender.decisions import FilterResult
from pipeline.times import format_time
from pipeline.topics.alerts import OpenAlert, Rule
from pipeline.topics.pods import PodRecord
from tests.extender.relief_world import ALERT, ReliefWorld
from tests.table.records import NOW, any_pod

FULL = 15.0
"""Cores used of 16: above the threshold of the filter."""


def world_of(*nodes: tuple[float | None, bool, float]) -> ReliefWorld:
    """Nodes `0`, `1`, .. of these used cores, with an open alert or not, and age of the window."""
    world = ReliefWorld()
    for number, (cpu, is_hot, age) in enumerate(nodes):
        alerts = (ALERT,) if is_hot else ()
        world.node(f"{number}", 1.0, age=age + 30).put_state(
            f"{number}", cpu, age=age, alerts=alerts
        )
    return world


def asked(world: ReliefWorld, pod: PodRecord | None = None) -> FilterResult:
    return world.decisions.filter(pod or any_pod(), [*world.table], NOW)


def passed(*nodes: tuple[float | None, bool, float], **pod: Any) -> str:
    """The names of the nodes that pass."""
    return "".join(asked(world_of(*nodes), any_pod(**pod)).passed)


def test_a_node_that_just_cooled_refuses_pods_while_its_alert_is_open() -> None:
    world = world_of((1.0, True, 10), (9.0, False, 10))
    result = asked(world)
    assert [*result.passed] == ["1"]
    assert result.refusals.counts() == {"node(s) hot while other nodes are not": 1}
    opened = msgspec.structs.replace(ALERT, since=format_time(NOW - 720))
    world.put_state("0", 1.0, alerts=(opened, msgspec.structs.replace(opened, severity="critical")))
    assert asked(world).details(9) == {"0": "its alert was opened 12 min ago; a cooler node passes"}


def test_the_first_of_its_alerts_counts() -> None:
    world = world_of((9.0, False, 10), (1.0, False, 10))
    ages: dict[Rule, float] = {"node_memory": 60, "node_cpu": 300, "prod_cpu": 120}
    alerts = tuple(
        OpenAlert(rule=rule, severity="warning", since=format_time(NOW - age))
        for rule, age in ages.items()
    )
    world.put_state("1", 1.0, alerts=alerts)
    assert "opened 300 s ago" in asked(world).details(9)["1"]


def test_hot_nodes_pass_if_no_other_node_does() -> None:
    hot = (1.0, True, 10.0)
    assert passed(hot) == "0"
    assert passed(hot, hot, hot) == "012"
    assert passed(hot, (FULL, False, 10)) == "0"
    assert passed((FULL, True, 10), hot) == "1"


def test_old_windows_neither_make_a_node_hot_nor_a_cooler_one() -> None:
    """A node without a recent window passes, and may be as hot."""
    assert passed((1.0, True, 10), (1.0, False, 400)) == "01"
    assert passed((1.0, True, 400), (1.0, False, 10)) == "01"
    assert passed((1.0, True, 10), (1.0, False, 400), (9.0, False, 10)) == "12"


def test_a_node_whose_alert_closed_passes() -> None:
    world = world_of((1.0, True, 10), (1.0, False, 10))
    assert [*asked(world).passed] == ["1"]
    world.put_state("0", 1.0, age=5)
    assert [*asked(world).passed] == ["0", "1"]


def test_a_pod_that_waits_for_long_may_go_to_a_hot_node() -> None:
    """Another extender may refuse all others. What is on a node stands for its replacement."""
    hot, cool = (1.0, True, 10.0), (1.0, False, 10.0)
    long = format_time(NOW - limits.HOT_LAST_RESORT_SECONDS)
    young = format_time(NOW - limits.HOT_LAST_RESORT_SECONDS + 1)
    assert passed(hot, cool, created_at=long) == "01"
    for created in (young, None, "", "yesterday", format_time(NOW + 9999)):
        assert passed(hot, cool, created_at=created) == "1", created
    assert passed(hot, cool, created_at=long, node="0") == "1"


def test_explanations_name_the_reason_and_daemon_sets_are_exempt() -> None:
    world = world_of((1.0, True, 10), (9.0, False, 10))
    result = world.decisions.explain(any_pod(), [*world.table], NOW)
    assert result.refusals.counts() == {"node(s) hot while other nodes are not": 1}
    result = world.decisions.explain(any_pod(), [*world.table], NOW, is_exempt=True)
    assert not result.refusals.is_refused.any()


NODES = st.lists(
    st.tuples(
        st.sampled_from([None, 0.0, 1.0, 9.0, FULL]),
        st.booleans(),
        st.sampled_from([1.0, 10.0, 179.0, 400.0, -400.0]),
    ),
    max_size=6,
)


@given(nodes=NODES)
def test_alerts_refuse_only_hot_nodes_and_leave_one_that_is_not(
    nodes: list[tuple[float | None, bool, float]],
) -> None:
    without = {*passed(*((cpu, False, age) for cpu, _, age in nodes))}
    with_alerts = {*passed(*nodes)}
    assert bool(with_alerts) == bool(without)
    assert with_alerts <= without
    for name in without - with_alerts:
        assert nodes[int(name)][1]
    if with_alerts != without:
        assert any(not nodes[int(name)][1] and abs(nodes[int(name)][2]) < 180
                   for name in with_alerts)  # fmt: skip
