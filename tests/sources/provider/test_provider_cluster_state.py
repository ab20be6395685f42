"""The state of nodes, pods and exporters equals the records on the topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.processors.imported_usage.fetched_usage import TimeWindow
from pipeline.processors.imported_usage.usage_samples import PodPlace
from pipeline.sources.provider.provider_cluster_state import ProviderClusterState
from pipeline.topics.codec import encode_json
from pipeline.topics.pods import PodRecord, pod_key
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples


def put(state: ProviderClusterState, node: str, uid: str, name: str | None = None) -> None:
    """Apply the record of a pod; without `name`, a tombstone."""
    record = None
    if name is not None:
        pod = PodRecord(node=node, uid=uid, cgroup_uid=f"cg-{uid}", namespace="s", name=name)
        record = encode_json(pod)
    state.put_pod(pod_key(node, uid), record)


def sample(node: str, end_seconds: int, length: int = 30, machine_id: str = "m") -> bytes:
    header = SampleHeader(
        node=node, machine_id=machine_id, boot_id="b", epoch=0, sequence=0,
        window_start_ms=(end_seconds - length) * 1000, window_end_ms=end_seconds * 1000,
    )  # fmt: skip
    return encode_samples(SampleBatch(header, [{"kind": "node", "id": ""}]))


def test_pods_are_found_by_name() -> None:
    state = ProviderClusterState()
    put(state, "n1", "u", "p")
    put(state, "", "w", "pending")
    assert state.place("s", "p") == PodPlace("n1", "cg-u")
    assert state.place("s", "pending") is None
    assert state.nodes_with_pods == {"n1": 1}
    put(state, "n1", "u")
    put(state, "n1", "u")
    assert state.place("s", "p") is None
    assert state.nodes_with_pods == {}
    assert state.pods == 0


def test_pod_of_same_name_added_before_the_tombstone_stays() -> None:
    state = ProviderClusterState()
    put(state, "n1", "old", "web-0")
    put(state, "n2", "new", "web-0")
    put(state, "n1", "old")
    assert state.place("s", "web-0") == PodPlace("n2", "cg-new")
    assert state.nodes_with_pods == {"n2": 1}


_NAMES = {"u": "web-0", "v": "web-0", "w": "alone"}
_changes = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from("uvw"), st.booleans()), max_size=30
)


@given(_changes)
def test_state_equals_the_topic(changes: list[tuple[str, str, bool]]) -> None:
    state, topic = ProviderClusterState(), dict[tuple[str, str], PodPlace]()
    for node, uid, exists in changes:
        put(state, node, uid, _NAMES[uid] if exists else None)
        topic.pop((node, uid), None)
        if exists:
            topic[node, uid] = PodPlace(node, f"cg-{uid}")
    pod_nodes = [node for node, _ in topic]
    assert state.nodes_with_pods == {node: pod_nodes.count(node) for node in pod_nodes}
    for name in ("web-0", "alone"):
        holders = [place for (_, uid), place in topic.items() if _NAMES[uid] == name]
        assert state.place("s", name) in [*holders, None]
    newest = [node for node, uid, exists in changes if uid == "w" and exists][-1:]
    if newest and (newest[0], "w") in topic:
        assert state.place("s", "alone") == PodPlace(newest[0], "cg-w")


def test_exporter_counts_as_stopped_after_three_windows() -> None:
    state = ProviderClusterState()
    state.put_sample(sample("n1", 600), 600_000)
    state.put_sample(sample("ours", 600, machine_id=""), 600_000)
    state.put_sample(sample("slow", 600, length=300), 600_000)
    assert state.served(TimeWindow(600_000, 660_000)) == {"n1", "slow"}
    # An older sample changes nothing.
    state.put_sample(sample("n1", 570), 600_000)
    assert state.served(TimeWindow(720_000, 780_000)) == {"n1", "slow"}
    assert state.served(TimeWindow(780_000, 840_000)) == {"slow"}
    assert state.served(TimeWindow(1_500_000, 1_560_000)) == set()
    # Forgotten: strangers send samples under ever new names.
    assert state.served(TimeWindow(600_000, 660_000)) == set()


def test_a_window_far_ahead_of_its_append_does_not_count() -> None:
    state = ProviderClusterState()
    state.put_sample(sample("n1", 4_000_000_000), 600_000)
    state.put_sample(sample("n2", 661), 600_000)
    state.put_sample(sample("n3", 660), 600_000)
    assert state.served(TimeWindow(600_000, 660_000)) == {"n3"}


def test_nodes_are_added_and_deleted() -> None:
    state = ProviderClusterState()
    for name in (b"n1", b"n2"):
        state.put_node(name, b"{}", 0)
    state.put_node(b"n1", None, 0)
    assert state.nodes == {"n2"}


def test_a_deleted_node_has_no_exporter_until_its_next_window() -> None:
    state, window = ProviderClusterState(), TimeWindow(600_000, 660_000)
    state.put_sample(sample("n1", 600), 600_000)
    state.put_node(b"n1", None, 599_000)  # of an earlier node of this name, read late
    assert state.served(window) == {"n1"}
    state.put_node(b"n1", None, 601_000)
    assert state.served(window) == set()
    state.put_sample(sample("n1", 630), 630_000)
    assert state.served(window) == {"n1"}


@pytest.mark.parametrize("value", [b"", b"x", b"\xff\xff\xff\xff\x10\0\0\0", sample("n", 60)[:40]])
def test_invalid_sample_is_a_record_error(value: bytes) -> None:
    with pytest.raises(RecordError):
        ProviderClusterState().put_sample(value, 0)
