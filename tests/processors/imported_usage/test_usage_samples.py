"""Samples of fetched usage: nodes, places of pods, and unknown values."""

from collections.abc import Collection

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.imported_usage.fetched_usage import (
    FetchedUsage,
    PodName,
    SampleColumns,
    TimeWindow,
)
from pipeline.processors.imported_usage.usage_samples import PodPlace, SampleBuilder, SampledWindow
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import SampleBatch, encode_samples

WINDOW = TimeWindow(600_000, 660_000)
USED: SampleColumns = {"cpu_cores_avg": 0.5, "coverage": 1.0}


class Cluster:
    """What is known beside the source."""

    def __init__(
        self,
        places: dict[tuple[str, str], PodPlace] | None = None,
        nodes: Collection[str] = (),
        nodes_with_pods: Collection[str] = (),
        served: Collection[str] = (),
    ) -> None:
        self.places = places or {}
        self.nodes, self.nodes_with_pods, self._served = nodes, nodes_with_pods, served

    def place(self, namespace: str, name: str) -> PodPlace | None:
        return self.places.get((namespace, name))

    def served(self, window: TimeWindow) -> Collection[str]:
        return self._served


NOWHERE = Cluster()
ON_TOPIC = Cluster({("s", "a"): PodPlace("n1", "uid-a"), ("s", "static"): PodPlace("n1", "hash")})


def rows(batch: SampleBatch) -> dict[tuple[str, str], SampleColumns]:
    return {
        (row["kind"], row["id"]): {k: v for k, v in row.items() if k not in ("kind", "id")}
        for row in batch.rows
    }


def sampled(fetched: FetchedUsage) -> SampledWindow:
    return SampleBuilder().samples(fetched, WINDOW, ON_TOPIC)


def test_all_providers_write_as_one_exporter_without_a_machine() -> None:
    (batch,) = sampled(FetchedUsage(nodes={"n1": USED})).batches
    header = batch.header
    assert (header.machine_id, header.boot_id, header.epoch, header.sequence) == ("", "", 0, 10)
    assert (header.window_start_ms, header.window_end_ms) == WINDOW
    later = TimeWindow(WINDOW.end_ms, WINDOW.end_ms + 60_000)
    (after,) = SampleBuilder().samples(FetchedUsage(nodes={"n1": USED}), later, ON_TOPIC).batches
    assert after.header.sequence == 11
    # What goes to the topic is read as an exporter's.
    read = read_samples(encode_samples(batch))
    assert read.header == header
    assert [row["cpu_cores_avg"] for row in read.rows] == [0.5]


def test_pods_are_placed_by_their_records_under_their_cgroup_uids() -> None:
    pods = {
        PodName("s", "a"): USED,
        PodName("s", "static", "", "n1"): USED,
        PodName("", "", "uid-b", "n2"): USED,
    }
    result = sampled(FetchedUsage(nodes={"n1": USED, "n2": USED}, pods=pods))
    one, two = result.batches
    assert rows(one).keys() == {("node", ""), ("pod", "hash"), ("pod", "uid-a")}
    assert rows(two).keys() == {("node", ""), ("pod", "uid-b")}
    assert not result.left_out


def test_an_unplaced_pod_makes_the_system_of_its_node_unknown() -> None:
    pods = {PodName("s", "a"): USED, PodName("s", "new", "", "n1"): USED}
    result = sampled(FetchedUsage(nodes={"n1": USED}, pods=pods))
    assert result.left_out == {"pod not known": 1}
    assert rows(result.batches[0])["tier", "system"] == {"coverage": 1.0}


def test_a_namesake_on_another_node_is_another_pod() -> None:
    pods = {PodName("s", "a", "", "n2"): USED, PodName("", "", "u", "n1"): USED}
    result = sampled(FetchedUsage(nodes={"n1": USED, "n2": USED}, pods=pods))
    assert result.left_out == {"pod not known": 1}
    assert ("pod", "uid-a") not in rows(result.batches[1])


def test_a_pod_reported_twice_is_listed_with_unknown_usage() -> None:
    pods = {PodName("s", "a"): USED, PodName("", "", "uid-a", "n1"): USED}
    result = sampled(FetchedUsage(nodes={"n1": USED}, pods=pods))
    assert rows(result.batches[0])["pod", "uid-a"] == {}
    assert result.left_out == {"pod twice": 1}


def test_without_reported_pods_a_node_waits_or_lists_its_last_known_pods() -> None:
    sampler = SampleBuilder()
    none = FetchedUsage(nodes={"n1": USED}, knows_pods=False)
    result = sampler.samples(none, WINDOW, ON_TOPIC)
    assert (result.batches, result.left_out) == ([], {"pods unknown": 1})
    sampler.samples(
        FetchedUsage(nodes={"n1": USED}, pods={PodName("s", "a"): USED}), WINDOW, ON_TOPIC
    )
    (batch,) = sampler.samples(none, WINDOW, ON_TOPIC).batches
    assert rows(batch)["pod", "uid-a"] == {}
    assert ("tier", "system") in rows(batch)


