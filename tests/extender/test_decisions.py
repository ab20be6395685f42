"""Filter and prioritize equal a plain loop over the records, for tables of any content."""

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.extender.decision_rules import rules_of
from pipeline.extender.decisions import Decisions
from pipeline.extender.plugin_scores import BEST_FIT
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.settings import ExtenderSettings
from pipeline.table import Table
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.pods import CountedPod, PodRecord
from pipeline.topics.resource_amounts import Resources, Usage
from tests.extender.oracle import World, judge_all, newest
from tests.table.records import GIB, NOW, ROOM, any_pod, node_state, running, table_of

RULES = rules_of(ExtenderSettings(fine_scores=True))
NAMES = [*"fedcbaz"]

amounts = st.none() | st.sampled_from([0.0, -1.0, 1.0, 2.6, 2.62, 4.0, 1e300]) | st.floats(0, 16)
usages = st.builds(Usage, cpu_cores=st.none() | st.floats(0, 4), memory_bytes=st.floats(0, GIB))
states = st.builds(
    node_state, st.sampled_from("abcdef"), cpu=amounts, memory=amounts, cores=amounts, room=amounts,
    age=st.sampled_from([0.0, 40.0, 179.0, 180.0, 1e6, -30.0, -180.0]), offset=st.integers(0, 5),
    young_pods=st.dictionaries(st.sampled_from(["p1", "p2"]), usages),
)  # fmt: skip
resources = st.builds(
    Resources,
    cpu_millicores=st.none() | st.integers(0, 3000),
    memory_bytes=st.none() | st.integers(0, 4 << 30),
)
nodes = st.builds(
    TableNode,
    node=st.sampled_from("abcdef"),
    allocatable=st.builds(
        Resources, cpu_millicores=st.sampled_from([None, 0, 4000]), memory_bytes=st.just(8 << 30)
    ),
)
pods = st.builds(
    CountedPod,
    node=st.sampled_from(["", *"abcdef"]),
    uid=st.sampled_from(["p1", "p2", "p3", "p4"]),
    cgroup_uid=st.just(""),
    pod_class=st.sampled_from(["prod", "batch", "none"]),
    requests=resources,
    limits=resources,
    phase=st.sampled_from(["Pending", "Running", "Succeeded"]),
    scheduled_at=st.none()
    | st.sampled_from([0.0, 5.0, 25.0, 60.0, 299.0, 301.0, 9e5]).map(
        lambda s: format_time(NOW - s)
    ),
).map(lambda pod: msgspec.structs.replace(pod, cgroup_uid=pod.uid))
changes = st.lists(states | nodes | pods | st.sampled_from(["drop p1", "drop p2"]), max_size=16)
asked = st.builds(
    PodRecord, node=st.just(""), uid=st.just("new"), cgroup_uid=st.just("new"),
    namespace=st.just("d"), name=st.just("new"), pod_class=st.sampled_from(["prod", "batch"]),
    requests=resources, limits=resources,
)  # fmt: skip


def put(table: Table, change: object) -> None:
    """Apply a change other than a tombstone."""
    if isinstance(change, NodeStateRecord):
        table.put_state(change)
    elif isinstance(change, TableNode):
        table.put_node(change)
    elif isinstance(change, CountedPod):
        table.put_pod(change)


def with_unknown_cpu() -> list[NodeStateRecord | TableNode | CountedPod | str]:
    """A node whose CPU is unknown, and a pod on it that alone would make it too hot: examples by
    chance hardly ever combine these."""
    busy = CountedPod(
        node="a", uid="p1", cgroup_uid="p1", pod_class="prod", phase="Running",
        requests=Resources(cpu_millicores=3000, memory_bytes=1 << 30),
        scheduled_at=format_time(NOW - 9e5),
    )  # fmt: skip
    return [
        TableNode(node="a", allocatable=Resources(cpu_millicores=4000, memory_bytes=8 << 30)),
        node_state("a", cpu=None, memory=GIB),
        busy,
    ]


