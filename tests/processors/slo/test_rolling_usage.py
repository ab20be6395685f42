"""Averages over the last windows equal an exact slow reference, and take little memory."""

import math
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.processors.slo.rolling_usage import Rolling, RollingUsage
from pipeline.topics.windows import Window, departure, retraction
from tests.processors.joined import (
    END_MS,
    GIB,
    NODE_ROW,
    Row,
    average,
    counting,
    header,
    joined,
    logged,
    pod_row,
)

NAN = math.nan


def pod(uid: str, cpu: float | None, memory: float | None = 1024.0, **values: Any) -> Row:
    return pod_row(uid, cpu_cores_avg=cpu, memory_bytes_avg=memory, **values)


def host(name: str, cpu: float) -> Row:
    return {
        "kind": "host_app", "id": name, "coverage": 1.0,
        "cpu_cores_avg": cpu, "memory_bytes_avg": 64.0,
    }  # fmt: skip


def window(
    end: int, *rows: Row, node: Row | None = None, of: str = "node-1", fast_ms: int = 0,
    **changes: Any,
) -> Window:  # fmt: skip
    """Return the window `end` places after the first, of a machine whose clock is `fast_ms` ahead.

    The broker appends it as it ends.
    """
    head = header(of, end, **changes)
    head = replace(
        head,
        window_start_ms=head.window_start_ms + fast_ms,
        window_end_ms=head.window_end_ms + fast_ms,
    )
    sent = joined(NODE_ROW | (node or {}), *rows, of=head)
    return logged(replace(sent, appended_ms=END_MS + end * 30_000))


def rolled(windows: Sequence[Window], seconds: int = 300) -> RollingUsage:
    rolling = Rolling()
    for each in windows:
        rolling.apply([each], [seconds])
    result = rolling.read("node-1")
    assert result is not None
    return result


def test_averages_are_over_the_windows_within_the_time() -> None:
    result = rolled([window(end, node={"cpu_cores_avg": float(end)}) for end in range(12)])
    assert (result.end_ms, result.span_ms) == (END_MS + 11 * 30_000, 300_000)
    assert result.node[0] == sum(range(2, 12)) / 10


def test_a_pod_counts_in_the_windows_that_list_it() -> None:
    windows = [
        window(0, pod("a", 1.0), pod("gone", 9.0)),
        window(1, pod("a", 3.0)),
        window(2, pod("b", 5.0), pod("a", 2.0), host("nginx", 1.0)),
    ]
    result = rolled(windows)
    assert (result.uids, result.hosts) == (("a", "b"), ("nginx",))
    assert result.pods[:, 0].tolist() == [2.0, 5.0]
    assert result.host_apps[:, 0].tolist() == [1.0]


def test_a_pod_that_returns_under_its_uid_starts_empty() -> None:
    windows = [window(0, pod("a", 9.0)), window(1), window(2, pod("a", 1.0))]
    assert rolled(windows).pods[:, 0].tolist() == [1.0]


def test_unknown_usage_is_not_averaged() -> None:
    windows = [
        window(0, pod("a", 1.0, None), pod("b", None, None)),
        window(1, pod("a", None, 512.0), pod("b", None, None)),
    ]
    result = rolled(windows)
    assert result.pods[0].tolist() == [1.0, 512.0]
    assert np.isnan(result.pods[1]).all()
    assert np.isnan(result.system).all(), "a pod's part would pass for the system's"


def test_memory_of_windows_that_counted_other_pages_is_not_averaged() -> None:
    """CPU is; so the average over a change of the policy never mixes two figures."""
    node = {"cpu_cores_avg": 2.0, "memory_with_page_cache_bytes_avg": 20 * GIB}
    windows = [window(0, pod("a", 1.0)), window(1, pod("a", 3.0), node=node)]
    result = rolled([windows[0], counting(windows[1], "usageWithPageCache")])
    assert result.node.tolist() == [3.0, 20 * GIB]
    assert result.pods[:, 0].tolist() == [2.0]


