"""What a source writes: the difference between what it knows and what it wrote before."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.compacted_writer import Entry, difference, node_entry, node_of_key, pod_entry
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import NODES, PODS


def entry(key: bytes, value: bytes) -> Entry:
    return Entry(NODES, key.decode(), key, value)


def test_entries_have_the_keys_of_their_topics() -> None:
    record = NodeRecord(node="n1")
    made = node_entry(record)
    assert (made.topic, made.node, made.key) == (NODES, "n1", b"n1")
    assert made.value is not None
    assert decode_json(NodeRecord, made.value) == record
    pod = PodRecord(node="n1", uid="u", cgroup_uid="u", namespace="s", name="p")
    assert pod_entry(pod)[:3] == (PODS, "n1", b"n1/u")


def test_node_of_a_key() -> None:
    assert node_of_key(NODES, b"n1") == "n1"
    assert node_of_key(PODS, b"n1/u") == "n1"
    assert node_of_key(PODS, b"/u") == ""


def test_only_what_differs_is_written_and_tombstones_come_first() -> None:
    wanted = {key: entry(key, b"new") for key in (b"same", b"changed", b"added")}
    known = {b"same": b"new", b"changed": b"old", b"gone": b"x", b"kept": b"x"}
    changes = difference(NODES, wanted, known, keep={b"kept"})
    assert changes[0] == Entry(NODES, "gone", b"gone", None)
    assert changes[1:] == [wanted[b"changed"], wanted[b"added"]]


_maps = st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=2), max_size=6)


@given(_maps, _maps, st.sets(st.binary(min_size=1, max_size=2)))
def test_after_the_difference_the_topic_says_what_is_wanted(
    wanted: dict[bytes, bytes], known: dict[bytes, bytes], keep: set[bytes]
) -> None:
    entries = {key: Entry(NODES, "n", key, value) for key, value in wanted.items()}
    topic = dict(known)
    for change in difference(NODES, entries, known, keep):
        assert change.value != topic.get(change.key)
        if change.value is None:
            del topic[change.key]
        else:
            topic[change.key] = change.value
    kept = {key: value for key, value in known.items() if key in keep and key not in wanted}
    assert topic == wanted | kept
    assert difference(NODES, entries, topic, keep) == []
