"""Gaps between usage, requests and limits, and pooling: by hand, against a slow reference, laws."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.backtest.gaps import Gaps, measure_gaps
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest import reference_gaps
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    Row,
    random_tables,
    series_row,
    stay_row,
    table_of,
)

RESOURCES = ("cpu", "memory")


def trace_of(series: list[Row], stays: list[Row], steps: int) -> Trace:
    metadata = METADATA | {"steps": str(steps)}
    return read_traces(
        "made", table_of(series, SERIES, metadata), table_of(stays, PLACEMENT, metadata)
    )[0]


def same(got: Sequence[float], wanted: reference_gaps.Values) -> bool:
    return [*got] == pytest.approx(
        [np.nan if value is None else float(value) for value in wanted], rel=1e-9, nan_ok=True
    )


# -- by hand


@pytest.fixture
def small() -> Trace:
    """Four steps. On n1: a (request 500, limit 1000) and b (no request, limit 400), which ends
    after step 2 and has 64 MiB of 128. On n2: c, from step 1 on, as a."""
    series = [
        series_row("a", [100, 400, 200, 100]),
        series_row(
            "b", [300, 100, 200, 0], cpu_request_m=0, cpu_limit_m=400, mem_mi=[64, 32, 96, 0],
            mem_request_mi=96, mem_limit_mi=128,
        ),
    ]  # fmt: skip
    stays = [
        stay_row("a", "a", 0, 4, node="n1"),
        stay_row("b", "b", 0, 3, node="n1"),
        stay_row("c", "a", 1, 4, node="n2"),
    ]
    return trace_of(series, stays, 4)


def test_cpu_of_a_small_trace_by_hand(small: Trace) -> None:
    fleet, first, second = (gaps for gaps in measure_gaps(small) if gaps.resource == "cpu")
    assert [(gaps.level, gaps.name, gaps.pods, gaps.pods_without_request, gaps.steps)
            for gaps in (fleet, first, second)] == [
        ("fleet", "", 3, 1, 4), ("node", "n1", 2, 1, 4), ("node", "n2", 1, 0, 3),
    ]  # fmt: skip
    # n1 uses 400, 500, 400, 100, of which 100, 400, 200, 100 of the 500 that a requests.
    assert first.usage_mean == 350
    assert (first.requests_mean, first.limits_mean) == (500, (3 * 1400 + 1000) / 4)
    assert (first.of_requests.mean, first.of_requests.peak) == (800 / 2000, 400 / 500)
    assert (first.of_limits.mean, first.of_limits.peak) == (1400 / 5200, 500 / 1400)
    # The peaks are 400 and 300, and 500 together.
    assert (first.usage[-1], first.pods_alone[-1]) == (500, 700)
    assert first.pod_pooling[-1] == 500 / 700
    # n2 uses 400, 200, 100 at steps 1 to 3.
    assert (second.usage_mean, second.of_requests.mean) == (700 / 3, 700 / 1500)
    assert second.pod_pooling.tolist() == [1, 1, 1]
    # The fleet uses 400, 900, 600, 200: at most as much as both nodes at their peaks.
    assert fleet.usage_mean == 525
    assert (fleet.of_requests.mean, fleet.of_requests.peak) == (1500 / 3500, 800 / 1000)
    assert (fleet.usage[-1], fleet.pods_alone[-1], fleet.nodes_alone[-1]) == (900, 1100, 900)
    assert (fleet.pod_pooling[-1], fleet.node_pooling[-1]) == (900 / 1100, 1)
    # The 99th percentile of 200, 400, 600, 900 is 0.97 of the way from the third to the fourth.
    assert fleet.usage[1] == pytest.approx(600 + 0.97 * 300)


def test_memory_of_a_small_trace_by_hand(small: Trace) -> None:
    fleet, first, second = (gaps for gaps in measure_gaps(small) if gaps.resource == "memory")
    for gaps in (fleet, first):
        assert (gaps.pods, gaps.steps, gaps.unknown_steps) == (1, 3, 0)
        assert gaps.usage_mean == 64 * MEBIBYTE
        assert (gaps.of_requests.mean, gaps.of_requests.peak) == (192 / 288, 1)
        assert (gaps.of_limits.mean, gaps.of_limits.peak) == (0.5, 0.75)
        assert gaps.pod_pooling[-1] == 1
    # a and c have no memory: it is unknown, not 0.
    assert (fleet.unknown_pods, first.unknown_pods, second.unknown_pods) == (2, 1, 1)
    assert (second.pods, second.steps) == (0, 0)
    assert np.isnan([second.usage_mean, second.of_requests.mean, *second.pod_pooling]).all()


def test_steps_with_unknown_usage_are_left_out(small: Trace) -> None:
    usage = small.usage.copy()
    usage[1, 0] = np.nan  # of a at step 1, and so of c
    fleet, first, second = [*measure_gaps(replace(small, usage=usage))][:3]
    assert (fleet.steps, fleet.unknown_steps) == (3, 1)
    assert (first.usage[-1], first.pods_alone[-1]) == (400, 500)  # a peaks at 200 now
    assert (second.steps, second.unknown_steps, second.usage_mean) == (2, 1, 150)


def test_assumed_limits_are_no_limits(small: Trace) -> None:
    assumed = np.array([[True, True], [False, False], [False, False]])
    _, first, _ = [*measure_gaps(replace(small, has_assumed_limit=assumed))][:3]
    assert (first.pods_without_limit, first.limits_mean) == (1, 300)
    assert first.of_limits.mean == 600 / 1200


def test_a_pool_is_measured_as_a_fleet_of_its_nodes(small: Trace) -> None:
    for pools, nodes in ((("a", "a"), 2), (("a", ""), 1)):
        trace = replace(small, pools=pools)
        fleet, pool, *_ = measure_gaps(trace, "pool")
        assert (pool.level, pool.name) == ("pool", "a")
        first, second = [*measure_gaps(trace)][1:3]
        whole = fleet if nodes == 2 else first
        assert pool.usage.tolist() == whole.usage.tolist()
        assert pool.pods_alone.tolist() == whole.pods_alone.tolist()
        alone = first.usage + second.usage * (nodes == 2)
        assert pool.nodes_alone.tolist() == alone.tolist()
    assert {gaps.level for gaps in measure_gaps(small, "pool")} == {"fleet"}


def test_pods_without_a_limit_count_in_all_but_the_share_of_limits(small: Trace) -> None:
    limits = small.limits * np.array([[0.0], [1.0], [1.0]])
    _, first, _ = [*measure_gaps(replace(small, limits=limits))][:3]
    assert (first.pods, first.pods_without_limit, first.usage_mean) == (2, 1, 350)
    assert (first.limits_mean, first.of_limits.mean) == (300, 600 / 1200)
    assert first.of_limits.peak == 300 / 400


def test_pods_that_follow_each_other_do_not_add_up() -> None:
    """Ten pods, one after the other, peak at 100 each: never was there use for more than 100."""
    series = [series_row("a", [100] * 40)]
    stays = [stay_row(f"pod-{n}", "a", 4 * n, 4 * n + 4) for n in range(10)]
    fleet, node = measure_gaps(trace_of(series, stays, 40))
    assert (node.pods, node.pods_alone[-1], node.pod_pooling[-1]) == (10, 100, 1)
    assert fleet.node_pooling[-1] == 1


def test_a_percentile_may_pool_above_one() -> None:
    """Each of ten pods uses 11 instead of 1 at 4% of the steps: one of them at 40%."""
    rows = [
        series_row(f"s{n}", [11 if step % 25 == 2 * n else 1 for step in range(100)])
        for n in range(10)
    ]
    stays = [stay_row(f"p{n}", f"s{n}", 0, 100) for n in range(10)]
    _, node = measure_gaps(trace_of(rows, stays, 100))
    assert node.pods_alone.tolist() == [10, 110, 110]
    assert node.usage.tolist() == [20, 20, 20]
    assert node.pod_pooling.tolist() == [2, 20 / 110, 20 / 110]


def test_idle_pods_have_no_pooling() -> None:
    _, node = measure_gaps(trace_of([series_row("a", [0] * 4)], [stay_row("p", "a", 0, 4)], 4))
    assert (node.of_requests.mean, node.usage[-1]) == (0, 0)
    assert np.isnan(node.pod_pooling).all()


def test_a_resource_without_limit_in_a_trace_file_is_unknown() -> None:
    row = series_row("b", [10, 20], cpu_request_m=0, cpu_limit_m=0)
    stays = [stay_row("a", "a", 0, 2), stay_row("b", "b", 0, 2)]
    _, node = measure_gaps(trace_of([series_row("a", [5, 5]), row], stays, 2))
    assert (node.pods, node.unknown_pods, node.usage_mean) == (1, 1, 5)
    assert [*measure_gaps(trace_of([row], stays[1:], 2))] == []


def test_workloads_are_groups_over_nodes(small: Trace) -> None:
    trace = replace(small, workloads=("web", "", "web"))
    fleet, web = (gaps for gaps in measure_gaps(trace, "workload") if gaps.resource == "cpu")
    assert (fleet.level, fleet.pods, fleet.node_pooling[-1]) == ("fleet", 3, 1)
    assert (web.level, web.name, web.pods) == ("workload", "web", 2)
    assert (web.usage[-1], web.pods_alone[-1]) == (800, 800)
    assert [gaps for gaps in measure_gaps(small, "workload") if gaps.level != "fleet"] == []


def test_workloads_are_read_with_their_stays() -> None:
    """Stays in another order than that of a trace."""
    stays = [stay_row("c", "a", 0, 2, node="n2"), stay_row("b", "a", 1, 2, node="n1"),
             stay_row("a", "a", 0, 2, node="n1")]  # fmt: skip
    placement = table_of(stays, PLACEMENT).append_column("workload", [["wc", "wb", "wa"]])
    (trace,) = read_traces("made", table_of([series_row("a", [1, 2])], SERIES), placement)
    assert (trace.pods, trace.workloads) == (("a", "b", "c"), ("wa", "wb", "wc"))


# -- against the reference, and laws


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Pods that come and go, some without request or limit, some with unknown samples."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = draw(st.integers(1, 30))
    tables = random_tables(random, steps, draw(st.integers(1, 4)), draw(st.integers(1, 6)))
    (trace,) = read_traces("made", *tables)
    usage, shape = trace.usage.copy(), trace.requests.shape
    usage[random.random(usage.shape) < draw(st.sampled_from([0.0, 0.02, 0.3]))] = np.nan
    return replace(
        trace,
        usage=usage,
        requests=trace.requests * (random.random(shape) < 0.8),
        limits=trace.limits * (random.random(shape) < 0.8),
        workloads=tuple(str(name) for name in random.choice(["", "web", "job"], shape[0])),
    )


def stays_of(trace: Trace, gaps: Gaps) -> list[int]:
    every = range(len(trace.pods))
    if gaps.level == "fleet":
        return [*every]
    if gaps.level == "node":
        return [stay for stay in every if trace.nodes[trace.node_index[stay]] == gaps.name]
    return [stay for stay in every if trace.workloads[stay] == gaps.name]


@given(traces(), st.sampled_from(["node", "workload"]))
def test_gaps_are_those_of_the_slow_reference(trace: Trace, grouping: str) -> None:
    measured = [*measure_gaps(trace, "node" if grouping == "node" else "workload")]
    for gaps in measured:
        r, stays = RESOURCES.index(gaps.resource), stays_of(trace, gaps)
        wanted = reference_gaps.measure(trace, stays, r)
        assert (
            gaps.pods, gaps.unknown_pods, gaps.pods_without_request, gaps.pods_without_limit,
            gaps.steps, gaps.unknown_steps,
        ) == wanted[:6]  # fmt: skip
        assert same([gaps.usage_mean], [wanted.usage_mean])
        assert same([gaps.of_requests.mean, gaps.of_requests.peak], wanted.of_requests)
        assert same([gaps.of_limits.mean, gaps.of_limits.peak], wanted.of_limits)
        assert same(gaps.usage.tolist(), wanted.usage)
        assert same(gaps.pods_alone.tolist(), wanted.pods_alone)
    groups = trace.nodes if grouping == "node" else {*trace.workloads} - {""}
    known = [r for r in range(2) if reference_gaps.measure(trace, range(len(trace.pods)), r).pods]
    assert len(measured) == len(known) * (1 + len(groups))


@given(traces())
def test_nodes_alone_are_the_sum_of_the_nodes(trace: Trace) -> None:
    measured = [*measure_gaps(trace)]
    for fleet in (gaps for gaps in measured if gaps.level == "fleet"):
        nodes = [
            gaps.usage
            for gaps in measured
            if gaps.level == "node" and gaps.resource == fleet.resource and gaps.steps
        ]
        expected = np.sum([np.zeros(3), *nodes], axis=0)
        assert fleet.nodes_alone == pytest.approx(expected)


@given(traces(), st.floats(0.001, 1000.0))
def test_no_peak_of_a_sum_exceeds_the_sum_of_the_peaks(trace: Trace, scale: float) -> None:
    """Exactly, also with amounts that are no whole numbers."""
    scaled = replace(trace, usage=trace.usage * scale)
    for grouping in ("node", "workload"):
        for gaps in measure_gaps(scaled, "node" if grouping == "node" else "workload"):
            for ratio in (gaps.pod_pooling[-1], gaps.node_pooling[-1]):
                assert np.isnan(ratio) or 0.0 <= ratio <= 1.0
            if gaps.pods == 1 and gaps.usage[-1] > 0.0:
                assert gaps.pod_pooling[-1] == 1.0
                assert gaps.pod_pooling == pytest.approx([1.0] * 3, nan_ok=True)


@given(traces())
def test_a_fleet_of_one_node_is_that_node(trace: Trace) -> None:
    one = replace(
        trace, nodes=("n",), node_index=np.zeros_like(trace.node_index),
        allocatable=trace.allocatable[:1],
    )  # fmt: skip
    measured = [*measure_gaps(one)]
    for fleet, node in zip(measured[::2], measured[1::2], strict=True):
        assert fleet.usage == pytest.approx(node.usage, nan_ok=True)
        assert fleet.pods_alone == pytest.approx(node.pods_alone, nan_ok=True)
        assert (fleet.pods, fleet.steps) == (node.pods, node.steps)
        if fleet.usage[-1] > 0.0:
            assert fleet.node_pooling[-1] == 1.0


def test_the_reference_interpolates() -> None:
    values = [Fraction(v) for v in (1, 2, 4)]
    assert reference_gaps.quantile(values, Fraction(3, 4)) == 3
