"""Nodes that pods of the same workload were moved off are a last resort for half an hour."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.extender import limits
from pipeline.extender.decisions import Decisions, FilterResult
from pipeline.processors.descheduling.cool_downs import WORKLOAD_REST_SECONDS
from pipeline.processors.descheduling.left_nodes import LeftNodes
from pipeline.times import format_time
from pipeline.topics.actions import ActionRecord, Outcome
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import Owner, PodRecord
from tests.extender.relief_world import ReliefWorld
from tests.extender.test_hot_filter import FULL, world_of
from tests.table.records import NOW, any_pod

LATER = NOW + WORKLOAD_REST_SECONDS
WEB = "Deployment/d/web"


def evicted(
    node: str, uid: str = "u", *, workload: str = WEB, outcome: Outcome = "done",
    at: float = NOW - 60, actuator: str = "evictor", waiting: str = "", plan: str = "p",
) -> bytes:  # fmt: skip
    """The record of an action about a pod of the workload on a node."""
    return encode_json(
        ActionRecord(
            node=node, at=format_time(at), actuator=actuator, action="evict", outcome=outcome,
            why="", before={"default/web-0": uid}, plan=plan, workload=workload, waiting=waiting,
        )
    )  # fmt: skip


def left_of(*records: bytes | None, now: float = NOW) -> LeftNodes:
    left = LeftNodes()
    for record in records:
        left.take(record, NOW - 60, now)
    return left


def web_pod(**fields: Any) -> PodRecord:
    owner = Owner(kind="ReplicaSet", name="web-6f5d")
    return any_pod(owner=owner, labels={"pod-template-hash": "6f5d"}, **fields)


def asked(world: ReliefWorld, left: LeftNodes, pod: PodRecord | None = None) -> FilterResult:
    decisions = Decisions(world.table, world.decisions.rules, left)
    return decisions.filter(pod or web_pod(), [*world.table], NOW)


def passed(
    *nodes: tuple[float | None, bool, float], left: LeftNodes, pod: PodRecord | None = None
) -> str:
    return "".join(asked(world_of(*nodes), left, pod).passed)


# -- what is remembered


def test_the_last_departure_from_each_node_is_known_for_half_an_hour() -> None:
    left = left_of(
        evicted("a", "1", at=NOW - 90), evicted("a", "2", at=NOW - 60), evicted("b", "3")
    )
    assert left.of_workload(WEB, NOW) == {"a": NOW - 60, "b": NOW - 60}
    assert left.of_workload("Deployment/default/db", NOW) == {}
    assert left.of_workload(WEB, LATER - 61) != {}
    assert left.of_workload(WEB, LATER - 60) == {}
    assert left.of_workload(WEB, NOW - 120) != {}, "the clock was set back"


def test_pods_that_stay_or_made_room_are_not_known() -> None:
    stays: list[Outcome] = ["observed", "recommended", "refused", "marked"]
    for outcome in stays:
        assert not left_of(evicted("a", outcome=outcome)).of_workload(WEB, NOW), outcome
    others = [
        evicted("a", actuator="planner"), evicted("a", waiting="w"), evicted("a", workload=""),
        encode_json(ActionRecord(node="a", at=format_time(NOW), actuator="evictor", action="evict",
                                 outcome="failed", why="", workload=WEB)), None,
    ]  # fmt: skip
    assert len(left_of(*others)) == 0


def test_another_plan_that_is_refused_because_the_pod_left_changes_nothing() -> None:
    """A new leader, or a user's PodMigrationJob, may name a pod that is leaving or gone."""
    left = left_of(evicted("a"), evicted("a", plan="q", outcome="refused"))
    assert left.of_workload(WEB, NOW) == {"a": NOW - 60}


def test_an_eviction_that_is_under_way_or_may_have_failed_counts_until_it_is_refused() -> None:
    intended = evicted("a", outcome="intended")
    assert left_of(intended).of_workload(WEB, NOW)
    assert left_of(intended, evicted("a", outcome="failed")).of_workload(WEB, NOW)
    assert not left_of(intended, evicted("a", outcome="refused")).of_workload(WEB, NOW)


def test_times_of_clocks_that_are_ahead_or_behind_are_bounded() -> None:
    assert left_of(evicted("a", at=NOW + 9999)).of_workload(WEB, NOW) == {"a": NOW - 60}
    assert left_of(evicted("a", at=NOW - 99_999)).of_workload(WEB, NOW) == {"a": NOW - 60}


def test_few_departures_are_remembered_however_many_there_are() -> None:
    left = left_of(*(evicted("a", f"{number}") for number in range(10_050)))
    assert 9000 <= len(left) <= 10_000
    left.take(evicted("b", at=LATER), LATER, LATER)
    assert len(left) == 1


def test_of_too_many_the_oldest_are_forgotten_whatever_partition_they_are_in() -> None:
    """After a restart partitions are read one after the other."""
    left = LeftNodes()
    left.take(evicted("last", "last", at=NOW - 1), NOW - 1, NOW)
    for number in range(10_000):
        left.take(evicted("first", f"{number}", at=NOW - 900), NOW - 900, NOW)
    assert left.of_workload(WEB, NOW) == {"last": NOW - 1, "first": NOW - 900}


