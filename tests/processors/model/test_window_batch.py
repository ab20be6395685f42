"""Columns of windows: memory policies, classes, host applications, unknown values."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.processors.join.sample_join import NodeObjects
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, SYSTEM, ModelConfig
from pipeline.processors.model.training_batch import TrainingBatch
from pipeline.processors.model.window_batch import (
    AverageUsage,
    WindowBatch,
    amounts,
)
from pipeline.settings.base import MemoryCollectPolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pod_columns import CLASSES, DecodedPods, encode_pod_columns
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import Window, WindowRows, encode_window
from tests.processors.joined import (
    DEFAULT,
    END_MS,
    GIB,
    NODE_ROW,
    VIEWS,
    Row,
    average,
    counting,
    header,
    joined,
    known_pod,
    logged,
    pod_row,
    rows,
    training,
    view_of,
)

PLAIN: MemoryCollectPolicy = "usageWithoutPageCache"
WITH: MemoryCollectPolicy = "usageWithPageCache"
HOT: MemoryCollectPolicy = "usageWithHotPageCache"
POLICIES = (PLAIN, WITH, HOT)
NAN = math.nan


def lists(array: np.ndarray) -> list[Any]:
    """The array as lists in which NaN is None."""
    return [lists(a) if a.ndim else None if np.isnan(a) else a.item() for a in array]


def samples(window: Window, statistic: str, policy: MemoryCollectPolicy) -> list[Any]:
    """The samples of the node and its pods."""
    taken = training(window, statistic=statistic, memory_policy=policy)
    return lists(np.concatenate([taken.node_usage, taken.pod_usage]))


def host_app(name: str, cpu: float | None, memory: float | None) -> Row:
    return {"kind": "host_app", "id": name, "cpu_cores_avg": cpu, "memory_bytes_avg": memory}


# -- usage


@pytest.mark.parametrize(
    ("told", "known"), [(2.5e6, 2.5e6), (0.0, 0.0), (None, None), (math.nan, None), (-1.0, None)]
)
def test_rates_are_those_of_the_node_row(told: float | None, known: float | None) -> None:
    names = ("network_receive_bytes_per_second", "disk_write_bytes_per_second")
    node = NODE_ROW | dict.fromkeys(names, told)
    window = joined(pod_row("p") | dict.fromkeys(names, 7.0), node)
    assert lists(average(window).rates) == [[known, None, None, known]]


@pytest.mark.parametrize("statistic", ["avg", "p90"])
def test_memory_follows_the_policy_and_falls_back_on_memory_without_page_cache(
    statistic: str,
) -> None:
    def row(cpu: float | None, *memory: float | None) -> Row:
        names = ("memory_bytes", "memory_with_page_cache_bytes", "memory_with_hot_page_cache_bytes")
        values = {"cpu_cores": cpu, **dict(zip(names, memory, strict=False))}
        return {f"{name}_{statistic}": value for name, value in values.items()}

    window = joined(
        NODE_ROW | row(1.0, 10.0, 30.0, 20.0), pod_row("a", **row(0.5, 1.0, 3.0)),
        pod_row("b", **row(None, 2.0, None, 0.0)), pod_row("c", **row(0.0)),
    )  # fmt: skip
    usage = {policy: samples(window, statistic, policy) for policy in POLICIES}
    assert usage == {
        PLAIN: [[1.0, 10.0], [0.5, 1.0], [None, 2.0], [0.0, None]],
        WITH: [[1.0, 30.0], [0.5, 3.0], [None, 2.0], [0.0, None]],
        HOT: [[1.0, 20.0], [0.5, 1.0], [None, 0.0], [0.0, None]],
    }


def test_each_statistic_is_its_own_column() -> None:
    values = {f"cpu_cores_{s}": i + 1.0 for i, s in enumerate(("avg", "p90", "p95", "max", "last"))}
    window = joined({**NODE_ROW, **values, "memory_bytes_p95": 9.0})
    assert samples(window, "p95", PLAIN) == [[3.0, 9.0]]
    assert samples(window, "max", PLAIN) == [[4.0, 9.0]]


@pytest.mark.parametrize(
    ("asked", "stated", "taken"),
    [
        ("p90", ("avg", "p95", "max"), "p95"),
        ("p90", ("avg", "last", "max"), "max"),
        ("p90", ("last", "avg"), "avg"),
        ("p95", ("avg", "p90", "max"), "max"),
        ("max", ("avg", "p90", "p95"), "p95"),
        ("avg", ("last", "max"), "last"),
        ("last", ("avg", "max"), "avg"),
        ("last", ("max",), "max"),
    ],
)
def test_missing_statistic_is_replaced_by_the_nearest_stated(
    asked: str, stated: Sequence[str], taken: str
) -> None:
    values = {f"cpu_cores_{statistic}": float(i) for i, statistic in enumerate(stated, 1)}
    window = joined({"kind": "node", "id": "", "coverage": 1.0, **values}, pod_row("a"))
    assert samples(window, asked, PLAIN) == [[stated.index(taken) + 1.0, None], [None, None]]


def test_usage_by_kind_does_not_depend_on_the_order_of_rows() -> None:
    batch = batch_of(
        joined(
            host_app("x", 0.25, 1.0),
            pod_row("b", cpu_cores_avg=2.0, memory_bytes_avg=7.0),
            {"kind": "tier", "id": "besteffort", "cpu_cores_avg": 99.0, "memory_bytes_avg": 99.0},
            NODE_ROW | {"coverage": 0.75, "cpu_cores_avg": 4.0, "memory_bytes_avg": 10.0},
            pod_row("a", cpu_cores_avg=1.0),
            host_app("y", 0.5, 2.0),
        )
    )
    used = batch.average
    assert [lists(values) for values in (used.node, used.pods, used.host_apps)] == [
        [[4.0, 10.0]], [[1.0, None], [2.0, 7.0]], [[0.75, 3.0]],
    ]  # fmt: skip
    assert (batch.coverage.tolist(), batch.facts[0].pods.classes.tolist()) == ([0.75], [5, 5])


def test_without_host_applications_their_usage_is_zero() -> None:
    window = joined(NODE_ROW)
    assert lists(average(window).host_apps) == lists(training(window).host_apps) == [[0.0, 0.0]]
    assert average(window).pods.shape == (0, 2)


def test_sums_run_from_the_first_row_to_the_last() -> None:
    values = np.random.default_rng(3).random((300, 2)) * 10.0 ** (
        np.arange(300)[:, None] % 17 - 12.0
    )
    cpu = memory = 0.0
    for row in values.tolist():
        cpu, memory = cpu + row[0], memory + row[1]
    apps = [host_app(str(i), *row) for i, row in enumerate(values.tolist())]
    assert average(joined(NODE_ROW, *apps)).host_apps.tolist() == [[cpu, memory]]
    assert average(joined(*apps, NODE_ROW)).host_apps.tolist() == [[cpu, memory]]


def test_one_unknown_host_application_leaves_their_sum_unknown() -> None:
    window = joined(NODE_ROW, host_app("x", 0.25, None), host_app("y", 0.5, 2.0))
    learned = training(window, statistic="avg")
    assert lists(average(window).host_apps) == lists(learned.host_apps) == [[0.75, None]]


@pytest.mark.parametrize("coverage", [None, NAN, -1.0, 1.5])
def test_invalid_coverage_counts_as_zero(coverage: float | None) -> None:
    window = joined({**NODE_ROW, "coverage": coverage}, pod_row("a"))
    assert batch_of(window).coverage.tolist() == [0.0]
    assert training(window).heads[0].coverage == 0.0


def batch_of(*windows: Window) -> WindowBatch:
    return WindowBatch(windows)


def bits(value: Any) -> Any:
    """All fields, arrays as types and bits."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [bits(item) for item in value] if isinstance(value, list | tuple) else value