@given(changes, asked)
@example(with_unknown_cpu(), any_pod("new", requests=Resources(cpu_millicores=500)))
@example(with_unknown_cpu(), any_pod("new", requests=Resources(cpu_millicores=1)))
def test_answers_equal_a_loop_over_the_newest_records(
    given_changes: list[NodeStateRecord | TableNode | CountedPod | str], pod: PodRecord
) -> None:
    table = Table(counting=RULES.counting)
    seen: dict[str, CountedPod] = {}
    for change in given_changes:
        put(table, change)
        if isinstance(change, CountedPod) and change.node:
            seen[change.uid] = change
        elif isinstance(change, str) and (uid := change.removeprefix("drop ")) in seen:
            table.drop_pod(seen.pop(uid).node, uid)
    of_nodes = {item.node: item for item in given_changes if isinstance(item, TableNode)}
    states = [item for item in given_changes if isinstance(item, NodeStateRecord)]
    world = World(newest(states), of_nodes, seen, RULES.counting)
    decisions = Decisions(table, RULES)
    result = decisions.filter(pod, NAMES, NOW)
    as_counted = CountedPod(
        node="", uid="new", cgroup_uid="new", pod_class=pod.pod_class, requests=pod.requests,
        limits=pod.limits,
    )  # fmt: skip
    expected = judge_all(world, NAMES, as_counted, NOW, 180.0)
    assert list(result.refused) == [name for name in NAMES if expected[name].refused]
    # kube-scheduler takes the reason for a format, and loses the Event of a pod by a percent sign.
    assert not any("%" in kind.reason for kind in result.refusals.kinds)
    assert sum(result.counts().values()) == len(NAMES)
    scored = Decisions(table, RULES).prioritize(pod, NAMES, NOW)
    if BEST_FIT not in scored.plugins:
        assert scored.percent.tolist() == [expected[name].score for name in NAMES]
    # Reusing the work of filter gives the same scores.
    passed = [name for name in NAMES if name not in result.refused]
    again = decisions.prioritize(pod, passed, NOW)
    if BEST_FIT not in (*scored.plugins, *again.plugins):
        expected = judge_all(world, passed, as_counted, NOW, 180.0)
        assert again.percent.tolist() == [expected[name].score for name in passed]
    assert (scored.cycle, again.cycle) == ("anew", "reused")


def small_pod(uid: str = "new", cpu: int | None = 500, **more: object) -> PodRecord:
    return any_pod(uid, requests=Resources(cpu_millicores=cpu, memory_bytes=1 << 20), **more)


def test_a_node_with_less_usage_never_scores_less() -> None:
    names = [f"n{i}" for i in range(41)]
    table = table_of(
        *(
            node_state(name, cpu=i / 10, memory=i / 10, cores=4.0, room=4.0)
            for i, name in enumerate(names)
        ),
        counting=RULES.counting,
    )
    scores = Decisions(table, RULES).prioritize(small_pod(cpu=0), names, NOW).steps.tolist()
    assert scores == sorted(scores, reverse=True)


def test_without_names_there_is_no_answer() -> None:
    decisions = Decisions(Table(counting=RULES.counting), RULES)
    assert decisions.filter(small_pod(), [], NOW).refused == []
    result = decisions.prioritize(small_pod(), [], NOW)
    assert (result.steps.tolist(), result.best) == ([], None)


def test_thresholds_come_from_the_settings() -> None:
    rules = rules_of(ExtenderSettings(cpu_threshold_percent=10.0, memory_threshold_percent=0.0))
    table = table_of(node_state("a", cpu=0.5, memory=1e15), counting=rules.counting)
    result = Decisions(table, rules).filter(small_pod(cpu=100), ["a"], NOW)
    assert result.details(3) == {
        "a": "cpu usage would be 14.6% of 4000m, over the threshold of 10%: "
        "500m used 10 s ago + 85m for this pod"
    }