def test_windows_count_by_their_coverage() -> None:
    windows = [
        window(0, node={"cpu_cores_avg": 1.0, "coverage": 1.0}),
        window(1, node={"cpu_cores_avg": 4.0, "coverage": 0.5}),
        window(2, node={"cpu_cores_avg": 100.0, "coverage": 0.0}),
    ]
    assert rolled(windows).node[0] == 2.0
    assert np.isnan(rolled(windows[2:]).node[0])


def test_windows_count_by_their_length() -> None:
    first = window(0, node={"cpu_cores_avg": 1.0})
    longer = window(
        4, node={"cpu_cores_avg": 4.0}, window_start_ms=END_MS, window_end_ms=END_MS + 120_000
    )
    result = rolled([first, longer])
    assert result.node[0] == (1.0 * 30 + 4.0 * 120) / 150
    assert result.span_ms == 150_000


def test_a_window_longer_than_the_aggregation_time_counts() -> None:
    result = rolled([window(0), window(1, node={"cpu_cores_avg": 7.0})], seconds=10)
    assert (result.node[0], result.span_ms) == (7.0, 30_000)


@pytest.mark.parametrize(("seconds", "remaining"), [(2**62, 2), (60, 2), (59, 1), (0, 1), (-1, 1)])
def test_any_aggregation_time_is_allowed(seconds: int, remaining: int) -> None:
    assert rolled([window(0), window(1)], seconds).span_ms == remaining * 30_000


@pytest.mark.parametrize("end", [1, 0, -5])
def test_a_window_that_does_not_end_later_is_refused(end: int) -> None:
    windows = [window(0), window(1), window(end, node={"cpu_cores_avg": 90.0})]
    assert rolled(windows).node[0] == 4.0


def test_another_machine_starts_empty() -> None:
    windows = [window(0, pod("a", 9.0)), window(2, pod("a", 1.0), machine_id="m2")]
    result = rolled(windows)
    assert (result.pods[0, 0], result.span_ms) == (1.0, 30_000)


def test_an_exporter_counts_at_once_in_place_of_a_provider_and_not_the_reverse() -> None:
    rolling = Rolling()
    origins = [("", "prometheus"), ("", "metrics-server"), ("m", ""), ("", "prometheus")]
    windows = [
        window(end, machine_id=machine, source=source)
        for end, (machine, source) in enumerate(origins)
    ]
    results = [rolling.apply([each], [300])[0] for each in windows]
    assert results == [True, False, True, False]


def test_two_machines_of_one_name_do_not_alternate() -> None:
    rolling = Rolling()
    windows = [window(end, machine_id=f"m{end % 2}") for end in (0, 1, 2, 3, 4)]
    results = [rolling.apply([each], [300])[0] for each in windows]
    assert results == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("silent", "fast_ms", "applied"), [(0, 40_000, False), (1, 40_000, True), (1, -15_000, True)]
)
def test_only_the_clock_of_the_broker_tells_that_the_first_machine_is_silent(
    silent: int, fast_ms: int, applied: bool
) -> None:
    """As in the models."""
    rolling = Rolling()
    rolling.apply([window(0)], [300])
    other = window(1 + silent, machine_id="m2", fast_ms=fast_ms)
    assert rolling.apply([other], [300]) == [applied]


def test_a_departure_removes_a_node_within_one_call() -> None:
    rolling = Rolling()
    rolling.apply([window(0), departure("node-1", END_MS)], [300, 300])
    assert (len(rolling), rolling.read("node-1")) == (0, None)
    rolling.apply([departure("node-1", END_MS), window(1)], [300, 300])
    result = rolling.read("node-1")
    assert result is not None
    assert result.span_ms == 30_000


@pytest.mark.parametrize("end_of_node", [departure, retraction])
def test_an_end_of_the_node_before_its_last_window_is_ignored(
    end_of_node: Callable[[str, int], Window],
) -> None:
    """As in the models: a worker that was paused writes what it knew of the node back then."""
    rolling = Rolling()
    began_ms = window(1).appended_ms - 30_000
    windows = [window(0), window(1), end_of_node("node-1", began_ms - 1)]
    assert rolling.apply(windows, [300] * 3) == [True, True, False]
    result = rolling.read("node-1")
    assert result is not None
    assert result.span_ms == 60_000
    assert rolling.apply([end_of_node("node-1", began_ms)], [300]) == [True]
    assert len(rolling) == 0


