"""What a provider knows of nodes, pods and exporters by the records of the topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.processors.provided.fetched_usage import TimeWindow
from pipeline.processors.provided.usage_samples import PodPlace
from pipeline.sources.providers.cluster_topics import Known
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples


def put(known: Known, node: str, uid: str, name: str | None = None) -> None:
    """A pod's record; of no name a tombstone."""
    record = None
    if name is not None:
        pod = PodRecord(node=node, uid=uid, cgroup_uid=f"cg-{uid}", namespace="s", name=name)
        record = encode_json(pod)
    known.put_pod(pod_key(node, uid), record)


def sample(node: str, end_seconds: int, length: int = 30, machine_id: str = "m") -> bytes:
    header = SampleHeader(
        node=node, machine_id=machine_id, boot_id="b", epoch=0, sequence=0,
        window_start_ms=(end_seconds - length) * 1000, window_end_ms=end_seconds * 1000,
    )  # fmt: skip
    return encode_samples(SampleBatch(header, [{"kind": "node", "id": ""}]))


def test_pods_are_found_by_name() -> None:
    known = Known()
    put(known, "n1", "u", "p")
    put(known, "", "w", "waits")
    assert known.place("s", "p") == PodPlace("n1", "cg-u")
    assert known.place("s", "waits") is None
    assert known.nodes_with_pods == {"n1": 1}
    put(known, "n1", "u")
    put(known, "n1", "u")
    assert known.place("s", "p") is None
    assert known.nodes_with_pods == {}
    assert known.pods == 0


def test_a_namesake_that_came_before_the_tombstone_stays() -> None:
    known = Known()
    put(known, "n1", "old", "web-0")
    put(known, "n2", "new", "web-0")
    put(known, "n1", "old")
    assert known.place("s", "web-0") == PodPlace("n2", "cg-new")
    assert known.nodes_with_pods == {"n2": 1}


_NAMES = {"u": "web-0", "v": "web-0", "w": "alone"}
_changes = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from("uvw"), st.booleans()), max_size=30
)


@given(_changes)
def test_what_is_known_is_what_lies_on_the_topic(changes: list[tuple[str, str, bool]]) -> None:
    known, topic = Known(), dict[tuple[str, str], PodPlace]()
    for node, uid, is_there in changes:
        put(known, node, uid, _NAMES[uid] if is_there else None)
        topic.pop((node, uid), None)
        if is_there:
            topic[node, uid] = PodPlace(node, f"cg-{uid}")
    on_nodes = [node for node, _ in topic]
    assert known.nodes_with_pods == {node: on_nodes.count(node) for node in on_nodes}
    for name in ("web-0", "alone"):
        holders = [place for (_, uid), place in topic.items() if _NAMES[uid] == name]
        assert known.place("s", name) in [*holders, None]
    newest = [node for node, uid, is_there in changes if uid == "w" and is_there][-1:]
    if newest and (newest[0], "w") in topic:
        assert known.place("s", "alone") == PodPlace(newest[0], "cg-w")


def test_nodes_that_an_exporter_serves_are_left_alone_for_some_windows() -> None:
    known = Known()
    known.put_sample(sample("n1", 600))
    known.put_sample(sample("ours", 600, machine_id=""))
    known.put_sample(sample("slow", 600, length=300))
    assert known.served(TimeWindow(600_000, 660_000)) == {"n1", "slow"}
    assert known.served(TimeWindow(720_000, 780_000)) == {"n1", "slow"}
    assert known.served(TimeWindow(780_000, 840_000)) == {"slow"}
    assert known.served(TimeWindow(1_500_000, 1_560_000)) == set()
    # Samples may come again.
    known.put_sample(sample("n1", 570))
    assert "n1" in known.served(TimeWindow(720_000, 780_000))


def test_nodes_come_and_go() -> None:
    known = Known()
    known.put_node(b"n1", b"{}")
    known.put_node(b"n2", b"{}")
    known.put_node(b"n1", None)
    assert known.nodes == {"n2"}


@pytest.mark.parametrize("value", [b"", b"x", b"\xff\xff\xff\xff\x10\0\0\0", sample("n", 60)[:40]])
def test_a_sample_that_cannot_be_read_is_a_record_error(value: bytes) -> None:
    with pytest.raises(RecordError):
        Known().put_sample(value)