def test_a_placed_pod_counts_until_its_record_arrives_or_for_five_seconds() -> None:
    table = table_of(node_state("a"), node_state("b"), counting=RULES.counting)
    decisions = Decisions(table, RULES)

    def scores(now: float = NOW) -> list[int]:
        percent = decisions.prioritize(small_pod("other"), ["a", "b"], now).percent
        return [int(score) for score in percent]

    even = scores()
    assert even[0] == even[1]
    decisions.place(small_pod("first", 2000), "a", NOW)
    assert scores()[0] < scores()[1]
    assert scores(NOW + 4.9)[0] < scores(NOW + 4.9)[1]
    assert scores(NOW + 5.1) == even
    decisions.place(small_pod("first", 2000), "a", NOW)
    # The pod was bound to another node: it counts only there.
    table.put_pod(running(small_pod("first", 2000), "b", 0.0))
    assert scores()[0] > scores()[1]
    # The key of the unassigned pod gets a tombstone at the bind.
    table.drop_pod("", "first")
    assert scores()[0] > scores()[1]
    # A new filter request withdraws the placement.
    decisions.place(small_pod("second", 3000), "a", NOW)
    assert scores()[0] < scores()[1]
    decisions.filter(small_pod("second", 3000), ["a", "b"], NOW)
    assert scores()[0] > scores()[1]


@pytest.mark.parametrize("change", ["state", "node", "offer", "pod", "placed", "gone"])
def test_work_of_filter_is_not_reused_after_a_change(change: str) -> None:
    """Scores read more columns than filter: these would be of another moment."""
    table = table_of(node_state("a"), node_state("b"), counting=RULES.counting)
    table.put_pod(msgspec.structs.replace(small_pod("there"), node="a"))
    decisions = Decisions(table, RULES)
    decisions.filter(small_pod(), ["a", "b"], NOW)
    match change:
        case "state":
            table.put_state(node_state("a", cpu=3.5, offset=1))
        case "node":
            room = Resources(cpu_millicores=1000, memory_bytes=1 << 30)
            table.put_node(TableNode(node="a", allocatable=room))
        case "offer":
            offer = OfferedResources(
                node="a", as_of=format_time(NOW), generation=1, offset=1, epoch=1
            )
            table.put_resources(offer)
        case "pod":
            table.put_pod(msgspec.structs.replace(small_pod("other", 2000), node="a"))
        case "placed":
            decisions.place(small_pod("other", 2000), "a", NOW)
        case "gone":
            table.drop_pod("a", "there")
    without_filter = Decisions(table, RULES).prioritize(small_pod("same"), ["a", "b"], NOW)
    again = decisions.prioritize(small_pod(), ["a", "b"], NOW)
    assert again.percent.tolist() == without_filter.percent.tolist()
    assert (without_filter.cycle, again.cycle) == ("anew", "rows")


def test_work_of_filter_is_not_reused_for_another_pod_of_the_same_uid() -> None:
    """A waiting pod may be resized, and any client may ask."""
    decisions = Decisions(table_of(node_state("a"), counting=RULES.counting), RULES)
    small, large = small_pod(cpu=100), small_pod(cpu=2000)
    expected = [decisions.prioritize(item, ["a"], NOW).steps.tolist() for item in (small, large)]
    assert expected[0] > expected[1]
    for asked_about, wanted, cycle in (
        (small, expected[0], "reused"), (large, expected[1], "anew"),
    ):  # fmt: skip
        decisions.filter(small, ["a"], NOW)
        result = decisions.prioritize(asked_about, ["a"], NOW)
        assert (result.steps.tolist(), result.cycle) == (wanted, cycle)


