"""The cluster state, from valid and invalid records in any order."""

from typing import Any

import pytest

from pipeline.agents.cluster_state import MAX_DELETED_NODES, ClusterState, ClusterStateTopics
from pipeline.agents.deleted_pods import LONGEST_MS
from pipeline.agents.refusals import Refused
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import KnownNode, NodeRecord
from pipeline.topics.pod_columns import GONE
from pipeline.topics.pods import PodRecord, pod_key
from tests.agents.fakes import MemoryBroker


def record(key: bytes | None, value: bytes | None, at_ms: int = 0) -> LogRecord:
    return LogRecord(0, 0, key, value, at_ms)


def node(name: str, uid: str = "") -> LogRecord:
    return record(name.encode(), encode_json(NodeRecord(node=name, uid=uid)))


def pod(name: str, uid: str, cgroup_uid: str | None = None, **changes: Any) -> LogRecord:
    pod_record = PodRecord(
        node=name, uid=uid, cgroup_uid=cgroup_uid or uid, namespace="ns", name=f"pod-{uid}",
        **changes,
    )  # fmt: skip
    return record(pod_key(name, uid), encode_json(pod_record))


def with_pods(*records: LogRecord) -> ClusterState:
    """Return a cluster state with these records of pods."""
    cluster_state = ClusterState()
    for pod_record in records:
        cluster_state.apply_pod(pod_record)
    return cluster_state


def pods_of(cluster_state: ClusterState, name: str) -> dict[str, str | None]:
    return {uid: pod.name for uid, pod in cluster_state.pods.get(name, {}).items()}


def deleted_pods_of(cluster_state: ClusterState, name: str) -> set[str]:
    return {uid for uid, pod in cluster_state.objects_of(name).pods.items() if pod.phase == GONE}


def delete(cluster_state: ClusterState, name: str, uid: str, at_ms: int = 0) -> None:
    cluster_state.apply_pod(record(pod_key(name, uid), None, at_ms))


def test_a_node_without_a_record_is_unknown() -> None:
    objects = ClusterState().objects_of("a")
    assert (objects.record, dict(objects.pods)) == (None, {})


def test_the_newest_record_of_a_node_is_used() -> None:
    cluster_state = ClusterState()
    assert cluster_state.apply_node(node("a", "1")) is None
    assert cluster_state.apply_node(node("a", "2")) is None
    assert cluster_state.objects_of("a").record == KnownNode(node="a", uid="2")


def test_a_node_is_deleted_from_its_tombstone_to_its_next_record() -> None:
    cluster_state = ClusterState()
    cluster_state.apply_node(node("a"))
    assert cluster_state.apply_node(record(b"a", None)) == "a"
    assert (cluster_state.objects_of("a").record, set(cluster_state.deleted_nodes)) == (None, {"a"})
    cluster_state.apply_node(node("a"))
    assert not cluster_state.deleted_nodes


def test_the_tombstone_of_an_unknown_node_marks_it_as_deleted() -> None:
    # Compaction may have removed earlier records.
    cluster_state = ClusterState()
    assert cluster_state.apply_node(record(b"a", None)) == "a"
    assert set(cluster_state.deleted_nodes) == {"a"}


def test_only_the_last_deleted_nodes_are_remembered() -> None:
    cluster_state = ClusterState()
    for number in range(MAX_DELETED_NODES + 5):
        cluster_state.apply_node(node(f"n{number}"))
        cluster_state.apply_node(record(f"n{number}".encode(), None))
        # A node that is deleted again moves to the end.
        cluster_state.apply_node(record(b"n0", None))
    last = [f"n{number}" for number in range(6, MAX_DELETED_NODES + 5)]
    assert list(cluster_state.deleted_nodes) == [*last, "n0"]


def test_pods_are_looked_up_by_the_uid_of_their_cgroup() -> None:
    cluster_state = with_pods(
        pod("a", "mirror", cgroup_uid="hash"), pod("a", "plain"), pod("b", "other")
    )
    assert pods_of(cluster_state, "a") == {"hash": "pod-mirror", "plain": "pod-plain"}
    assert pods_of(cluster_state, "b") == {"other": "pod-other"}


