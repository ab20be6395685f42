"""Samples of what was fetched: whose they are, where pods go, and what is said to be unknown."""

from collections.abc import Collection

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.provided.fetched_usage import Columns, Fetched, PodName, Window
from pipeline.processors.provided.usage_samples import Place, Sampled, Sampler
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import SampleBatch, encode_samples

WINDOW = Window(600_000, 660_000)
USED: Columns = {"cpu_cores_avg": 0.5, "coverage": 1.0}


class Cluster:
    """What is known beside the source."""

    def __init__(
        self,
        places: dict[tuple[str, str], Place] | None = None,
        nodes: Collection[str] = (),
        peopled: Collection[str] = (),
        served: Collection[str] = (),
    ) -> None:
        self.places = places or {}
        self.nodes, self.peopled, self._served = nodes, peopled, served

    def place(self, namespace: str, name: str) -> Place | None:
        return self.places.get((namespace, name))

    def served(self, window: Window) -> Collection[str]:
        return self._served


NOWHERE = Cluster()
ON_TOPIC = Cluster({("s", "a"): Place("n1", "uid-a"), ("s", "static"): Place("n1", "hash")})


def rows(batch: SampleBatch) -> dict[tuple[str, str], Columns]:
    return {
        (row["kind"], row["id"]): {k: v for k, v in row.items() if k not in ("kind", "id")}
        for row in batch.rows
    }


def sampled(fetched: Fetched) -> Sampled:
    return Sampler().samples(fetched, WINDOW, ON_TOPIC)


def test_all_providers_write_as_one_exporter_without_a_machine() -> None:
    (batch,) = sampled(Fetched(nodes={"n1": USED})).batches
    header = batch.header
    assert (header.machine_id, header.boot_id, header.epoch) == ("", "", 0)
    assert (header.window_start_ms, header.window_end_ms) == WINDOW
    assert header.sequence == 10
    later = Window(WINDOW.end_ms, WINDOW.end_ms + 60_000)
    (after,) = Sampler().samples(Fetched(nodes={"n1": USED}), later, ON_TOPIC).batches
    assert after.header.sequence == 11
    # What goes to the topic is read as an exporter's.
    read = read_samples(encode_samples(batch))
    assert read.header == header
    assert [row["cpu_cores_avg"] for row in read.rows] == [0.5]


def test_pods_are_where_the_topic_has_them_under_the_names_of_their_cgroups() -> None:
    pods = {
        PodName("s", "a"): USED,
        PodName("s", "static", "", "n1"): USED,
        PodName("", "", "uid-b", "n2"): USED,
    }
    found = sampled(Fetched(nodes={"n1": USED, "n2": USED}, pods=pods))
    one, two = found.batches
    assert rows(one).keys() == {("node", ""), ("pod", "hash"), ("pod", "uid-a")}
    assert rows(two).keys() == {("node", ""), ("pod", "uid-b")}
    assert not found.left_out


def test_a_pod_that_is_nowhere_leaves_the_rest_of_its_node_unknown() -> None:
    pods = {PodName("s", "a"): USED, PodName("s", "new", "", "n1"): USED}
    found = sampled(Fetched(nodes={"n1": USED}, pods=pods))
    assert found.left_out == {"pod not known": 1}
    assert rows(found.batches[0])["tier", "system"] == {"coverage": 1.0}


def test_a_namesake_on_another_node_is_another_pod() -> None:
    pods = {PodName("s", "a", "", "n2"): USED, PodName("", "", "u", "n1"): USED}
    found = sampled(Fetched(nodes={"n1": USED, "n2": USED}, pods=pods))
    assert found.left_out == {"pod not known": 1}
    assert ("pod", "uid-a") not in rows(found.batches[1])


def test_a_pod_that_is_told_twice_is_there_and_unknown() -> None:
    pods = {PodName("s", "a"): USED, PodName("", "", "uid-a", "n1"): USED}
    found = sampled(Fetched(nodes={"n1": USED}, pods=pods))
    assert rows(found.batches[0])["pod", "uid-a"] == {}
    assert found.left_out == {"pod twice": 1}


