"""The join names the containers of samples, and never guesses."""

import math

import numpy as np

from pipeline.processors.join.sample_join import listing_facts
from pipeline.topics.pods import Container, PodRecord
from pipeline.topics.samples import CONTAINERS, MAX_CONTAINERS_PER_POD, SampleContainer
from tests.processors.joined import NODE_ROW, Row, joined, known_pod, logged, pod_row, read, view_of

A, B, C = "a0" * 32, "b1" * 32, "c2" * 32
MAIN, MESH = Container(name="main"), Container(name="mesh", restartable=True)
SETUP = Container(name="setup")


def pair(uid: str = "a", **changes: object) -> PodRecord:
    """A pod with a container and a sidecar."""
    values = {"containers": (MAIN,), "init_containers": (SETUP, MESH),
              "container_ids": {"main": A, "mesh": B, "setup": C}}  # fmt: skip
    return known_pod(uid, **(values | changes))


def measured(*ids: str, uid: str = "a") -> Row:
    return pod_row(uid, **{CONTAINERS: [SampleContainer(id, 0.5, 1e8) for id in ids]})


def names(row: Row, *pods: PodRecord) -> tuple[str | None, ...] | None:
    window = logged(joined(NODE_ROW, row, view=view_of(*pods)))
    return (window.rows.pods.container_names or (None,))[0]


def test_containers_and_sidecars_are_named_by_their_ids() -> None:
    assert names(measured(B, A), pair()) == ("mesh", "main")


def test_an_id_of_no_record_is_unknown_and_counted() -> None:
    # That of an init container that is no sidecar, too.
    assert names(measured(A, C, "f" * 64), pair()) == ("main", None, None)
    sample = read(NODE_ROW, measured(A, C, "f" * 64))
    assert listing_facts(sample.listing, view_of(pair()).pods).unnamed_containers == 2
    assert names(measured(A)) == (None,)


def test_a_pod_with_one_container_needs_no_id() -> None:
    single = pair(init_containers=(SETUP,))
    assert names(pod_row("a"), single) == ("main",)
    assert names(pod_row("a"), pair()) is None


def test_a_restarted_container_has_its_name_again() -> None:
    assert names(measured(A, B), pair(container_ids={"main": C, "mesh": B})) == (None, "mesh")
    assert names(measured(C, B), pair(container_ids={"main": C, "mesh": B})) == ("main", "mesh")


def test_names_that_no_container_can_have_are_left_out() -> None:
    many = tuple(Container(name=f"c{i}") for i in range(MAX_CONTAINERS_PER_POD + 1))
    assert names(measured(A), pair(containers=many)) == (None,)
    assert names(pod_row("a"), pair(containers=(Container(name="x" * 64),))) is None


def test_invalid_usage_becomes_null_and_is_counted() -> None:
    bad = [SampleContainer(A, -1.0, math.inf), SampleContainer(B, 0.5, None)]
    window = joined(NODE_ROW, pod_row("a", **{CONTAINERS: bad}), view=view_of(pair()))
    assert window.bad_values == {CONTAINERS: 2}
    usage = logged(window).rows.sample.container_usage
    assert np.array_equal(usage, [[np.nan, np.nan], [0.5, np.nan]], equal_nan=True)


def test_names_change_the_facts_of_a_listing_only_when_a_record_changes() -> None:
    first, second = (read(NODE_ROW, measured(A, B)).listing for _ in range(2))
    pods = view_of(pair()).pods
    facts = listing_facts(first, pods)
    assert listing_facts(second, pods, facts) is facts
    restarted = view_of(pair(container_ids={"main": C, "mesh": B})).pods
    assert listing_facts(second, restarted, facts).columns.container_names == ((None, "mesh"),)