def test_each_window_needs_an_aggregation_time() -> None:
    with pytest.raises(ValueError):
        Rolling().apply([window(0), window(1)], [300])


def test_nodes_are_independent_and_have_their_own_aggregation_time() -> None:
    rolling = Rolling()
    for end in range(4):
        near = window(end, node={"cpu_cores_avg": float(end)})
        far = window(end, node={"cpu_cores_avg": 9.0 * end}, of="node-2")
        rolling.apply([near, far], [60, 300])
    first, second = rolling.read("node-1"), rolling.read("node-2")
    assert first is not None
    assert second is not None
    assert (first.node[0], second.node[0]) == (2.5, 13.5)


USAGE = st.none() | st.floats(0, 64)
PODS = st.dictionaries(st.sampled_from("abcde"), st.tuples(USAGE, USAGE))
STEPS = st.lists(st.tuples(st.integers(1, 4), USAGE, PODS), min_size=1, max_size=9)


@given(STEPS, st.sampled_from([30, 90, 300]))
def test_averages_equal_a_slow_reference(
    steps: list[tuple[int, float | None, dict[str, tuple[float | None, float | None]]]],
    seconds: int,
) -> None:
    windows, end = [], 0
    for passed, cpu, pods in steps:
        end += passed
        listed = [pod(uid, *usage) for uid, usage in pods.items()]
        windows.append(window(end, *listed, node={"cpu_cores_avg": cpu}))
    result = rolled(windows, seconds)
    newest = windows[-1].header.window_end_ms
    within = [each for each in windows if each.header.window_start_ms >= newest - 1000 * seconds]
    within = within or windows[-1:]
    assert result.uids == windows[-1].rows.listing.uids
    _same(result.node, [average(each).node[0] for each in within])
    _same(result.system, [average(each).system[0] for each in within])
    there = {uid: _since(uid, windows) for uid in result.uids}
    for row, uid in enumerate(result.uids):
        own = [each for each in within if each in there[uid]]
        rows = [each.rows.listing.uids.index(uid) for each in own]
        usages = [average(each).pods[row_in] for each, row_in in zip(own, rows, strict=True)]
        _same(result.pods[row], usages)


def _since(uid: str, windows: list[Window]) -> list[Window]:
    """The windows of a pod up to the newest without one in which it was not."""
    listing: list[Window] = []
    for each in windows:
        listing = [*listing, each] if uid in each.rows.listing.uids else []
    return listing


def _same(result: np.ndarray, usages: Sequence[np.ndarray]) -> None:
    """All windows here are of one length and wholly seen."""
    for resource in range(2):
        values = [Fraction(usage[resource]) for usage in usages if not np.isnan(usage[resource])]
        if values:
            exact = float(sum(values, Fraction(0)) / len(values))
            assert result[resource] == pytest.approx(exact, rel=1e-12, abs=1e-12)
        else:
            assert np.isnan(result[resource])


def test_ten_thousand_nodes_fit_into_250_mib() -> None:
    """A two-hundredth of them: 50 nodes of 100 pods, 10 windows each."""
    nodes, pods = 50, 100
    rows = [pod(f"{'0' * 30}{number:06}", 0.5, 1e9) for number in range(pods)]
    rolling = Rolling()
    names = [f"node-{number}" for number in range(nodes)]

    def apply(end: int) -> None:
        for name in names:
            rolling.apply([window(end, *rows, of=name)], [300])

    # What is read once, and kept by others, is no cost of this.
    apply(0)
    for name in names:
        rolling.apply([departure(name, 2 * END_MS)], [300])
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for end in range(1, 13):
        apply(end)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = rolling.read("node-7")
    assert result is not None
    assert result.span_ms == 300_000
    of_all = (after - before) * 10_000 / nodes
    assert of_all < 250 * 2**20, f"{of_all / 2**20:.0f} MiB"
    # Else nothing would be measured.
    assert of_all > 10_000 * 10 * 102 * 2 * 8
