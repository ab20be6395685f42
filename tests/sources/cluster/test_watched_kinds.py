"""The records of watched kinds equal a simulated cluster after any sequence of events."""

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
from pipeline.metrics import REGISTRY
from pipeline.processors.policy.policy_in_force import Policies, load_policies
from pipeline.sources.cluster.watched_kinds import Kind, Nodes, Pods, Workloads
from pipeline.sources.compacted_writer import Entry
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import NODES, PODS, WORKLOADS
from pipeline.topics.workloads import WorkloadRecord

# Few, so that each has many events.
UIDS = [str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), "file-pod"]
PLACES = ["", "n1", "n2"]

Log = list[Entry]


def raw(**fields: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(fields).encode())


def pod(uid: str, node: str = "", label: str = "", **metadata: Any) -> msgspec.Raw:
    named = {"name": f"p-{uid}", "namespace": "shop", "uid": uid, "labels": {"l": label}}
    return raw(metadata=named | metadata, spec={"nodeName": node} if node else {})


def node(name: str, **labels: str) -> msgspec.Raw:
    return raw(metadata={"name": name, "labels": labels})


def latest(log: Log) -> dict[bytes, bytes]:
    """Return the newest value of each key."""
    known: dict[bytes, bytes] = {}
    for entry in log:
        if entry.value is None:
            known.pop(entry.key, None)
        else:
            known[entry.key] = entry.value
    return known


def restore(kind: Kind, log: Log, rng: random.Random) -> None:
    """Restore `kind` from the log: in order within a node, in any order between nodes."""
    parts: dict[str, Log] = {}
    for entry in log:
        parts.setdefault(entry.node, []).append(entry)
    while parts:
        place = rng.choice(sorted(parts))
        entry = parts[place].pop(0)
        if not parts[place]:
            del parts[place]
        kind.restore(entry.key, entry.value)


