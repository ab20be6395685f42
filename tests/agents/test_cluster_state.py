"""Nodes and pods as the join looks them up, read from records in any order and of any quality."""

from typing import Any

import pytest

from pipeline.agents.cluster_state import DEPARTED_AT_MOST, Inventory, InventoryTopics
from pipeline.agents.deleted_pods import LONGEST_MS
from pipeline.errors import KeyMismatchError, RecordError
from pipeline.kafka.partition_log import LogRecord
from pipeline.processors.kubernetes.pod_classes import CLASS_CODES
from pipeline.topics.codec import encode_json
from pipeline.topics.known_columns import GONE
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord, pod_key
from tests.agents.fakes import MemoryBroker


def record(key: bytes | None, value: bytes | None, at_ms: int = 0) -> LogRecord:
    return LogRecord(0, 0, key, value, at_ms)


def node(name: str, uid: str = "") -> LogRecord:
    return record(name.encode(), encode_json(NodeRecord(node=name, uid=uid)))


def pod(name: str, uid: str, cgroup_uid: str | None = None, **changes: Any) -> LogRecord:
    made = PodRecord(
        node=name, uid=uid, cgroup_uid=cgroup_uid or uid, namespace="ns", name=f"pod-{uid}",
        **changes,
    )  # fmt: skip
    return record(pod_key(name, uid), encode_json(made))


def pods_of(inventory: Inventory, name: str) -> dict[str, str | None]:
    return {uid: pod.name for uid, pod in inventory.pods.get(name, {}).items()}


def gone_of(inventory: Inventory, name: str) -> set[str]:
    return {uid for uid, pod in inventory.view(name).pods.items() if pod.phase == GONE}


def delete(inventory: Inventory, name: str, uid: str, at_ms: int = 0) -> None:
    inventory.apply_pod(record(pod_key(name, uid), None, at_ms))


def test_a_node_that_nobody_speaks_of_is_unknown() -> None:
    view = Inventory().view("a")
    assert (view.record, dict(view.pods)) == (None, {})


def test_the_newest_record_of_a_node_counts() -> None:
    inventory = Inventory()
    assert inventory.apply_node(node("a", "1")) is None
    assert inventory.apply_node(node("a", "2")) is None
    found = inventory.view("a").record
    assert found is not None
    assert found.uid == "2"


def test_a_tombstone_tells_which_node_departs_until_it_is_back() -> None:
    inventory = Inventory()
    inventory.apply_node(node("a"))
    assert inventory.apply_node(record(b"a", None)) == "a"
    assert (inventory.view("a").record, set(inventory.departed)) == (None, {"a"})
    inventory.apply_node(node("a"))
    assert not inventory.departed


def test_the_tombstone_of_a_node_never_heard_of_counts() -> None:
    # Compaction may have taken the record that came before it.
    inventory = Inventory()
    assert inventory.apply_node(record(b"a", None)) == "a"
    assert set(inventory.departed) == {"a"}


def test_of_nodes_that_come_and_go_for_ever_the_last_that_departed_are_remembered() -> None:
    inventory = Inventory()
    for number in range(DEPARTED_AT_MOST + 5):
        inventory.apply_node(node(f"n{number}"))
        inventory.apply_node(record(f"n{number}".encode(), None))
        # One that departs again and again is as new as its last tombstone.
        inventory.apply_node(record(b"n0", None))
    assert len(inventory.departed) == DEPARTED_AT_MOST
    assert list(inventory.departed)[:1] == ["n6"]
    assert list(inventory.departed)[-2:] == [f"n{DEPARTED_AT_MOST + 4}", "n0"]


def test_pods_are_found_by_the_uid_of_their_cgroup() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "mirror", cgroup_uid="hash"))
    inventory.apply_pod(pod("a", "plain"))
    inventory.apply_pod(pod("b", "other"))
    assert pods_of(inventory, "a") == {"hash": "pod-mirror", "plain": "pod-plain"}
    assert pods_of(inventory, "b") == {"other": "pod-other"}