def test_pods_are_unknown_if_none_could_be_placed() -> None:
    result = SampleBuilder().samples(
        FetchedUsage(nodes={"n1": USED}, pods={PodName("s", "a"): USED}), WINDOW, NOWHERE
    )
    assert (result.batches, result.left_out) == ([], {"pod not known": 1, "pods unknown": 1})


def test_a_node_whose_kubelet_is_not_scraped_still_has_pods() -> None:
    sampler = SampleBuilder()
    of_other = {PodName("", "", "u", "n2"): USED}
    silent = FetchedUsage(nodes={"n1": USED, "n2": USED}, pods=of_other)
    nodes_with_pods = Cluster(nodes_with_pods={"n1", "n2"})
    result = sampler.samples(silent, WINDOW, nodes_with_pods)
    assert [batch.header.node for batch in result.batches] == ["n2"]
    assert result.left_out == {"pods unknown": 1}
    # Where the topic knows of none there are none.
    result = sampler.samples(silent, WINDOW, Cluster(nodes_with_pods={"n2"}))
    assert rows(result.batches[0]).keys() == {("node", "")}
    # Where nobody knows, those that were there are still.
    of_both = {**of_other, PodName("", "", "v", "n1"): USED}
    sampler.samples(FetchedUsage(nodes={"n1": USED, "n2": USED}, pods=of_both), WINDOW, NOWHERE)
    one, two = sampler.samples(silent, WINDOW, NOWHERE).batches
    assert rows(one)["pod", "v"] == {}
    assert [("tier", "system") in rows(batch) for batch in (one, two)] == [True, False]


def test_pods_of_unreported_nodes_do_not_prove_other_nodes_empty() -> None:
    """As when the labels of nodes and of pods name them differently."""
    pods = {PodName("", "", "u", "n1.example"): USED}
    result = SampleBuilder().samples(FetchedUsage(nodes={"n1": USED}, pods=pods), WINDOW, NOWHERE)
    assert (result.batches, result.left_out) == ([], {"pod of no node": 1, "pods unknown": 1})


def test_nodes_served_by_exporters_or_unknown_are_left_out() -> None:
    fetched = FetchedUsage(nodes={"n1": USED, "n2": USED, "ghost": USED, "mute": {"coverage": 1.0}})
    cluster = Cluster(nodes={"n1", "n2", "mute"}, served={"n2"})
    result = SampleBuilder().samples(fetched, WINDOW, cluster)
    assert [batch.header.node for batch in result.batches] == ["n1"]
    assert fetched.unknown_nodes == {"ghost"}
    assert result.left_out == {"served by an exporter": 1, "no usage": 1}


_amounts = st.one_of(st.none(), st.floats(0, 1e6))
_columns = st.fixed_dictionaries(
    {"cpu_cores_avg": _amounts, "memory_bytes_max": _amounts, "coverage": st.floats(0, 1)}
)
_pods = st.dictionaries(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 9)), _columns, max_size=8
)


@given(st.fixed_dictionaries({"n1": _columns, "n2": _columns}), _pods)
def test_samples_carry_the_fetched_usage(
    nodes: dict[str, SampleColumns], pods: dict[tuple[str, int], SampleColumns]
) -> None:
    named = {PodName("", "", f"u{n}", node): of for (node, n), of in pods.items()}
    result = SampleBuilder().samples(FetchedUsage(nodes=nodes, pods=named), WINDOW, NOWHERE)
    assert {batch.header.node for batch in result.batches} == nodes.keys()
    for batch in result.batches:
        node = batch.header.node
        wanted = {"": nodes[node]} | {p.uid: of for p, of in named.items() if p.node == node}
        read = {row["id"]: row for row in read_samples(encode_samples(batch)).rows}
        assert read.keys() == wanted.keys()
        for uid, columns in wanted.items():
            for column, value in columns.items():
                np.testing.assert_equal(read[uid].get(column), value)


def test_samples_have_the_name_of_their_source_and_corroborate_exporters_if_wanted() -> None:
    fetched, served = FetchedUsage(nodes={"n1": USED}), Cluster(served=("n1",))
    result = SampleBuilder("prometheus").samples(fetched, WINDOW, served)
    assert (result.batches, result.left_out) == ([], {"served by an exporter": 1})
    (batch,) = SampleBuilder("p", corroborate=True).samples(fetched, WINDOW, served).batches
    assert (batch.header.machine_id, batch.header.source) == ("", "p")