def of_window(batch: WindowBatch, columns: TrainingBatch | AverageUsage, i: int) -> Any:
    """The columns of one of the windows, bit by bit."""
    pods, hosts, own = batch.pod_slices[i], batch.host_slices[i], slice(i, i + 1)
    of_pods = ("pods", "pod_usage", "pods_alive", "pod_coverage", "pod_ages")
    places = dict.fromkeys(of_pods, pods) | {"hosts": hosts}
    return [
        bits(getattr(columns, field.name)[places.get(field.name, own)])
        for field in dataclasses.fields(columns)
        if field.name != "window_index"
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(
    st.lists(st.tuples(rows(), VIEWS), min_size=1, max_size=4),
    st.lists(st.sampled_from(POLICIES), min_size=4, max_size=4),
    st.sampled_from(["avg", "p90"]),
)
def test_columns_of_a_window_do_not_depend_on_its_batch(
    samples: list[tuple[Sequence[Row], NodeObjects]],
    policies: list[MemoryCollectPolicy],
    statistic: str,
) -> None:
    windows = [
        counting(joined(*sample, view=view), policy)
        for (sample, view), policy in zip(samples, policies, strict=False)
    ]
    batch = WindowBatch(windows)
    taken = batch.training(statistic)
    for i, window in enumerate(windows):
        alone = WindowBatch([window])
        assert of_window(batch, taken, i) == of_window(alone, alone.training(statistic), 0)
        assert of_window(batch, batch.average, i) == of_window(alone, alone.average, 0)
        chosen = batch.select([i])
        assert bits(chosen.average) == bits(alone.average)
        own = taken.select([i])
        assert bits(own) == bits(alone.training(statistic))


def test_windows_of_a_node_share_the_facts_of_its_pods() -> None:
    view = view_of(
        known_pod("a", phase="Failed"), known_pod("b", requests=Resources(cpu_millicores=1))
    )
    first, second = (
        logged(joined(NODE_ROW, pod_row("a"), pod_row("b"), view=view, of=header(end=end)))
        for end in range(2)
    )
    one, other = training(first).heads[0].pods, training(second).heads[0].pods
    assert one is other
    assert one.uids == ("a", "b")


def test_equal_facts_of_other_rows_are_read_by_their_own_listing() -> None:
    used = {"cpu_cores_p90": 1.0, "memory_bytes_p90": 2.0}
    one = logged(joined(NODE_ROW, pod_row("a", **used), host_app("x", 1.0, 1.0)))
    other = logged(joined(host_app("y", 2.0, 2.0), pod_row("b"), NODE_ROW))
    assert one.rows.pods is other.rows.pods
    for windows in ([one, other], [other, one], [one, other, one]):
        batch = batch_of(*windows)
        taken = batch.training("p90")
        for i, window in enumerate(windows):
            alone = batch_of(window)
            assert of_window(batch, taken, i) == of_window(alone, training(window), 0)
        assert [head.pods.uids for head in taken.heads] == [w.rows.listing.uids for w in windows]
        assert taken.host_apps[:, 0].tolist() == [1.0 + (w is other) for w in windows]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=40).flatmap(
        lambda used: st.tuples(st.just(used), st.permutations(range(len(used))))
    )
)
def test_the_order_of_pods_in_a_sample_changes_no_bit(drawn: tuple[list[float], list[int]]) -> None:
    pods = [pod_row(f"p{i:02}", cpu_cores_avg=v, coverage=0.7) for i, v in enumerate(drawn[0])]
    node = {**NODE_ROW, "cpu_cores_avg": 50.0}
    one, other = joined(node, *pods), joined(node, *(pods[i] for i in drawn[1]))
    assert bits(average(one)) == bits(average(other))
    assert bits(training(one)) == bits(training(other))