def test_a_pod_whose_cgroup_changes_is_not_found_by_the_old_one() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "x", cgroup_uid="old"))
    inventory.apply_pod(pod("a", "x", cgroup_uid="new"))
    assert pods_of(inventory, "a") == {"new": "pod-x"}


def test_a_pod_that_is_bound_is_on_its_node_though_it_was_on_none() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("", "x"))
    inventory.apply_pod(pod("a", "x"))
    inventory.apply_pod(record(pod_key("", "x"), None))
    assert pods_of(inventory, "a") == {"x": "pod-x"}
    assert pods_of(inventory, "") == {}


def test_a_pods_tombstone_removes_it_and_a_second_one_changes_nothing() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "x"))
    inventory.apply_pod(pod("a", "y"))
    for _ in range(2):
        inventory.apply_pod(record(pod_key("a", "x"), None))
    assert pods_of(inventory, "a") == {"y": "pod-y"}
    inventory.apply_pod(record(pod_key("a", "y"), None))
    assert pods_of(inventory, "a") == {}


def test_the_tombstone_of_one_pod_leaves_another_with_the_same_cgroup() -> None:
    # A static pod that is made anew keeps its hash and gets another mirror pod: the new one's
    # record may come before the old one's tombstone.
    inventory = Inventory()
    inventory.apply_pod(pod("a", "mirror-1", cgroup_uid="hash"))
    inventory.apply_pod(pod("a", "mirror-2", cgroup_uid="hash"))
    inventory.apply_pod(record(pod_key("a", "mirror-1"), None))
    assert pods_of(inventory, "a") == {"hash": "pod-mirror-2"}


def test_a_deleted_pod_is_known_until_no_window_can_hold_it_and_asks_for_nothing() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "x", pod_class="batch", phase="Running"))
    delete(inventory, "a", "x", at_ms=40_000)
    assert pods_of(inventory, "a") == {}
    gone = inventory.view("a").pods["x"]
    assert (gone.name, gone.pod_class, gone.phase) == ("pod-x", CLASS_CODES["batch"], GONE)
    assert (gone.deleting, gone.view) == (True, None)
    # The window in which it was deleted, and one that was late: it may be in those that follow.
    for start in (0, 30_000):
        inventory.gone.joined("a", ["x"] if start else [], start, start + 30_000)
        assert gone_of(inventory, "a") == {"x"}
    # It ran until the end of the last one; a cgroup that is left behind is known as long.
    inventory.gone.joined("a", [], 60_000, 90_000)
    assert gone_of(inventory, "a") == {"x"}
    inventory.gone.joined("a", ["x"], 90_000, 120_000)
    inventory.gone.joined("a", [], 120_000, 150_000)
    inventory.gone.joined("b", [], 150_000, 180_000)
    assert gone_of(inventory, "a") == {"x"}
    inventory.gone.joined("a", [], 150_000, 180_000)
    assert gone_of(inventory, "a") == set()
    assert len(inventory.gone) == 0


def test_a_pod_that_has_the_cgroup_of_a_deleted_one_is_known_for_it() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "mirror-1", cgroup_uid="hash"))
    delete(inventory, "a", "mirror-1")
    assert gone_of(inventory, "a") == {"hash"}
    inventory.apply_pod(pod("a", "mirror-2", cgroup_uid="hash"))
    assert gone_of(inventory, "a") == set()
    assert inventory.view("a").pods["hash"].name == "pod-mirror-2"
    assert len(inventory.gone) == 0