class PodsMachine(RuleBasedStateMachine):
    """The topic equals the cluster after each complete list and each event that follows.

    Pods change while the watch is lost, and watchers are killed anywhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cluster: dict[str, tuple[str, str]] = {}
        self.log: Log = []
        self.kind: Pods = Pods()
        self.is_complete = False

    @initialize()
    def start(self) -> None:
        self.whole_list()

    def put(self, uid: str) -> None:
        if self.is_complete:
            self.log += self.kind.put(pod(uid, *self.cluster[uid]))

    @rule(uid=st.sampled_from(UIDS), label=st.sampled_from("ab"))
    def create(self, uid: str, label: str) -> None:
        if uid not in self.cluster:
            self.cluster[uid] = "", label
            self.put(uid)

    @rule(uid=st.sampled_from(UIDS), place=st.sampled_from(PLACES), label=st.sampled_from("ab"))
    def change(self, uid: str, place: str, label: str) -> None:
        if uid in self.cluster:
            self.cluster[uid] = self.cluster[uid][0] or place, label
            self.put(uid)

    @rule(uid=st.sampled_from(UIDS))
    def delete(self, uid: str) -> None:
        if uid in self.cluster:
            last = pod(uid, *self.cluster.pop(uid))
            if self.is_complete:
                self.log += self.kind.delete(last)

    @rule()
    def lose_the_watch(self) -> None:
        self.is_complete = False

    @rule(lost=st.integers(0, 4), seed=st.integers(0, 99))
    def kill(self, lost: int, seed: int) -> None:
        """Lose the last entries; a new watcher restores its state from the workloads."""
        self.is_complete = False
        del self.log[len(self.log) - min(lost, len(self.log)) :]
        self.kind = Pods()
        restore(self.kind, self.log, random.Random(seed))

    @rule(until=st.integers(0, len(UIDS)))
    def list_is_cut_off(self, until: int) -> None:
        self.is_complete = False
        before = latest(self.log)
        self.kind.begin()
        listed = sorted(self.cluster)[:until]
        for uid in listed:
            self.log += self.kind.put(pod(uid, *self.cluster[uid]))
        # Only records of pods that were bound are removed.
        removed = {key for key in before if key not in latest(self.log)}
        assert {key.rpartition(b"/")[2].decode() for key in removed} <= set(listed)

    @rule()
    def whole_list(self) -> None:
        self.kind.begin()
        for uid, state in self.cluster.items():
            self.log += self.kind.put(pod(uid, *state))
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
        records = {key: decode_json(PodRecord, value) for key, value in latest(self.log).items()}
        assert {key.decode() for key in records} == {
            f"{n}/{u}" for u, (n, _) in self.cluster.items()
        }
        assert {(p.uid, p.node, p.labels["l"]) for p in records.values()} == {
            (uid, *state) for uid, state in self.cluster.items()
        }
        assert len(self.kind) == len(self.cluster)


TestPods = PodsMachine.TestCase
TestPods.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_bound_pod_leaves_the_empty_node() -> None:
    pods = Pods()
    assert [e.key for e in pods.put(pod("u"))] == [b"/u"]
    tombstone, bound = pods.put(pod("u", "n1"))
    assert tombstone == Entry(PODS, "", b"/u", None)
    assert (bound.node, bound.key) == ("n1", b"n1/u")
    for expected in ([Entry(PODS, "n1", b"n1/u", None)], []):
        assert list(pods.delete(pod("u", "n1"))) == expected


BOUND = [("", True), ("", False), ("n1", True)]


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    "written",
    [BOUND, BOUND[1:], [*BOUND, ("n1", False)], [BOUND[0], BOUND[2]], BOUND[:2]],
    ids=["bound", "compacted", "deleted", "half", "lost"],
)
def test_order_of_restored_partitions_does_not_matter(
    written: list[tuple[str, bool]], is_there: bool
) -> None:
    """All orders, for a pod that was bound while its watcher was killed."""
    records = [
        (f"{place}/u".encode(), next(iter(Pods().put(pod("u", place)))).value if exists else None)
        for place, exists in written
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
            pods.restore(key, value)
        pods.begin()
        more = list(pods.put(pod("u", "n1"))) if is_there else []
        more += pods.complete()
        on_topic = dict(records) | {entry.key: entry.value for entry in more}
        live = {key for key, value in on_topic.items() if value is not None}
        assert live == ({b"n1/u"} if is_there else set())


def test_static_pod_has_the_uid_of_its_cgroup() -> None:
    made = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    (entry,) = Pods().put(pod("u", "n1", annotations=made))
    assert decode_json(PodRecord, entry.value or b"").cgroup_uid == "h"


def refused(kind: str) -> float:
    name = "springtide_watcher_refused_objects_total"
    return REGISTRY.get_sample_value(name, {"kind": kind}) or 0.0


def test_invalid_pod_keeps_its_record_and_is_counted() -> None:
    pods, before = Pods(), refused("Pod")
    pods.begin()
    list(pods.put(pod("u", "n1")))
    pods.begin()
    invalid = pod("u", "n1", creationTimestamp="yesterday")
    assert [*pods.put(invalid), *pods.complete()] == []
    assert refused("Pod") == before + 1
    # An invalid pod can be deleted.
    assert [e.value for e in pods.delete(invalid)] == [None]


@pytest.mark.parametrize("manifest", [b"1", b"[]", b'"x"', b"{}", b'{"metadata": 1}'])
def test_invalid_objects_are_ignored(manifest: bytes) -> None:
    for kind in (Pods(), nodes(), Workloads("Job")):
        kind.begin()
        invalid = msgspec.Raw(manifest)
        assert [*kind.put(invalid), *kind.delete(invalid), *kind.complete()] == []


# -- nodes


def nodes(**data: Any) -> Nodes:
    """Nodes with this policy in force."""
    kind = Nodes(lambda *_: None)
    policies, _ = load_policies({key: json.dumps(part) for key, part in data.items()})
    list(kind.apply(policies))
    return kind


def has_overcommit(value: bytes | None) -> bool:
    return decode_json(NodeRecord, value or b"").overcommit is not None


ENABLED, _ = load_policies({"colocation-config": '{"enable": true}'})


def test_policy_changes_only_affected_nodes() -> None:
    kind = nodes()
    kind.begin()
    off = "node.koordinator.sh/colocation-strategy"
    assert [has_overcommit(e.value) for name in ("a", "b") for e in kind.put(node(name))] == [
        False,
        False,
    ]
    list(kind.put(raw(metadata={"name": "off", "annotations": {off: '{"enable": false}'}})))
    assert {e.key for e in kind.apply(ENABLED) if has_overcommit(e.value)} == {b"a", b"b"}
    assert [*kind.apply(ENABLED), *kind.put(node("a"))] == []


def test_nodes_change_while_policy_is_applied() -> None:
    kind = nodes()
    log = [e for name in "abc" for e in kind.put(node(name))]
    applying = kind.apply(ENABLED)
    log.append(next(applying))
    log += [*kind.put(node("b", new="yes")), *kind.delete(node("c")), *kind.put(node("d"))]
    log += applying
    records = {key: decode_json(NodeRecord, value) for key, value in latest(log).items()}
    assert (set(records), records[b"b"].labels) == ({b"a", b"b", b"d"}, {"new": "yes"})
    assert all(record.overcommit is not None for record in records.values())


def test_actuator_annotations_change_no_record_except_offered() -> None:
    kind, notes = nodes(), ("recommended", "cooled")

    def written(minute: int) -> msgspec.Raw:
        time = f"2026-01-01T00:{minute:02}:00Z"
        noted = {f"springtide/{note}": time for note in notes}
        origin = {"node.koordinator.sh/originExtendedAllocatable": f'{{"resources":"{minute}"}}'}
        annotations = {"springtide/offered": time, "springtide/strategy": "{}", **noted, **origin}
        batch = {"kubernetes.io/batch-cpu": str(minute)}
        return raw(
            metadata={"name": "n", "annotations": annotations}, status={"allocatable": batch}
        )

    kind.begin()
    (before,) = kind.put(raw(metadata={"name": "n", "annotations": {"springtide/strategy": "{}"}}))
    assert list(kind.complete()) == []
    (begun,) = kind.put(written(1))
    assert decode_json(NodeRecord, begun.value or b"").annotations == {
        "springtide/offered": "",
        "springtide/strategy": "{}",
    }
    assert [list(kind.put(written(minute))) for minute in range(2, 6)] == [[]] * 4
    (ended,) = kind.put(raw(metadata={"name": "n", "annotations": {"springtide/strategy": "{}"}}))
    assert ended == before


def test_invalid_policy_at_start_keeps_the_policy_in_force() -> None:
    before = nodes()
    list(before.apply(ENABLED))
    log = [e for name in ("a", "b") for e in before.put(node(name))]
    after = Nodes(lambda *_: None)
    restore(after, log, random.Random(0))
    broken, problems = load_policies({"colocation-config": '{"enable": 1}'})
    assert (len(problems), list(after.apply(broken))) == (1, [])
    after.begin()
    (changed,) = [*after.put(node("a")), *after.put(node("b", new="yes")), *after.complete()]
    assert (changed.key, has_overcommit(changed.value)) == (b"b", True)


def test_without_config_map_nodes_keep_the_policy_of_their_record() -> None:
    before = nodes()
    list(before.apply(ENABLED))
    after = Nodes(lambda *_: None)
    restore(after, list(before.put(node("a"))), random.Random(0))
    assert list(after.apply(Policies())) == []
    after.begin()
    assert list(after.put(node("a"))) == []
    (new,) = after.put(node("new"))
    record = decode_json(NodeRecord, new.value or b"")
    assert (record.overcommit, record.colocation is None) == (None, False)


def test_problems_of_node_are_reported_when_they_change() -> None:
    reports: list[tuple[str, int]] = []
    kind = Nodes(lambda name, problems: reports.append((name, len(problems))))
    list(kind.apply(ENABLED))
    wrong = {"node.koordinator.sh/cpu-reclaim-ratio": "much"}
    for labels in ({}, wrong, wrong, wrong | {"a": "b"}, {}, {}):
        list(kind.put(node("a", **labels)))
    assert reports == [("a", 1), ("a", 0)]


@pytest.mark.parametrize("value", [b"{", b"\xff", b'{"node": 1}'])
def test_invalid_record_is_overwritten_or_removed(value: bytes) -> None:
    kind, workloads = nodes(), Workloads("Job")
    for name in (b"a", b"b"):
        with pytest.raises(RecordError):
            kind.restore(name, value)
        with pytest.raises(RecordError):
            workloads.restore(b"shop/Job/" + name, value)
    kind.begin()
    assert [e.key for e in kind.put(node("a"))] == [b"a"]
    assert list(kind.complete()) == [Entry(NODES, "b", b"b", None)]
    workloads.begin()
    assert [e.key for e in workloads.put(raw(metadata={"name": "a", "namespace": "shop"}))] == [
        b"shop/Job/a"
    ]
    assert list(workloads.complete()) == [Entry(WORKLOADS, "shop", b"shop/Job/b", None)]


def test_invalid_node_keeps_its_record() -> None:
    kind = nodes()
    kind.begin()
    list(kind.put(node("a")))
    kind.begin()
    bad = raw(metadata={"name": "a"}, status={"allocatable": {"cpu": "-1"}})
    assert [*kind.put(bad), *kind.complete()] == []
    assert list(kind.delete(bad)) == [Entry(NODES, "a", b"a", None)]


# -- workloads


def test_workloads_are_added_changed_and_deleted() -> None:
    sets = Workloads("ReplicaSet")

    def replica_set(ready: int) -> msgspec.Raw:
        return raw(
            metadata={"name": "cart-1", "namespace": "shop"},
            spec={"replicas": 3},
            status={"readyReplicas": ready},
        )

    sets.begin()
    (made,) = sets.put(replica_set(1))
    assert (made.node, made.key) == ("shop", b"shop/ReplicaSet/cart-1")
    assert decode_json(WorkloadRecord, made.value or b"").ready_replicas == 1
    assert [len([*sets.put(replica_set(ready))]) for ready in (1, 2)] == [0, 1]
    assert list(sets.complete()) == []
    sets.begin()
    assert list(sets.complete()) == [Entry(WORKLOADS, "shop", made.key, None)]
    assert list(sets.delete(replica_set(2))) == []
