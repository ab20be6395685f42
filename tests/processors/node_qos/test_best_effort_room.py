"""The CPU that others leave to best-effort work."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.kubernetes.node_reservation import Reservation
from pipeline.processors.node_qos.best_effort_room import Room, best_effort_room
from pipeline.processors.node_qos.node_state import HostAppState, NodeState
from tests.processors.node_qos.worlds import amounts, node, pod

CORES = st.one_of(st.none(), st.floats(0, 64, allow_nan=False))


def room(state: NodeState, threshold: int = 65, least: int | None = None, **more: Any) -> Room:
    found = best_effort_room(state, threshold, least, **more)
    assert found is not None
    return found


def app(name: str, **fields: Any) -> HostAppState:
    return HostAppState(name=name, path=name, **fields)


def busy_node(**fields: Any) -> NodeState:
    """Ten cores, of which a web pod uses 2, batch 3 and the system 0.5."""
    pods = (
        pod("web", cpu_cores=2.0, requests=amounts(4000)),
        pod("batch", cpu_cores=3.0, kube_qos="BestEffort"),
    )
    known = {"capacity": amounts(10_000), "allocatable": amounts(10_000), "cpu_cores": 5.5}
    return node(*fields.pop("pods", pods), **{**known, **fields})


def test_the_room_is_a_share_of_the_node_without_the_others() -> None:
    found = room(busy_node())
    assert found.allowed_millicores == 6500 - 2000 - 500
    assert found.best_effort_cores == 3.0
    assert found.may_grow
    assert found.why == (
        "4000m for best-effort work: 65% of the node are 6500m, others use 2000m, system 500m"
    )


def test_a_class_in_a_label_makes_a_pod_best_effort() -> None:
    labelled = pod("batch", qos="BE", cpu_cores=3.0)
    assert room(busy_node(pods=(labelled,))).best_effort_cores == 3.0


def test_a_pod_of_unknown_usage_counts_by_its_request() -> None:
    pods = (pod("web", requests=amounts(4000)), pod("batch", kube_qos="BestEffort", cpu_cores=1.0))
    found = room(busy_node(pods=pods))
    assert (found.pods_cores, found.system_cores, found.may_grow) == (4.0, 0.5, True)


def test_a_pod_of_unknown_usage_and_no_request_counts_as_system_and_nothing_grows() -> None:
    found = room(busy_node(pods=(pod("web"),)))
    assert (found.allowed_millicores, found.may_grow) == (6500 - 5500, False)


def test_unknown_usage_of_best_effort_pods_counts_as_system() -> None:
    pods = (pod("web", cpu_cores=2.0), pod("batch", kube_qos="BestEffort"))
    found = room(busy_node(pods=pods))
    assert (found.system_cores, found.best_effort_cores, found.may_grow) == (3.5, None, True)


@pytest.mark.parametrize(
    "unknown", [{"cpu_cores": None}, {"host_apps": (app("database", qos="LS"),)}]
)
def test_unknown_usage_of_node_or_application_lets_nothing_grow(unknown: dict[str, Any]) -> None:
    assert not room(busy_node(**unknown)).may_grow


def test_without_usage_of_the_node_the_system_uses_what_is_reserved_for_it() -> None:
    state = busy_node(cpu_cores=None, allocatable=amounts(9_000))
    assert room(state).allowed_millicores == 6500 - 2000 - 1000


@pytest.mark.parametrize(
    ("reserved", "allocatable", "system"),
    [(None, 10_000, 0.5), (800, 10_000, 0.8), (800, 9_000, 1.0), (2000, 9_000, 2.0)],
)
def test_the_system_uses_what_is_measured_or_reserved(
    reserved: int | None, allocatable: int, system: float
) -> None:
    state = busy_node(allocatable=amounts(allocatable), reservation=Reservation(reserved))
    assert room(state).system_cores == system


def test_a_host_application_is_best_effort_by_class_and_directory() -> None:
    apps = (
        app("backup", qos="BE", in_best_effort=True, cpu_cores=0.1),
        app("indexer", qos="BE", cpu_cores=0.2),
        app("proxy", qos="LS", in_best_effort=True, cpu_cores=0.1),
    )
    found = room(busy_node(host_apps=apps))
    assert found.host_apps_cores == pytest.approx(0.3)
    assert found.best_effort_cores == 3.1


def test_a_higher_prediction_replaces_present_usage_a_lower_one_does_not() -> None:
    state = busy_node()
    assert room(state, predicted_cores=3.5).allowed_millicores == 6500 - 3500 - 500
    assert "others will use 3500m" in room(state, predicted_cores=3.5).why
    assert room(state, predicted_cores=1.0) == room(state)


def test_best_effort_work_keeps_its_minimum_also_under_a_cap() -> None:
    found = room(busy_node(), 20, 5)
    assert found.allowed_millicores == 500
    capped = room(busy_node(), 65, 5).capped(100, "pressure")
    assert (capped.allowed_millicores, capped.why) == (500, "500m for best-effort work: pressure")


def test_a_cap_above_the_room_changes_nothing() -> None:
    found = room(busy_node())
    assert found.capped(4000, "pressure") is found


def test_without_capacity_there_is_no_room_to_calculate() -> None:
    assert best_effort_room(busy_node(capacity=amounts()), 65) is None


@given(CORES, CORES, CORES, st.integers(0, 4000), st.integers(0, 100))
def test_unknown_usage_never_gives_more_room_than_known(
    web: float | None, batch: float | None, total: float | None, request: int, percent: int
) -> None:
    """The room is at most the share without the usage that is known."""
    pods = (
        pod("web", cpu_cores=web, requests=amounts(request)),
        pod("batch", kube_qos="BestEffort", cpu_cores=batch),
    )
    found = room(busy_node(pods=pods, cpu_cores=total), percent)
    least = request / 1000 if web is None else web
    if total is not None:
        least = max(least, total - (batch or 0.0))
    assert found.allowed_millicores <= 100 * percent - least * 1000 + 2
    assert found.may_grow == (total is not None)