@pytest.mark.parametrize("restarted_seconds", [None, 0.0, 1740.0])
@pytest.mark.parametrize("ahead_seconds", [0.0, 3600.0, -3600.0])
def test_a_restart_makes_no_rest_longer_or_shorter(
    restarted_seconds: float | None, ahead_seconds: float
) -> None:
    """Whatever the clock of the evictor was: the broker knows when its record came."""
    record, appended_at = evicted("a", at=NOW + ahead_seconds), NOW
    left = LeftNodes()
    left.take(record, appended_at, appended_at)
    if restarted_seconds is not None:
        left = LeftNodes()
        left.take(record, appended_at, appended_at + restarted_seconds)
    assert left.of_workload(WEB, LATER - 1) == {"a": NOW}
    assert left.of_workload(WEB, LATER) == {}


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
def test_partitions_in_any_order_and_repeats_leave_the_same(
    order: Sequence[int], repeated: Sequence[int]
) -> None:
    """Each node has a partition of its own, whose records keep their order."""
    steps = [("a", "intended"), ("a", "done"), ("b", "intended"), ("b", "refused"),
             ("c", "intended"), ("c", "failed")]  # fmt: skip
    partitions: dict[str, list[bytes]] = {}
    for node, outcome in steps:
        value = evicted(node, node, outcome=outcome, at=NOW - 30)  # type: ignore[arg-type]
        partitions.setdefault(node, []).append(value)
    left = LeftNodes()
    # Reading again begins at the first record of the time that counts.
    for place in [*order, *repeated, *order]:
        node = steps[place][0]
        for value in partitions[node]:
            left.take(value, NOW - 30, NOW)
    assert left.of_workload(WEB, NOW) == {"a": NOW - 30, "c": NOW - 30}


@pytest.mark.parametrize(
    "record",
    [evicted("x" * 513), evicted("a", "x" * 513), evicted("a", workload="x" * 513)],
    ids=["node", "uid", "workload"],
)
def test_no_long_name_is_remembered(record: bytes) -> None:
    left = LeftNodes()
    with pytest.raises(RecordError, match="513 characters"):
        left.take(record, NOW, NOW)
    assert len(left) == 0


# -- what is refused


def test_a_replacement_does_not_return_to_the_node_that_has_cooled() -> None:
    result = asked(world_of((1.0, False, 10), (9.0, False, 10)), left_of(evicted("0")))
    assert [*result.passed] == ["1"]
    assert result.refusals.counts() == {"node(s) left by pods of the workload a short time ago": 1}
    assert result.details(9) == {
        "0": "a pod of its workload was evicted from it 60 s ago; another node passes"
    }


def test_other_pods_and_nodes_are_as_before() -> None:
    nodes = (1.0, False, 10.0), (9.0, False, 10.0)
    assert passed(*nodes, left=left_of(evicted("0")), pod=any_pod()) == "01"
    assert passed(*nodes, left=left_of(evicted("gone"))) == "01"


def test_the_node_takes_the_pod_if_no_other_does() -> None:
    cool, left = (1.0, False, 10.0), left_of(evicted("0"))
    assert passed(cool, left=left) == "0"
    assert passed(cool, (FULL, False, 10), left=left) == "0"
    assert passed(cool, (1.0, False, 400), left=left) == "01"
    assert passed(cool, cool, left=left_of(evicted("0"), evicted("1", "v"))) == "01"


def test_the_node_that_was_left_is_better_than_hot_ones() -> None:
    cool, hot, left = (1.0, False, 10.0), (1.0, True, 10.0), left_of(evicted("0"))
    assert passed(cool, hot, left=left) == "0"
    assert passed(hot, hot, left=left) == "1"
    assert passed(cool, hot, cool, left=left) == "2"


@pytest.mark.parametrize(("waited", "expected"), [(0, "01"), (-1, "1")])
def test_a_pod_that_waits_for_long_may_return(waited: int, expected: str) -> None:
    created = format_time(NOW - limits.HOT_LAST_RESORT_SECONDS - waited)
    nodes = (1.0, False, 10.0), (9.0, False, 10.0)
    left = left_of(evicted("0"))
    assert passed(*nodes, left=left, pod=web_pod(created_at=created)) == expected


NODES = st.lists(
    st.tuples(
        st.sampled_from([None, 1.0, 9.0, FULL]), st.booleans(),
        st.sampled_from([10.0, 179.0, 400.0]), st.booleans(),
    ),
    max_size=6,
)  # fmt: skip


@given(nodes=NODES)
def test_departures_refuse_only_nodes_that_were_left_and_leave_another_one(
    nodes: list[tuple[float | None, bool, float, bool]],
) -> None:
    names = {f"{number}" for number, node in enumerate(nodes) if node[-1]}
    states = [node[:3] for node in nodes]
    without = {*passed(*states, left=LeftNodes())}
    with_left = {*passed(*states, left=left_of(*(evicted(name, name) for name in names)))}
    assert bool(with_left) == bool(without)
    assert with_left <= without
    assert without - with_left <= names
    if with_left != without:
        assert with_left.isdisjoint(names)