# -- classes


def classes(window: Window) -> np.ndarray:
    """The class of each pod."""
    return training(window).heads[0].pods.classes


PODS = [pod_row(uid) for uid in "abcd"]


@pytest.mark.parametrize("through_the_log", [False, True])
def test_missing_or_unsupported_class_counts_as_unknown(through_the_log: bool) -> None:
    window = joined(NODE_ROW, *PODS)
    names = ("prod", "free", "of tomorrow", None)
    rows = WindowRows(window.rows.sample, encode_pod_columns(DecodedPods(pod_class=names)))
    window = msgspec.structs.replace(window, rows=rows)
    if through_the_log:
        window = logged(window)
    codes = [CLASSES.index(name) for name in ("prod", "free", "unknown", "unknown")]
    assert classes(window).tolist() == codes
    assert classes(window).dtype == np.int8


def test_every_class_has_its_code() -> None:
    pods = [known_pod(name, pod_class=name) for name in CLASSES]
    window = joined(NODE_ROW, *(pod_row(name) for name in CLASSES), view=view_of(*pods))
    assert classes(window).tolist() == [CLASSES.index(name) for name in sorted(CLASSES)]


# -- the window of the models


def test_training_batch_has_all_columns_of_a_window() -> None:
    record = NodeRecord(
        node="node-1", allocatable=Resources(cpu_millicores=15_000, memory_bytes=1 << 34),
        capacity=Resources(cpu_millicores=16_000),
    )  # fmt: skip
    cart = known_pod(
        "a", pod_class="prod", created_at="2023-11-14T22:13:00Z",
        requests=Resources(cpu_millicores=250),
    )  # fmt: skip
    window = joined(
        pod_row("b", cpu_cores_p90=0.5),
        {**NODE_ROW, "coverage": 0.9, "cpu_cores_p90": 5.0},
        {"kind": "tier", "id": "besteffort", "cpu_cores_p90": 1.0},
        pod_row("a", cpu_cores_p90=1.5, memory_bytes_p90=64.0),
        {"kind": "host_app", "id": "x", "cpu_cores_p90": 0.125, "memory_bytes_p90": 1.0},
        view=view_of(cart, record=record),
        of=header(machine_id="m7", epoch=9),
    )
    taken = training(window)
    (head,) = taken.heads
    assert (head.node, head.machine_id, head.epoch) == ("node-1", "m7", 9)
    assert (head.start_ms, head.end_ms, head.coverage) == (END_MS - 30_000, END_MS, 0.9)
    assert (head.strategy, head.pods.uids) == (DEFAULT, ("a", "b"))
    columns = (taken.node_usage, taken.host_apps, taken.allocatable, taken.pod_usage,
               taken.pod_ages, head.pods.requests, head.pods.classes, head.pods.active)  # fmt: skip
    assert [lists(column) for column in columns] == [
        [[5.0, NODE_ROW["memory_bytes_avg"]]],
        [[0.125, 1.0]],
        [[15_000.0, float(1 << 34)]],
        [[1.5, 64.0], [0.5, None]],
        [60.0, None],
        [[250.0, 0.0], [None, None]],
        [0, 5],
        [True, True],
    ]


