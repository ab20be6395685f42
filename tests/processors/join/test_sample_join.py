"""The join: what is known beside what was measured, and no value that cannot be."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import FutureWindowError
from pipeline.processors.join.node_facts import node_facts
from pipeline.processors.join.sample_join import (
    NodeObjects,
    check_not_future,
    clean_sample,
    join,
    listing_facts,
)
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.nodes import NodeRecord, NodeStrategy, Strategy
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import LIST_COLUMNS, NUMBER_COLUMNS, SampleBatch, encode_samples
from pipeline.topics.windows import POD_COLUMNS, NodeFacts, encode_window
from tests.processors.joined import (
    DEFAULT,
    END_MS,
    GIB,
    NODE_ROW,
    UIDS,
    VIEWS,
    Row,
    counting,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    read,
    rows,
    view_of,
)
from tests.topics.window_values import column, columns

LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)


def pod_facts(pod: PodRecord | None) -> dict[str, object]:
    """The facts about pod `a` in the window."""
    window = joined(NODE_ROW, pod_row("a"), view=view_of(*([pod] if pod else [])))
    return {name: column(window, name)[1] for name in POD_COLUMNS}


# -- pods


def test_window_has_all_facts_of_a_known_pod() -> None:
    pod = known_pod(
        "a", name="cart-0", owner=Owner(kind="StatefulSet", name="cart"), pod_class="batch",
        qos="BE", requests=Resources(cpu_millicores=500, memory_bytes=1 << 30),
        limits=Resources(cpu_millicores=1000), phase="Running", created_at="2023-11-14T21:14:00Z",
    )  # fmt: skip
    assert pod_facts(pod) == {
        "pod_class": "batch", "namespace": "shop", "name": "cart-0", "koordinator_qos": "BE",
        "phase": "Running", "owner_kind": "StatefulSet", "owner_name": "cart",
        "request_cpu_millicores": 500.0, "request_memory_bytes": GIB,
        "limit_cpu_millicores": 1000.0, "limit_memory_bytes": None,
        "created_seconds": 1_699_996_440.0,
        "deleting": False, "container_names": None,
    }  # fmt: skip


def test_unknown_pod_has_only_the_class_unknown() -> None:
    assert pod_facts(None) == dict.fromkeys(POD_COLUMNS) | {"pod_class": "unknown"}


def test_known_pod_without_requests_requests_zero() -> None:
    facts = pod_facts(known_pod("a"))
    assert facts == facts | {
        "request_cpu_millicores": 0.0, "request_memory_bytes": 0.0, "limit_cpu_millicores": None,
        "limit_memory_bytes": None, "owner_kind": None, "owner_name": None,
    }  # fmt: skip


def test_static_pod_is_looked_up_by_its_cgroup_uid() -> None:
    static = known_pod("mirror-uid", cgroup_uid="1f9a6a5f0f5b4e8f8f2c7d1f3b2a4c6e", name="etcd")
    window = joined(
        NODE_ROW, pod_row("1f9a6a5f0f5b4e8f8f2c7d1f3b2a4c6e"), pod_row("mirror-uid"),
        view=view_of(static),
    )  # fmt: skip
    assert [column(window, name) for name in ("name", "pod_class")] == [
        [None, "etcd", None], [None, "none", "unknown"],
    ]  # fmt: skip


def test_only_pods_are_looked_up() -> None:
    others = ({"kind": "tier", "id": "a"}, {"kind": "host_app", "id": "a"})
    window = joined(*others, pod_row("a"), NODE_ROW, view=view_of(known_pod("a", pod_class="mid")))
    assert [column(window, name) for name in ("kind", "pod_class", "deleting")] == [
        ["tier", "host_app", "pod", "node"], [None, None, "mid", None], [None, None, False, None],
    ]  # fmt: skip


def test_pod_with_any_deletion_time_is_deleting() -> None:
    for time in ("2023-11-14T22:00:00Z", "soon"):
        assert pod_facts(known_pod("a", deleted_at=time))["deleting"] is True


def test_unsupported_class_is_unknown_and_other_facts_stay() -> None:
    facts = pod_facts(known_pod("a", pod_class="burst"))
    assert (facts["pod_class"], facts["namespace"]) == ("unknown", "shop")


@pytest.mark.parametrize(
    ("created_at", "age"),
    [
        ("2023-11-14T22:13:59.500Z", 0.5),
        ("2023-11-14T22:14:00Z", 0.0),
        ("2023-11-14T22:14:01Z", 0.0),  # created after the window ended
        ("2023-11-14T23:13:30+01:00", 30.0),
        (None, None),
        ("", None),
        ("yesterday", None),
        ("2023-11-14T22:13:60Z", None),
        ("2023-02-30T00:00:00Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("2023-11-14T22:13:30+99:99", None),
    ],
)
def test_age_is_that_at_the_end_of_the_window(created_at: str | None, age: float | None) -> None:
    assert age_of(known_pod("a", created_at=created_at)) == age


def test_ages_follow_the_window() -> None:
    pod = known_pod("a", created_at="2023-11-14T22:13:30Z")
    assert [age_of(pod, end) for end in (-2, 0, 4)] == [0.0, 30.0, 150.0]


def age_of(pod: PodRecord, end: int = 0) -> float | None:
    """Age of the pod `a` at the end of a window."""
    window = joined(NODE_ROW, pod_row("a"), view=view_of(pod), of=header(end=end))
    (age,) = window.rows.ages.tolist()
    return None if math.isnan(age) else age


@pytest.mark.parametrize("amount", [-1, 2**61, 2**64, 10**400, -(10**400)])
def test_implausible_amount_of_a_pod_is_null_and_counted(amount: int) -> None:
    pod = known_pod("a", requests=Resources(memory_bytes=amount),
                    limits=Resources(cpu_millicores=amount))  # fmt: skip
    window = joined(NODE_ROW, pod_row("a"), pod_row("b"), view=view_of(pod, known_pod("b")))
    names = ("request_memory_bytes", "limit_cpu_millicores")
    assert [column(window, name) for name in names] == [[None, None, 0.0], [None, None, None]]
    assert window.bad_values == dict.fromkeys(names, 1)


def test_largest_plausible_amounts_are_accepted() -> None:
    most = Resources(cpu_millicores=10**9, memory_bytes=2**60)
    window = joined(NODE_ROW, pod_row("a"), view=view_of(known_pod("a", requests=most)))
    names = ("request_cpu_millicores", "request_memory_bytes")
    requests = [column(window, name) for name in names]
    assert (requests, window.bad_values) == ([[None, 1e9], [None, 2.0**60]], {})


def test_facts_are_computed_again_only_after_a_change() -> None:
    listing = read(NODE_ROW, pod_row("a"), pod_row("b")).listing
    pods = dict(view_of(known_pod("a"), known_pod("b", namespace="tools")).pods)
    first = listing_facts(listing, pods)
    again = dict(view_of(known_pod("a"), known_pod("b", namespace="tools")).pods)
    assert listing_facts(listing, again, first) is first
    del pods["b"]
    second = listing_facts(listing, pods, first)
    assert second.columns.decode().column("namespace") == ("shop", None)
    assert listing_facts(listing, again, second).columns is first.columns
    other = read(NODE_ROW, pod_row("b"), pod_row("a")).listing
    swapped = listing_facts(other, again, first)
    assert swapped.columns is first.columns


@given(VIEWS, VIEWS)
@LAWS
def test_facts_do_not_depend_on_those_of_the_previous_sample(
    one: NodeObjects, other: NodeObjects
) -> None:
    sample = read(NODE_ROW, *(pod_row(uid) for uid in UIDS))
    anew = listing_facts(sample.listing, other.pods)
    found = listing_facts(sample.listing, other.pods, listing_facts(sample.listing, one.pods))
    assert (found.columns.data, found.bad_values) == (anew.columns.data, anew.bad_values)


# -- the node


RECORD = NodeRecord(
    node="node-1",
    allocatable=Resources(cpu_millicores=15_000, memory_bytes=30 << 30),
    capacity=Resources(cpu_millicores=16_000, memory_bytes=32 << 30),
    strategy=NodeStrategy(safety_margin_percent=25.0),
    strategy_hash="abc",
)


def test_known_node_has_the_facts_of_its_record() -> None:
    assert joined(NODE_ROW, view=view_of(record=RECORD)).node == NodeFacts(
        known=True, allocatable=RECORD.allocatable, capacity=RECORD.capacity,
        strategy=Strategy(safety_margin_percent=25.0), strategy_hash="abc",
    )  # fmt: skip


@pytest.mark.parametrize("field", NodeStrategy.__struct_fields__)
def test_field_missing_in_a_strategy_is_that_of_the_default_strategy(field: str) -> None:
    usual = Strategy(
        safety_margin_percent=1.0, cold_start_seconds=2.0, cold_start_samples=3,
        nsigma_multiplier=4.0, predictor="max", resource_diff_threshold_percent=6.0,
    )  # fmt: skip
    said: dict[str, Any] = {field: "vpa" if field == "predictor" else 0}
    record = NodeRecord(node="node-1", strategy=NodeStrategy(**said))
    facts = node_facts(record, usual)
    assert facts.strategy == msgspec.structs.replace(usual, **said)


def test_the_default_strategy_is_written_where_the_record_has_none() -> None:
    window = joined(NODE_ROW, view=view_of(record=NodeRecord(node="node-1")))
    assert window.node == NodeFacts(known=True, strategy=DEFAULT)


def test_node_without_a_record_has_the_capacity_of_its_row() -> None:
    capacity = Resources(cpu_millicores=16_000, memory_bytes=32 << 30)
    for found in (joined(NODE_ROW), joined(pod_row("a", capacity_cpu_cores=3.0), NODE_ROW)):
        assert found.node == NodeFacts(allocatable=capacity, capacity=capacity, strategy=DEFAULT)


@pytest.mark.parametrize("bad", [None, math.nan, -1.0, math.inf, 1e300])
def test_implausible_capacity_is_unknown(bad: float | None) -> None:
    node = joined({**NODE_ROW, "capacity_cpu_cores": bad}).node
    assert node.capacity == Resources(memory_bytes=32 << 30)
    node = joined({**NODE_ROW, "capacity_memory_bytes": bad}).node
    assert node.capacity == Resources(cpu_millicores=16_000)


def test_capacity_is_rounded_to_whole_units() -> None:
    node = joined({**NODE_ROW, "capacity_cpu_cores": 0.0017, "capacity_memory_bytes": 9.5001}).node
    assert node.capacity == Resources(cpu_millicores=2, memory_bytes=10)


def test_window_has_offset_and_append_time_of_its_sample() -> None:
    window = joined(NODE_ROW)
    assert (window.type, window.sample_offset, window.appended_ms) == ("window", 5, END_MS + 250)
    assert window.header == header()


# -- bad values


LIMITS = {
    "coverage": 1.0, "cpu_throttled_ratio": 1.0, "pressure_io_full": 1.0,
    "cpu_cores_p90": 1e6, "capacity_cpu_cores": 1e6, "memory_bytes_last": 2.0**60,
    "memory_with_page_cache_bytes_max": 2.0**60, "network_receive_bytes_per_second": 2.0**60,
    "cpu_throttled_seconds": 864e6,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBER_COLUMNS)
@pytest.mark.parametrize("bad", [math.nan, -1.0, -1e-300, math.inf, -math.inf, 1e300])
def test_invalid_number_is_null_and_counted_in_every_column(name: str, bad: float) -> None:
    values = (0.5, bad, None, bad, 0.0)
    found = joined(
        {**NODE_ROW, name: values[0]}, *(pod_row(f"p{i}") | {name: values[i]} for i in range(1, 5))
    )
    assert (column(found, name), found.bad_values) == ([0.5, None, None, None, 0.0], {name: 2})


@pytest.mark.parametrize("name", LIMITS)
def test_largest_plausible_number_is_accepted(name: str) -> None:
    most, beyond = LIMITS[name], np.nextafter(LIMITS[name], np.inf)
    window = joined({**NODE_ROW, name: most}, pod_row("a") | {name: beyond})
    assert (column(window, name), window.bad_values) == ([most, None], {name: 1})


@pytest.mark.parametrize("name", LIST_COLUMNS)
def test_invalid_points_are_null_and_others_keep_their_places(name: str) -> None:
    points = [1.0, math.nan, None, -2.0, 1e300, 0.0]
    window = joined(pod_row("a"), {**NODE_ROW, name: points}, pod_row("b", **{name: []}))
    assert column(window, name) == [None, [1.0, None, None, None, None, 0.0], None]
    assert window.bad_values == {name: 3}


def test_invalid_points_of_a_sample_without_statistics_are_null_and_counted() -> None:
    window = joined({"kind": "node", "id": "", "points_cpu_cores": [math.nan, 2.0]})
    assert column(window, "points_cpu_cores") == [[None, 2.0]]
    assert window.bad_values == {"points_cpu_cores": 1}


@given(rows())
@LAWS
def test_cleaned_sample_keeps_valid_values(found: Sequence[Row]) -> None:
    sample = read(*found)
    clean, counts = clean_sample(sample)
    assert (clean is sample) == (not counts)
    assert clean_sample(clean) == (clean, {})
    before, after = (read_samples(of.data) for of in (sample, clean))
    assert before.header == after.header
    lost: Counter[str] = Counter()
    for old, new in zip(before.rows, after.rows, strict=True):
        assert new.keys() <= old.keys()
        for name, value in old.items():
            values = [value, new.get(name)]
            if name not in LIST_COLUMNS:
                values = [[one] for one in values]
            for a, b in zip(*values, strict=True):
                assert b is None or repr(a) == repr(b)
                lost[name] += a is not None and b is None
    assert {name: count for name, count in lost.items() if count} == counts


def test_minus_zero_is_valid() -> None:
    for values in ({"cpu_cores_avg": -0.0}, {"points_cpu_cores": [-0.0, None]}):
        sample = read({**NODE_ROW, **values}, pod_row("a"))
        assert clean_sample(sample) == (sample, {})


# -- the future


def test_window_that_ends_beyond_the_tolerance_is_refused() -> None:
    of = header()
    check_not_future(of, END_MS - 60_000, 60.0)
    check_not_future(of, END_MS + 10**12, 60.0)
    with pytest.raises(FutureWindowError, match=r"node-1: window ends 60\.001 s .* the 60 s"):
        check_not_future(of, END_MS - 60_001, 60.0)


# -- laws


@given(rows(), VIEWS, st.integers(-3, 10**9))
@example([NODE_ROW, pod_row("uid-0")],
         view_of(known_pod("uid-0", requests=Resources(cpu_millicores=10**400))), 0)  # fmt: skip
@LAWS
def test_every_valid_sample_becomes_a_window_that_models_can_read(
    sample: Sequence[Row], view: NodeObjects, end: int
) -> None:
    window = joined(*sample, view=view, of=header(end=end))
    again = logged(window)
    assert encode_window(again) == encode_window(window)
    assert columns(again) == columns(window)
    for name in NUMBER_COLUMNS:
        assert all(0.0 <= v <= 2.0**60 for v in column(window, name) if v is not None)
    points = window.rows.sample.points
    assert (np.isnan(points) | ((points >= 0.0) & (points <= 2.0**60))).all()
    for policy in get_args(MemoryCollectPolicy):
        batch = WindowBatch([counting(again, policy)])
        taken, (facts,) = batch.training("p90"), batch.facts
        assert len(facts.pods.uids) == len(taken.pod_usage) == len(facts.pods.requests)
        assert set(facts.pods.classes.tolist()) <= set(range(6))
        assert 0.0 <= batch.coverage[0] <= 1.0


@given(rows(), VIEWS)
@LAWS
def test_equal_input_gives_equal_bytes(sample: Sequence[Row], view: NodeObjects) -> None:
    data = encode_samples(SampleBatch(header(), sample))
    one, two = (
        join(read(*sample), found, DEFAULT, sample_offset=1, appended_ms=2)
        for found in (view, NodeObjects(view.record, dict(reversed(list(view.pods.items())))))
    )
    assert data == encode_samples(SampleBatch(header(), sample))
    assert encode_window(one) == encode_window(two)
