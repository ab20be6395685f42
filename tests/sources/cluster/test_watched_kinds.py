"""From events to what topics say, against a cluster that is a dictionary."""

import json
import random
import uuid
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import RecordError
from pipeline.processors.policy.policy_in_force import load_policies
from pipeline.sources.cluster.watched_kinds import REFUSED, Kind, Nodes, Pods, Workloads
from pipeline.sources.compacted_writer import Entry
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from pipeline.topics.workloads import WorkloadRecord

# Few, so that much happens to each.
UIDS = [str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), "file-pod"]
PLACES = ["", "n1", "n2"]

Log = list[Entry]


def raw(**of: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(of).encode())


def pod(uid: str, node: str = "", label: str = "", **metadata: Any) -> msgspec.Raw:
    named = {"name": f"p-{uid}", "namespace": "shop", "uid": uid, "labels": {"l": label}}
    return raw(metadata=named | metadata, spec={"nodeName": node} if node else {})


def node(name: str, **labels: str) -> msgspec.Raw:
    return raw(metadata={"name": name, "labels": labels})


def latest(log: Log) -> dict[bytes, bytes]:
    """What a reader of the topic knows in the end."""
    known: dict[bytes, bytes] = {}
    for entry in log:
        if entry.value is None:
            known.pop(entry.key, None)
        else:
            known[entry.key] = entry.value
    return known


def learn(kind: Kind, log: Log, rng: random.Random) -> None:
    """Read the log back as it comes from a broker: each node's records in order, the nodes' in
    any."""
    parts: dict[str, Log] = {}
    for entry in log:
        parts.setdefault(entry.node, []).append(entry)
    while parts:
        place = rng.choice(sorted(parts))
        entry = parts[place].pop(0)
        if not parts[place]:
            del parts[place]
        kind.learn(entry.key, entry.value)