def test_a_pod_whose_cgroup_changed_is_not_found_by_the_old_cgroup() -> None:
    cluster_state = with_pods(pod("a", "x", cgroup_uid="old"), pod("a", "x", cgroup_uid="new"))
    assert pods_of(cluster_state, "a") == {"new": "pod-x"}


def test_a_pod_that_is_bound_later_is_on_its_node() -> None:
    cluster_state = with_pods(pod("", "x"), pod("a", "x"))
    delete(cluster_state, "", "x")
    assert pods_of(cluster_state, "a") == {"x": "pod-x"}
    assert pods_of(cluster_state, "") == {}


def test_a_tombstone_removes_a_pod_and_a_second_one_changes_nothing() -> None:
    cluster_state = with_pods(pod("a", "x"), pod("a", "y"))
    for _ in range(2):
        delete(cluster_state, "a", "x")
    assert pods_of(cluster_state, "a") == {"y": "pod-y"}
    delete(cluster_state, "a", "y")
    assert pods_of(cluster_state, "a") == {}


def test_a_tombstone_leaves_another_pod_with_the_same_cgroup() -> None:
    # A recreated static pod keeps its hash and gets another mirror pod, whose record may be written
    # before the tombstone of the old one.
    cluster_state = with_pods(
        pod("a", "mirror-1", cgroup_uid="hash"), pod("a", "mirror-2", cgroup_uid="hash")
    )
    delete(cluster_state, "a", "mirror-1")
    assert pods_of(cluster_state, "a") == {"hash": "pod-mirror-2"}


def test_a_deleted_pod_is_known_without_requests_until_no_window_can_contain_it() -> None:
    cluster_state = with_pods(pod("a", "x", pod_class="batch", phase="Running"))
    delete(cluster_state, "a", "x", at_ms=40_000)
    assert pods_of(cluster_state, "a") == {}
    deleted = cluster_state.objects_of("a").pods["x"]
    assert (deleted.name, deleted.pod_class, deleted.phase) == ("pod-x", CLASS_CODES["batch"], GONE)
    assert (deleted.deleting, deleted.view) == (True, None)
    # After the window of its deletion and a late one, it may still be in later windows. A pod is
    # known as long as its cgroup is listed.
    for index, listed in enumerate(([], ["x"], [], ["x"], [])):
        start = index * 30_000
        cluster_state.deleted_pods.joined("a", listed, start, start + 30_000)
        assert deleted_pods_of(cluster_state, "a") == {"x"}
    cluster_state.deleted_pods.joined("b", [], 150_000, 180_000)
    assert deleted_pods_of(cluster_state, "a") == {"x"}
    cluster_state.deleted_pods.joined("a", [], 150_000, 180_000)
    assert deleted_pods_of(cluster_state, "a") == set()
    assert len(cluster_state.deleted_pods) == 0


def test_a_pod_replaces_a_deleted_pod_with_the_same_cgroup() -> None:
    cluster_state = with_pods(pod("a", "mirror-1", cgroup_uid="hash"))
    delete(cluster_state, "a", "mirror-1")
    assert deleted_pods_of(cluster_state, "a") == {"hash"}
    cluster_state.apply_pod(pod("a", "mirror-2", cgroup_uid="hash"))
    assert deleted_pods_of(cluster_state, "a") == set()
    assert cluster_state.objects_of("a").pods["hash"].name == "pod-mirror-2"
    assert len(cluster_state.deleted_pods) == 0