@pytest.mark.parametrize(
    ("phase", "deleted_at", "active", "ended"),
    [
        ("Running", None, True, False),
        ("Pending", None, True, False),
        ("", None, True, False),
        ("Succeeded", None, False, True),
        ("Failed", None, False, True),
        ("Running", "2023-11-14T22:00:00Z", False, False),
        ("Failed", "2023-11-14T22:00:00Z", False, True),
    ],
)
def test_ended_and_deleting_pods_are_not_active(
    phase: str, deleted_at: str | None, active: bool, ended: bool
) -> None:
    pod = known_pod("a", phase=phase, deleted_at=deleted_at)
    window = joined(NODE_ROW, pod_row("a"), pod_row("b"), view=view_of(pod))
    pods = training(window).heads[0].pods
    assert (pods.active.tolist(), pods.ended.tolist()) == ([active, True], [ended, False])


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (Resources(), [None, None]),
        (Resources(cpu_millicores=0, memory_bytes=0), [0.0, 0.0]),
        (Resources(cpu_millicores=10**9, memory_bytes=2**60), [1e9, 2.0**60]),
        (Resources(cpu_millicores=10**9 + 1, memory_bytes=2**60 + 1), [None, None]),
        (Resources(cpu_millicores=-1, memory_bytes=10**400), [None, None]),
    ],
)
def test_missing_and_implausible_amounts_are_nan(
    resources: Resources, expected: list[float | None]
) -> None:
    assert lists(amounts([resources])) == [expected]


def test_each_window_of_a_batch_counts_memory_by_the_policy_of_its_node() -> None:
    row = {
        **NODE_ROW,
        "memory_with_page_cache_bytes_avg": 20 * GIB,
        "memory_with_hot_page_cache_bytes_avg": 12 * GIB,
    }
    windows = [counting(joined(row), policy) for policy in (PLAIN, WITH, HOT, PLAIN)]
    batch = WindowBatch([logged(window) for window in windows])
    expected = [8 * GIB, 20 * GIB, 12 * GIB, 8 * GIB]
    assert batch.average.node[:, 1].tolist() == expected
    assert batch.training("p90").node_usage[:, 1].tolist() == expected


def test_reading_writes_nothing() -> None:
    window = logged(joined(NODE_ROW, *PODS, host_app("x", 1.0, 1.0)))
    before = encode_window(window)
    training(window, memory_policy=HOT)
    average(counting(window, WITH))
    assert encode_window(window) == before


# -- pods that lived for a part of the window, and the system remainder


