"""A source writes only the differences to its last records."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.compacted_writer import Entry, difference, node_entry, node_of_key, pod_entry
from pipeline.topics.codec import encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import PodRecord
from pipeline.topics.registry import NODES, PODS


def entry(key: bytes, value: bytes) -> Entry:
    return Entry(NODES, key.decode(), key, value)


def test_entries_have_the_keys_of_their_topics() -> None:
    record = NodeRecord(node="n1")
    assert node_entry(record) == Entry(NODES, "n1", b"n1", encode_json(record))
    pod = PodRecord(node="n1", uid="u", cgroup_uid="u", namespace="s", name="p")
    assert pod_entry(pod)[:3] == (PODS, "n1", b"n1/u")


def test_node_of_key() -> None:
    keys = [(NODES, b"n1"), (PODS, b"n1/u"), (PODS, b"/u")]
    assert [node_of_key(topic, key) for topic, key in keys] == ["n1", "n1", ""]


def test_only_differences_are_written_after_tombstones() -> None:
    wanted = {key: entry(key, b"new") for key in (b"same", b"changed", b"added")}
    known = {b"same": b"new", b"changed": b"old", b"deleted": b"x", b"retained": b"x"}
    changes = difference(NODES, wanted, known, retained={b"retained"})
    tombstone = Entry(NODES, "deleted", b"deleted", None)
    assert changes == [tombstone, wanted[b"changed"], wanted[b"added"]]


_maps = st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=2), max_size=6)


@given(_maps, _maps, st.sets(st.binary(min_size=1, max_size=2)))
def test_difference_makes_the_topic_equal_to_the_wanted_values(
    wanted: dict[bytes, bytes], known: dict[bytes, bytes], retained: set[bytes]
) -> None:
    entries = {key: Entry(NODES, "n", key, value) for key, value in wanted.items()}
    topic = dict(known)
    for change in difference(NODES, entries, known, retained):
        assert change.value != topic.get(change.key)
        if change.value is None:
            del topic[change.key]
        else:
            topic[change.key] = change.value
    rest = {key: value for key, value in known.items() if key in retained and key not in wanted}
    assert topic == wanted | rest
    assert difference(NODES, entries, topic, retained) == []