def test_deleted_pods_expire_on_nodes_without_windows() -> None:
    cluster_state = ClusterState()
    for name in ("a", "b", "c"):
        cluster_state.apply_pod(pod(name, "x"))
        delete(cluster_state, name, "x", at_ms=1)
    cluster_state.apply_pod(pod("a", "y"))
    delete(cluster_state, "a", "y", at_ms=LONGEST_MS + 1)
    assert [deleted_pods_of(cluster_state, name) for name in "abc"] == [{"x", "y"}, {"x"}, {"x"}]
    cluster_state.apply_pod(pod("a", "z"))
    delete(cluster_state, "a", "z", at_ms=LONGEST_MS + 2)
    assert [deleted_pods_of(cluster_state, name) for name in "abc"] == [{"y", "z"}, set(), set()]
    assert len(cluster_state.deleted_pods) == 2


def test_a_deleted_node_has_no_pods_whichever_was_deleted_first() -> None:
    cluster_state = with_pods(pod("a", "x"), pod("a", "y"))
    delete(cluster_state, "a", "x")
    cluster_state.apply_node(record(b"a", None))
    delete(cluster_state, "a", "y")
    assert len(cluster_state.deleted_pods) == 0


def test_an_unbound_deleted_pod_is_not_kept() -> None:
    cluster_state = with_pods(pod("", "x"))
    delete(cluster_state, "", "x")
    assert len(cluster_state.deleted_pods) == 0


@pytest.mark.parametrize(
    "bad",
    [
        record(b"a", b""), record(b"a", b"{"), record(b"a", b'{"version": 2, "node": "a"}'),
        record(b"a", b'{"version": 1}'), record(b"b", node("a").value),
        record(b"\xff", node("a").value), record(None, node("a").value),
    ],
)  # fmt: skip
def test_an_invalid_node_record_changes_nothing(bad: LogRecord) -> None:
    cluster_state = ClusterState()
    cluster_state.apply_node(node("a", "1"))
    with pytest.raises(RecordError):
        cluster_state.apply_node(bad)
    assert cluster_state.nodes == {"a": KnownNode(node="a", uid="1")}


@pytest.mark.parametrize(
    "bad",
    [
        record(b"a/x", b"null"), record(b"no-slash", pod("a", "x").value),
        record(b"a/y", pod("a", "x").value), record(b"b/x", pod("a", "x").value),
        record(b"\xff/x", None), record(None, None),
    ],
)  # fmt: skip
def test_an_invalid_pod_record_changes_nothing(bad: LogRecord) -> None:
    cluster_state = with_pods(pod("a", "x"))
    with pytest.raises(RecordError):
        cluster_state.apply_pod(bad)
    assert pods_of(cluster_state, "a") == {"x": "pod-x"}


async def test_loading_reads_both_topics_to_their_ends_and_refuses_invalid_records() -> None:
    broker = MemoryBroker()
    refused: list[tuple[str, int, str]] = []

    async def refuse(topic: str, records: Refused) -> None:
        refused.extend((topic, record.offset, error.reason) for record, error in records)

    for entry in (node("a"), record(b"c", node("a").value), node("b"), record(b"a", None)):
        broker.put("t.nodes", 0, entry.key, entry.value)
    for entry in (pod("b", "x"), record(b"b/y", b"junk"), pod("b", "z")):
        broker.put("t.pods", 0, entry.key, entry.value)
    topics = ClusterStateTopics("t", refuse)
    async with broker.open_reader([("t.nodes", 0), ("t.pods", 0)]) as reader:
        cluster_state = ClusterState()
        ends = await topics.load(reader, 0, cluster_state, {})
    assert ends == {"t.nodes": 4, "t.pods": 3}
    assert (set(cluster_state.nodes), set(cluster_state.deleted_nodes)) == ({"b"}, {"a"})
    assert pods_of(cluster_state, "b") == {"x": "pod-x", "z": "pod-z"}
    broker.put("t.nodes", 0, b"d", node("d").value)
    async with broker.open_reader([("t.nodes", 0), ("t.pods", 0)]) as reader:
        assert await topics.load(reader, 0, cluster_state, ends) == {"t.nodes": 5, "t.pods": 3}
    assert set(cluster_state.nodes) == {"b", "d"}
    assert refused == [("t.nodes", 1, KeyMismatchError.reason), ("t.pods", 1, "undecodable")]
