"""A node's view: its content, and generations that only grow."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.join.view_documents import (
    GENERATIONS,
    LONGEST_ANNOTATION,
    generation_of,
    node_view,
    pod_view,
    shortened,
    with_generation,
)
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_views import NodeViewRecord, ViewPod
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.overcommit_policy import Overcommit
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import Resources
from tests.processors.joined import known_pod
from tests.topics import golden


def test_a_view_has_all_of_its_node_and_pods() -> None:
    pod = known_pod(
        "a",
        pod_class="batch",
        qos="BE",
        priority=5500,
        labels={"app": "web", "koordinator.sh/qosClass": "BE"},
        annotations={"note": "x", "koordinator.sh/cpuBurst": '{"generation":0}'},
        deleted_at="2023-11-14T22:14:00Z",
        container_ids={"main": "a1"},
    )
    record = NodeRecord(
        node="n",
        annotations={"node.koordinator.sh/reservation": "{}", "other": "y"},
        overcommit=Overcommit(),
        strategy_hash='"generation":0',
    )
    data = with_generation(node_view(record, [pod_view(pod)], golden.NODE_RESOURCES), 77)
    view = decode_json(NodeViewRecord, data)
    assert (view.generation, view.strategy_hash, view.annotations, view.resources) == (
        77, record.strategy_hash, {"node.koordinator.sh/reservation": "{}"}, golden.NODE_RESOURCES,
    )  # fmt: skip
    (found,) = view.pods
    assert found == msgspec.structs.replace(
        found, uid="a", pod_class="batch", priority=5500, deleting=True,
        labels={"koordinator.sh/qosClass": "BE"},
        annotations={"koordinator.sh/cpuBurst": '{"generation":0}'}, container_ids={"main": "a1"},
    )  # fmt: skip


def test_views_have_only_short_annotations_of_koordinator_and_springtide() -> None:
    kept = ["koordinator.sh/a", "node.koordinator.sh/b", "springtide/c"]
    others = ["evilkoordinator.sh/a", "koordinator.sh.x/b", "springtide.x/c", "x/koordinator.sh"]
    named = dict.fromkeys([*kept, *others], "x")
    view = msgspec.json.decode(
        pod_view(known_pod("a", labels=named, annotations=named)), type=ViewPod
    )
    assert list(view.labels) == list(view.annotations) == kept
    long = {"koordinator.sh/a": "x" * LONGEST_ANNOTATION, "koordinator.sh/b": "x" * 8193}
    view = msgspec.json.decode(pod_view(known_pod("a", annotations=long)), type=ViewPod)
    assert list(view.annotations) == ["koordinator.sh/a"]


def test_only_as_many_of_the_largest_pods_are_cut_as_needed() -> None:
    container = Container(name="c", requests=Resources(cpu_millicores=1))
    pods = [
        known_pod(
            str(number), qos="LS", requests=Resources(cpu_millicores=number),
            labels={"koordinator.sh/l": "x"}, containers=(container,), init_containers=(container,),
            container_ids={"c": "a1"}, annotations={"koordinator.sh/a": "x" * size},
        )
        for number, size in enumerate([10, 3000, 20, 2000])
    ]  # fmt: skip
    whole = [pod_view(pod) for pod in pods]
    size = sum(map(len, whole))

    def cut(by_bytes: int) -> list[bool]:
        found = shortened(whole, by_bytes)
        assert size - sum(map(len, found)) >= min(by_bytes, 5000)
        views = [msgspec.json.decode(of, type=ViewPod) for of in found]
        for pod, view in zip(pods, views, strict=True):
            bare = msgspec.structs.replace(
                pod, labels={}, annotations={}, containers=(), init_containers=(), container_ids={}
            )
            after = msgspec.json.decode(pod_view(bare if view.cut else pod), type=ViewPod)
            assert view == msgspec.structs.replace(after, cut=view.cut)
        return [view.cut for view in views]

    assert cut(0) == [False] * 4
    assert cut(2000) == cut(3000) == [False, True, False, False]
    assert cut(4000) == [False, True, False, True]
    assert cut(10_000) == [True] * 4


def test_view_in_pieces_equals_the_encoded_record() -> None:
    record = NodeRecord(node="n", allocatable=Resources(cpu_millicores=1))
    pods = [pod_view(golden.POD_RECORD)]
    data = with_generation(node_view(record, pods, golden.NODE_RESOURCES), 5)
    assert encode_json(decode_json(NodeViewRecord, data)) == data


@given(
    st.integers(0, 2**28), st.integers(0, 2**28),
    st.integers(1, GENERATIONS - 1), st.integers(1, GENERATIONS - 1),
)  # fmt: skip
def test_generations_of_a_later_claim_are_higher(
    epoch: int, later: int, number: int, other: int
) -> None:
    if epoch != later:
        epoch, later = sorted((epoch, later))
        assert generation_of(epoch, number) < generation_of(later, other)
    assert generation_of(later, other) < 2**53