def test_requests_recompute_no_row_and_a_new_pod_recomputes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests of pods are summed when pods arrive, not per request."""
    names = [f"n{i}" for i in range(20)]
    table = table_of(*(node_state(name) for name in names), counting=RULES.counting)
    there = small_pod(phase="Running", scheduled_at=format_time(NOW - 9000))
    for i in range(200):
        uid, node = str(i), names[i % 20]
        table.put_pod(msgspec.structs.replace(there, uid=uid, cgroup_uid=uid, node=node))
    counted: list[str] = []
    amounts_of = Counting.amounts

    def watched(self: Counting, pod: PodRecord) -> list[int]:
        counted.append(pod.uid)
        return amounts_of(self, pod)

    monkeypatch.setattr(Counting, "amounts", watched)
    decisions = Decisions(table, RULES)
    table.bring_up_to_date(NOW)

    def work() -> tuple[int, int]:
        return table.pod_events, table.recomputed_rows

    sums = table.pods.sums.copy()
    assert work() == (200, 20)
    for i in range(30):
        asked = small_pod(f"new-{i}")
        decisions.filter(asked, names, NOW)
        assert decisions.prioritize(asked, names, NOW).cycle == "reused"
    # Each request counts its own pod once, and no pod of the table.
    assert (counted, work()) == ([f"new-{i}" for i in range(30)], (200, 20))
    counted.clear()
    table.put_pod(msgspec.structs.replace(small_pod("comes"), node="n7"))
    for uid in ("one", "another"):
        decisions.filter(small_pod(uid), names, NOW)
    assert (counted, work()) == (["comes", "one", "another"], (201, 21))
    touched = np.flatnonzero((table.pods.sums != sums).any(axis=1))
    assert touched.tolist() == table.lookup(["n7"]).tolist()
    table.drop_pod("n7", "comes")
    table.drop_pod("n7", "comes")
    table.bring_up_to_date(NOW)
    assert work() == (202, 22)
    assert np.array_equal(table.pods.sums, sums)


def test_a_running_pod_stays_on_its_node_whatever_is_asked() -> None:
    """Any client may ask about it: the pod must not count on another node."""
    table = table_of(node_state("a"), node_state("b"), counting=RULES.counting)
    decisions = Decisions(table, RULES)
    table.put_pod(running(small_pod("runs"), "a"))
    decisions.place(small_pod("runs"), "b", NOW)
    for now in (NOW, NOW + 10):
        table.bring_up_to_date(now)
        assert table.pods.sums_of("pods", table.lookup(["a", "b"])).tolist() == [1, 0]


def test_pods_do_not_pile_up_on_the_node_that_was_best() -> None:
    names = [f"n{i}" for i in range(20)]
    table = table_of(*(node_state(name, cores=64.0) for name in names), counting=RULES.counting)
    decisions = Decisions(table, RULES)
    for i in range(200):
        pod = small_pod(f"p{i}", 1000)
        decisions.place(pod, names[decisions.prioritize(pod, names, NOW).best or 0], NOW)
    assert table.pods.sums_of("pods", table.lookup(names)).tolist() == [10] * 20


def test_without_any_usage_the_fullest_node_that_fits_is_best() -> None:
    """Trimaran's bad metrics: an outage of all must not make all nodes alike."""
    counting = RULES.counting
    old = [node_state(name, age=400.0) for name in ("roomy", "snug", "full")]
    table = table_of(*old, counting=counting)
    for name, cpu in (("snug", 3000), ("full", 3900)):
        table.put_pod(running(small_pod(f"on-{name}", cpu), name))
    decisions = Decisions(table, RULES)
    result = decisions.prioritize(small_pod(), ["roomy", "snug", "full"], NOW)
    assert result.plugins.keys() == {BEST_FIT}
    roomy, snug, full = result.steps.tolist()
    assert snug > roomy > 0 == full
    # With one known node, the others are worst again.
    table.put_state(node_state("roomy", age=5.0, offset=1))
    again = decisions.prioritize(small_pod(), ["roomy", "snug", "full"], NOW)
    assert again.plugins.keys() == {"LoadAwareScheduling"}
    assert (again.steps > 0).tolist() == [True, False, False]


def test_the_usage_of_a_new_node_is_what_is_on_its_way() -> None:
    """A node with old pods and without a report is avoided."""
    table = table_of(node_state("known", cpu=3.0), counting=RULES.counting)
    for name in ("new", "silent"):
        table.put_node(TableNode(node=name, allocatable=ROOM))
    table.put_pod(running(small_pod("old"), "silent", 1000.0))
    decisions = Decisions(table, RULES)
    known, new, silent = decisions.prioritize(
        small_pod(), ["known", "new", "silent"], NOW
    ).steps.tolist()
    assert new > known > silent == 0
    for i in range(7):
        table.put_pod(running(small_pod(f"p{i}"), "new", 0.0))
    result = decisions.filter(small_pod(), ["known", "new", "silent"], NOW)
    assert list(result.refused) == ["known", "new"]
    assert "2975m on its way" in result.details(2)["new"]