class Follows(RuleBasedStateMachine):
    """Whatever happens to pods, watched or not, and wherever a watcher is killed: after the next
    whole list the topic says what is there, and after each event again."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, tuple[str, str]] = {}
        self.log: Log = []
        self.kind: Pods = Pods()
        self.is_complete = False

    @initialize()
    def start(self) -> None:
        self.whole_list()

    def put(self, uid: str) -> None:
        if self.is_complete:
            self.log += self.kind.put(pod(uid, *self.there[uid]))

    @rule(uid=st.sampled_from(UIDS), label=st.sampled_from("ab"))
    def make(self, uid: str, label: str) -> None:
        if uid not in self.there:
            self.there[uid] = "", label
            self.put(uid)

    @rule(uid=st.sampled_from(UIDS), place=st.sampled_from(PLACES), label=st.sampled_from("ab"))
    def change(self, uid: str, place: str, label: str) -> None:
        if uid in self.there:
            self.there[uid] = self.there[uid][0] or place, label
            self.put(uid)

    @rule(uid=st.sampled_from(UIDS))
    def delete(self, uid: str) -> None:
        if uid in self.there:
            last = pod(uid, *self.there.pop(uid))
            if self.is_complete:
                self.log += self.kind.gone(last)

    @rule()
    def lose_the_watch(self) -> None:
        self.is_complete = False

    @rule(lost=st.integers(0, 4), seed=st.integers(0, 99))
    def kill(self, lost: int, seed: int) -> None:
        """Its last entries never reached the broker; the next one reads back what did."""
        self.is_complete = False
        del self.log[len(self.log) - min(lost, len(self.log)) :]
        self.kind = Pods()
        learn(self.kind, self.log, random.Random(seed))

    @rule(until=st.integers(0, len(UIDS)))
    def list_is_cut_off(self, until: int) -> None:
        self.is_complete = False
        before = latest(self.log)
        self.kind.begin()
        listed = sorted(self.there)[:until]
        for uid in listed:
            self.log += self.kind.put(pod(uid, *self.there[uid]))
        # Nothing vanishes but what moved to a node.
        gone = {key for key in before if key not in latest(self.log)}
        assert {key.rpartition(b"/")[2].decode() for key in gone} <= set(listed)

    @rule()
    def whole_list(self) -> None:
        self.kind.begin()
        for uid, of in self.there.items():
            self.log += self.kind.put(pod(uid, *of))
        self.log += list(self.kind.complete())
        self.is_complete = True

    @rule()
    def nothing_is_written_twice(self) -> None:
        if self.is_complete:
            before = len(self.log)
            self.whole_list()
            assert len(self.log) == before

    @invariant()
    def in_step(self) -> None:
        if not self.is_complete:
            return
        said = {key: decode_json(PodRecord, value) for key, value in latest(self.log).items()}
        assert {key.decode() for key in said} == {f"{n}/{u}" for u, (n, _) in self.there.items()}
        assert {(p.uid, p.node, p.labels["l"]) for p in said.values()} == {
            (uid, *of) for uid, of in self.there.items()
        }
        assert len(self.kind) == len(self.there)


TestFollows = Follows.TestCase
TestFollows.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_pod_that_gets_its_node_leaves_the_empty_one() -> None:
    pods = Pods()
    assert [e.key for e in pods.put(pod("u"))] == [b"/u"]
    gone, there = pods.put(pod("u", "n1"))
    assert gone == Entry(PODS, "", b"/u", None)
    assert (there.node, there.key) == ("n1", b"n1/u")
    assert list(pods.gone(pod("u", "n1"))) == [Entry(PODS, "n1", b"n1/u", None)]
    assert list(pods.gone(pod("u", "n1"))) == []


BOUND = [("", True), ("", False), ("n1", True)]


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    "written",
    [BOUND, BOUND[1:], [*BOUND, ("n1", False)], [BOUND[0], BOUND[2]], BOUND[:2]],
    ids=["bound", "compacted", "deleted", "half", "lost"],
)
def test_in_whatever_order_partitions_are_read_back_the_end_is_the_same(
    written: list[tuple[str, bool]], is_there: bool
) -> None:
    """Exhaustively, for a pod that was bound and whose watcher ended somewhere on the way."""
    records = [
        (f"{place}/u".encode(), next(iter(Pods().put(pod("u", place)))).value if there else None)
        for place, there in written
    ]
    orders = [
        order
        for order in permutations(records)
        if all(
            [r for r in order if r[0] == key] == [r for r in records if r[0] == key]
            for key, _ in records
        )
    ]
    assert orders
    for order in orders:
        pods = Pods()
        for key, value in order:
            pods.learn(key, value)
        pods.begin()
        more = list(pods.put(pod("u", "n1"))) if is_there else []
        more += pods.complete()
        on_topic = dict(records) | {entry.key: entry.value for entry in more}
        live = {key for key, value in on_topic.items() if value is not None}
        assert live == ({b"n1/u"} if is_there else set())


def test_a_static_pod_has_the_uid_of_its_cgroup() -> None:
    made = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    (entry,) = Pods().put(pod("u", "n1", annotations=made))
    assert entry.value is not None
    assert decode_json(PodRecord, entry.value).cgroup_uid == "h"


def refused(kind: str) -> float:
    found: float = REFUSED.labels(kind)._value.get()
    return found


def test_what_cannot_be_used_stays_as_it_was_and_is_counted() -> None:
    pods, before = Pods(), refused("Pod")
    pods.begin()
    list(pods.put(pod("u", "n1")))
    pods.begin()
    assert list(pods.put(pod("u", "n1", creationTimestamp="yesterday"))) == []
    assert list(pods.complete()) == []
    assert refused("Pod") == before + 1
    # It can be deleted all the same.
    assert [e.value for e in pods.gone(pod("u", "n1", creationTimestamp="yesterday"))] == [None]


@pytest.mark.parametrize("of", [b"1", b"[]", b'"x"', b"{}", b'{"metadata": 1}'])
def test_nonsense_costs_itself(of: bytes) -> None:
    for kind in (Pods(), nodes(), Workloads("Job")):
        kind.begin()
        assert list(kind.put(msgspec.Raw(of))) == []
        assert list(kind.gone(msgspec.Raw(of))) == []
        assert list(kind.complete()) == []


# -- nodes


def nodes(**data: Any) -> Nodes:
    """Nodes with this policy in force."""
    found = Nodes(lambda *_: None)
    policies, _ = load_policies({key: json.dumps(of) for key, of in data.items()})
    list(found.apply(policies))
    return found


def on(value: bytes | None) -> bool:
    assert value is not None
    return decode_json(NodeRecord, value).overcommit is not None


ENABLED, _ = load_policies({"colocation-config": '{"enable": true}'})


def test_a_policy_reaches_each_node_that_it_changes_and_no_other() -> None:
    of = nodes()
    of.begin()
    off = "node.koordinator.sh/colocation-strategy"
    assert [on(e.value) for name in ("a", "b") for e in of.put(node(name))] == [False, False]
    list(of.put(raw(metadata={"name": "off", "annotations": {off: '{"enable": false}'}})))
    changed = list(of.apply(ENABLED))
    assert {e.key for e in changed if on(e.value)} == {b"a", b"b"}
    assert list(of.apply(ENABLED)) == []
    assert list(of.put(node("a"))) == []


def test_nodes_that_come_change_and_go_while_a_policy_is_applied() -> None:
    of = nodes()
    log = [e for name in "abc" for e in of.put(node(name))]
    applying = of.apply(ENABLED)
    log.append(next(applying))
    log += of.put(node("b", new="yes"))
    log += of.gone(node("c"))
    log += of.put(node("d"))
    log += applying
    said = {key: decode_json(NodeRecord, value) for key, value in latest(log).items()}
    assert said.keys() == {b"a", b"b", b"d"}
    assert said[b"b"].labels == {"new": "yes"}
    assert all(record.overcommit is not None for record in said.values())


def test_what_the_actuator_writes_makes_no_record_but_that_it_offers() -> None:
    of, notes = nodes(), ("recommended", "cooled")

    def written(minute: int) -> msgspec.Raw:
        at = f"2026-01-01T00:{minute:02}:00Z"
        noted = {f"springtide/{note}": at for note in notes}
        origin = {"node.koordinator.sh/originExtendedAllocatable": f'{{"resources":"{minute}"}}'}
        said = {"springtide/offered": at, "springtide/strategy": "{}", **noted, **origin}
        batch = {"kubernetes.io/batch-cpu": str(minute)}
        return raw(metadata={"name": "n", "annotations": said}, status={"allocatable": batch})

    of.begin()
    (before,) = of.put(raw(metadata={"name": "n", "annotations": {"springtide/strategy": "{}"}}))
    assert list(of.complete()) == []
    (begun,) = of.put(written(1))
    assert decode_json(NodeRecord, begun.value or b"").annotations == {
        "springtide/offered": "",
        "springtide/strategy": "{}",
    }
    assert [list(of.put(written(minute))) for minute in range(2, 6)] == [[]] * 4
    (ended,) = of.put(raw(metadata={"name": "n", "annotations": {"springtide/strategy": "{}"}}))
    assert ended == before


def test_a_start_with_a_policy_that_is_none_keeps_what_was_in_force() -> None:
    before = nodes()
    list(before.apply(ENABLED))
    log = [e for name in ("a", "b") for e in before.put(node(name))]
    after = Nodes(lambda *_: None)
    learn(after, log, random.Random(0))
    broken, problems = load_policies({"colocation-config": '{"enable": 1}'})
    assert problems
    assert list(after.apply(broken)) == []
    after.begin()
    (changed,) = [*after.put(node("a")), *after.put(node("b", new="yes"))]
    assert changed.key == b"b"
    assert on(changed.value)
    assert list(after.complete()) == []


def test_the_problems_of_a_node_are_told_once_and_that_they_are_over() -> None:
    told: list[tuple[str, int]] = []
    of = Nodes(lambda name, problems: told.append((name, len(problems))))
    list(of.apply(ENABLED))
    wrong = {"node.koordinator.sh/cpu-reclaim-ratio": "much"}
    for labels in ({}, wrong, wrong, wrong | {"a": "b"}, {}, {}):
        list(of.put(node("a", **labels)))
    assert told == [("a", 1), ("a", 0)]


@pytest.mark.parametrize("value", [b"{", b"\xff", b'{"node": 1}'])
def test_a_record_that_cannot_be_read_is_written_anew_or_goes(value: bytes) -> None:
    of, others = nodes(), Workloads("Job")
    for name in (b"a", b"b"):
        with pytest.raises(RecordError):
            of.learn(name, value)
        with pytest.raises(RecordError):
            others.learn(b"shop/Job/" + name, value)
    of.begin()
    assert [e.key for e in of.put(node("a"))] == [b"a"]
    assert list(of.complete()) == [Entry(NODES, "b", b"b", None)]
    others.begin()
    assert [e.key for e in others.put(raw(metadata={"name": "a", "namespace": "shop"}))] == [
        b"shop/Job/a"
    ]
    assert list(others.complete()) == [Entry(WORKLOADS, "shop", b"shop/Job/b", None)]


def test_a_node_that_cannot_be_used_stays() -> None:
    of = nodes()
    of.begin()
    list(of.put(node("a")))
    of.begin()
    bad = raw(metadata={"name": "a"}, status={"allocatable": {"cpu": "-1"}})
    assert list(of.put(bad)) == []
    assert list(of.complete()) == []
    assert list(of.gone(bad)) == [Entry(NODES, "a", b"a", None)]


# -- workloads


def test_workloads_come_change_and_go() -> None:
    sets = Workloads("ReplicaSet")

    def of(ready: int) -> msgspec.Raw:
        return raw(
            metadata={"name": "cart-1", "namespace": "shop"},
            spec={"replicas": 3},
            status={"readyReplicas": ready},
        )

    sets.begin()
    (made,) = sets.put(of(1))
    assert (made.node, made.key) == ("shop", b"shop/ReplicaSet/cart-1")
    assert made.value is not None
    assert decode_json(WorkloadRecord, made.value).ready_replicas == 1
    assert list(sets.put(of(1))) == []
    assert len(list(sets.put(of(2)))) == 1
    assert list(sets.complete()) == []
    sets.begin()
    assert list(sets.complete()) == [Entry(WORKLOADS, "shop", made.key, None)]
    assert list(sets.gone(of(2))) == []