def test_without_any_pod_a_node_waits_and_then_lists_those_it_had() -> None:
    sampler = Sampler()
    none = Fetched(nodes={"n1": USED}, knows_pods=False)
    found = sampler.samples(none, WINDOW, ON_TOPIC)
    assert found.batches == []
    assert found.left_out == {"pods unknown": 1}
    sampler.samples(Fetched(nodes={"n1": USED}, pods={PodName("s", "a"): USED}), WINDOW, ON_TOPIC)
    (batch,) = sampler.samples(none, WINDOW, ON_TOPIC).batches
    assert rows(batch)["pod", "uid-a"] == {}
    assert ("tier", "system") in rows(batch)


def test_pods_of_which_none_could_be_placed_are_unknown() -> None:
    found = Sampler().samples(
        Fetched(nodes={"n1": USED}, pods={PodName("s", "a"): USED}), WINDOW, NOWHERE
    )
    assert found.batches == []
    assert found.left_out == {"pod not known": 1, "pods unknown": 1}


def test_a_node_whose_kubelet_nobody_asks_has_pods_all_the_same() -> None:
    sampler = Sampler()
    of_other = {PodName("", "", "u", "n2"): USED}
    silent = Fetched(nodes={"n1": USED, "n2": USED}, pods=of_other)
    peopled = Cluster(peopled={"n1", "n2"})
    found = sampler.samples(silent, WINDOW, peopled)
    assert [batch.header.node for batch in found.batches] == ["n2"]
    assert found.left_out == {"pods unknown": 1}
    # Where the topic knows of none there are none.
    found = sampler.samples(silent, WINDOW, Cluster(peopled={"n2"}))
    assert rows(found.batches[0]).keys() == {("node", "")}
    # Where nobody knows, those that were there are still.
    of_both = {**of_other, PodName("", "", "v", "n1"): USED}
    sampler.samples(Fetched(nodes={"n1": USED, "n2": USED}, pods=of_both), WINDOW, NOWHERE)
    one, two = sampler.samples(silent, WINDOW, NOWHERE).batches
    assert rows(one)["pod", "v"] == {}
    assert ("tier", "system") in rows(one)
    assert ("tier", "system") not in rows(two)


def test_pods_of_nodes_that_nobody_tells_of_are_no_sign_that_others_have_none() -> None:
    """As when the labels of nodes and of pods name them differently."""
    pods = {PodName("", "", "u", "n1.example"): USED}
    found = Sampler().samples(Fetched(nodes={"n1": USED}, pods=pods), WINDOW, NOWHERE)
    assert found.batches == []
    assert found.left_out == {"pod of no node": 1, "pods unknown": 1}


def test_nodes_that_are_not_ours_to_tell_of_are_left_out() -> None:
    fetched = Fetched(nodes={"n1": USED, "n2": USED, "ghost": USED, "mute": {"coverage": 1.0}})
    cluster = Cluster(nodes={"n1", "n2", "mute"}, served={"n2"})
    found = Sampler().samples(fetched, WINDOW, cluster)
    assert [batch.header.node for batch in found.batches] == ["n1"]
    assert fetched.unknown_nodes == {"ghost"}
    assert found.left_out == {"served by an exporter": 1, "no usage": 1}


_amounts = st.one_of(st.none(), st.floats(0, 1e6))
_columns = st.fixed_dictionaries(
    {"cpu_cores_avg": _amounts, "memory_bytes_max": _amounts, "coverage": st.floats(0, 1)}
)
_pods = st.dictionaries(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 9)), _columns, max_size=8
)


@given(st.fixed_dictionaries({"n1": _columns, "n2": _columns}), _pods)
def test_what_lies_on_the_topic_is_what_was_fetched(
    nodes: dict[str, Columns], pods: dict[tuple[str, int], Columns]
) -> None:
    named = {PodName("", "", f"u{n}", node): of for (node, n), of in pods.items()}
    found = Sampler().samples(Fetched(nodes=nodes, pods=named), WINDOW, NOWHERE)
    assert {batch.header.node for batch in found.batches} == nodes.keys()
    for batch in found.batches:
        node = batch.header.node
        wanted = {"": nodes[node]} | {p.uid: of for p, of in named.items() if p.node == node}
        read = {row["id"]: row for row in read_samples(encode_samples(batch)).rows}
        assert read.keys() == wanted.keys()
        for uid, columns in wanted.items():
            for column, value in columns.items():
                np.testing.assert_equal(read[uid].get(column), value)