def test_expired_work_of_filter_is_dropped() -> None:
    decisions = Decisions(table_of(node_state("a"), counting=RULES.counting), RULES)
    for index in range(10):
        decisions.filter(small_pod(f"p{index}"), ["a"], NOW + index)
    now = NOW + 9
    reuse = [
        decisions.prioritize(small_pod(f"p{index}"), ["a"], now).cycle for index in (9, 8, 7, 0)
    ]
    assert reuse == ["reused", "reused", "anew", "anew"]
    decisions.filter(small_pod("p"), ["a"], now)
    assert decisions.prioritize(small_pod("p"), ["a"], now - 100).cycle == "anew"


def test_a_node_is_new_in_a_table_of_any_size() -> None:
    table = table_of(counting=RULES.counting)
    names = [f"n{index}" for index in range(300)]
    for name in names:
        table.put_node(TableNode(node=name, allocatable=ROOM))
    scores = Decisions(table, RULES).prioritize(small_pod(), names, NOW).percent
    assert set(scores.tolist()) == {scores[0]} != {0}


@pytest.mark.parametrize("usage", [Usage(cpu_cores=1e306), Usage(memory_bytes=1e19)])
def test_a_pod_with_impossible_usage_counts_with_its_estimate(usage: Usage) -> None:
    table = table_of(node_state("a", young_pods={"young": usage}), counting=RULES.counting)
    table.put_pod(msgspec.structs.replace(small_pod("young"), node="a", cgroup_uid="young"))
    assert Decisions(table, RULES).filter(small_pod(), ["a"], NOW).refused == []


def test_a_node_is_new_in_a_reused_row() -> None:
    """No trace of a settled pod remains when the node departs."""
    table = Table(counting=RULES.counting)
    decisions = Decisions(table, RULES)

    def score() -> int:
        table.put_state(node_state("known", cpu=1.0, offset=table.version))
        return decisions.prioritize(small_pod(), ["n", "known"], NOW).steps.tolist()[0]

    table.put_node(TableNode(node="n", allocatable=ROOM))
    new = score()
    table.put_state(node_state("n"))
    table.put_pod(running(small_pod("old"), "n", 1000.0))
    table.put_pod(running(small_pod("young"), "n", 100.0))
    assert 0 < score() < new
    # Without a report, a node with an old pod is not new ..
    table.drop_state("n")
    assert score() == 0
    # .. and with the young pod alone it uses the estimate of that.
    table.drop_pod("n", "old")
    assert 0 < score() < new
    table.drop_pod("n", "young")
    assert score() == new
    # The pod settles and departs, and another node gets the row.
    table.put_pod(running(small_pod("old"), "n", 1000.0))
    table.put_state(node_state("n", offset=1))
    assert 0 < score() < new
    table.drop_pod("n", "old")
    table.drop_state("n")
    table.drop_node("n")
    table.put_node(TableNode(node="n", allocatable=ROOM))
    assert score() == new


def test_sums_of_pods_equal_a_recount() -> None:
    table, random = Table(counting=RULES.counting), np.random.default_rng(5)
    seen: dict[str, PodRecord] = {}
    for _ in range(2000):
        uid = f"p{random.integers(80)}"
        if uid in seen and random.random() < 0.4:
            table.drop_pod(seen.pop(uid).node, uid)
            continue
        node = f"n{random.integers(9)}"
        seen[uid] = msgspec.structs.replace(small_pod(uid, int(random.integers(4000))), node=node)
        table.put_pod(seen[uid])
    for index in range(9):
        here = [pod for pod in seen.values() if pod.node == f"n{index}"]
        expected = np.sum([RULES.counting.amounts(pod) for pod in here], axis=0)
        assert table.pods.sums[table.lookup([f"n{index}"])[0]].tolist() == expected.tolist()
    for uid, pod in seen.items():
        table.drop_pod(pod.node, uid)
    assert len(table) == len(table.pods) == 0
    assert not table.pods.sums.any()