def test_deleted_pods_do_not_pile_up_where_no_window_comes() -> None:
    inventory = Inventory()
    for name in ("a", "b", "c"):
        inventory.apply_pod(pod(name, "x"))
        delete(inventory, name, "x", at_ms=1)
    inventory.apply_pod(pod("a", "y"))
    delete(inventory, "a", "y", at_ms=LONGEST_MS + 1)
    assert [gone_of(inventory, name) for name in "abc"] == [{"x", "y"}, {"x"}, {"x"}]
    inventory.apply_pod(pod("a", "z"))
    delete(inventory, "a", "z", at_ms=LONGEST_MS + 2)
    assert [gone_of(inventory, name) for name in "abc"] == [{"y", "z"}, set(), set()]
    assert len(inventory.gone) == 2


def test_of_a_deleted_node_no_pods_are_known_whichever_goes_first() -> None:
    inventory = Inventory()
    for uid in ("x", "y"):
        inventory.apply_pod(pod("a", uid))
    delete(inventory, "a", "x")
    inventory.apply_node(record(b"a", None))
    delete(inventory, "a", "y")
    assert len(inventory.gone) == 0


def test_a_pod_that_was_on_no_node_is_not_kept() -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("", "x"))
    delete(inventory, "", "x")
    assert len(inventory.gone) == 0


@pytest.mark.parametrize(
    "bad",
    [
        record(b"a", b""),
        record(b"a", b"{"),
        record(b"a", b'{"version": 2, "node": "a"}'),
        record(b"a", b'{"version": 1}'),
        record(b"b", node("a").value),
        record(b"\xff", node("a").value),
        record(None, node("a").value),
    ],
)
def test_a_bad_node_record_changes_nothing(bad: LogRecord) -> None:
    inventory = Inventory()
    inventory.apply_node(node("a", "1"))
    with pytest.raises(RecordError):
        inventory.apply_node(bad)
    assert list(inventory.nodes) == ["a"]
    assert inventory.nodes["a"].uid == "1"


@pytest.mark.parametrize(
    "bad",
    [
        record(b"a/x", b"null"),
        record(b"no-slash", pod("a", "x").value),
        record(b"a/y", pod("a", "x").value),
        record(b"b/x", pod("a", "x").value),
        record(b"\xff/x", None),
        record(None, None),
    ],
)
def test_a_bad_pod_record_changes_nothing(bad: LogRecord) -> None:
    inventory = Inventory()
    inventory.apply_pod(pod("a", "x"))
    with pytest.raises(RecordError):
        inventory.apply_pod(bad)
    assert pods_of(inventory, "a") == {"x": "pod-x"}


async def test_loading_reads_both_topics_to_their_ends_and_bad_records_cost_themselves() -> None:
    broker, refused = MemoryBroker(), []

    async def refuse(topic: str, record: LogRecord, error: RecordError) -> None:
        refused.append((topic, record.offset, error.reason))

    for found in (node("a"), record(b"c", node("a").value), node("b"), record(b"a", None)):
        broker.put("t.nodes", 0, found.key, found.value)
    for found in (pod("b", "x"), record(b"b/y", b"junk"), pod("b", "z")):
        broker.put("t.pods", 0, found.key, found.value)
    topics = InventoryTopics("t", refuse)
    async with broker.open_reader([("t.nodes", 0), ("t.pods", 0)]) as reader:
        inventory = Inventory()
        ends = await topics.load(reader, 0, inventory, {})
    assert ends == {"t.nodes": 4, "t.pods": 3}
    assert (set(inventory.nodes), set(inventory.departed)) == ({"b"}, {"a"})
    assert pods_of(inventory, "b") == {"x": "pod-x", "z": "pod-z"}
    broker.put("t.nodes", 0, b"d", node("d").value)
    async with broker.open_reader([("t.nodes", 0), ("t.pods", 0)]) as reader:
        assert await topics.load(reader, 0, inventory, ends) == {"t.nodes": 5, "t.pods": 3}
    assert set(inventory.nodes) == {"b", "d"}
    assert refused == [("t.nodes", 1, KeyMismatchError.reason), ("t.pods", 1, "undecodable")]