def jobs_one_after_another() -> Window:
    """Six jobs of five seconds each, 1.5 cores, on a node whose system uses half a core."""
    node = {**NODE_ROW, "cpu_cores_avg": 2.0, "cpu_cores_p90": 2.0}
    jobs = [
        {"kind": "pod", "id": f"job-{i}", "coverage": 1 / 6, "cpu_cores_avg": 1.5,
         "cpu_cores_p90": 1.5, "memory_bytes_avg": 0.0, "memory_bytes_p90": 0.0}
        for i in range(6)
    ]  # fmt: skip
    return joined(node, *jobs)


def test_average_usage_counts_a_pod_for_the_time_it_lived() -> None:
    used = average(jobs_one_after_another())
    assert used.pods[:, 0].sum() == pytest.approx(1.5)
    assert used.system[0, 0] == pytest.approx(0.5)


def test_short_pods_count_in_sums_and_train_no_model() -> None:
    bank = Bank()
    bank.apply(training(jobs_one_after_another()))
    (peaks,) = bank.peaks(["node-1"])
    assert peaks.pod_samples.max() == 0
    quantiles = peaks.predictors["percentile"].raw
    assert quantiles[ENTITIES.index("unknown"), 0] == pytest.approx(1.5, rel=0.06)
    assert quantiles[SYSTEM, 0] == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("of_node", "of_pod", "share"),
    [(1.0, 0.25, 0.25), (0.5, 0.25, 0.5), (0.6, 0.6, 1.0), (0.25, 0.5, 1.0), (5e-324, 1.0, 1.0),
     (0.0, 0.5, 1.0), (0.5, 0.0, 0.0), (0.5, None, 1.0), (None, 0.5, 1.0)],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_usage_is_scaled_by_the_share_of_the_nodes_coverage(
    of_node: float | None, of_pod: float | None, share: float
) -> None:
    node = {**NODE_ROW, "coverage": of_node}
    pod = {"kind": "pod", "id": "a", "coverage": of_pod, "cpu_cores_avg": 3.0}
    window = joined(node, pod)
    assert average(window).pods[0, 0] == 3.0 * share
    Bank(ModelConfig(minimum_coverage=0.0)).apply(training(window, statistic="avg"))


def test_system_percentile_is_not_a_difference_of_percentiles() -> None:
    """Bursty pods: the sum of their p90 is more than the node ever used."""
    node = {**NODE_ROW, "cpu_cores_avg": 5.5, "cpu_cores_p90": 6.5}
    pods = [
        {"kind": "pod", "id": f"p{i}", "coverage": 1.0, "cpu_cores_avg": 0.5, "cpu_cores_p90": 1.0}
        for i in range(10)
    ]
    window = joined(node, *pods)
    learned = training(window)
    assert learned.system is not None
    assert learned.system[0, 0] == pytest.approx(0.5)
    measured = {"kind": "tier", "id": "system", "coverage": 1.0, "cpu_cores_avg": 0.5,
                "cpu_cores_p90": 0.7, "memory_bytes_p90": 3.0}  # fmt: skip
    learned = training(joined(node, measured, *pods))
    assert learned.system is not None
    assert learned.system.tolist() == [[0.7, 3.0]]


@pytest.mark.parametrize(("coverage", "expected"), [(0.5, 0.7), (0.4, 1.0)])
def test_system_row_of_low_coverage_is_replaced_by_the_remainder(
    coverage: float, expected: float
) -> None:
    node = {**NODE_ROW, "cpu_cores_avg": 1.0, "cpu_cores_p90": 1.0}
    row = {"kind": "tier", "id": "system", "coverage": coverage, "cpu_cores_avg": 0.7}
    used = average(joined(node, row))
    assert used.system[0, 0] == expected


def test_host_applications_have_own_columns_and_a_sum() -> None:
    windows = [
        logged(joined(NODE_ROW, host_app("b", 1.0, 10.0), pod_row("u"), host_app("a", 2.0, None))),
        logged(joined(NODE_ROW)),
        logged(joined(NODE_ROW, host_app("a", 4.0, 40.0))),
    ]
    batch = batch_of(*windows)
    hosts = [batch.average.hosts[own] for own in batch.host_slices]
    assert [lists(own) for own in hosts] == [[[1.0, 10.0], [2.0, None]], [], [[4.0, 40.0]]]
    assert lists(batch.average.host_apps) == [lists(own.sum(axis=0)) for own in hosts]
