"""Series of windows: what is there, in order, each once, and what is missing counted."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.explain.usage_series import (
    PodSelector,
    pod_names,
    usage_series,
    window_points,
)
from tests.processors.joined import GIB
from tests.processors.usage_windows import LENGTH_MS, usage_window

AT_MS = 1_700_000_010_000


def test_a_node_window_by_window() -> None:
    windows = [usage_window(AT_MS + i * LENGTH_MS, float(i), sequence=i) for i in range(4)]
    found = usage_series("node-1", None, [window_points(window, None) for window in windows])
    assert (found.node, found.pod, found.missing_windows) == ("node-1", None, 0)
    first = found.items[1]
    assert (first.start, first.end, first.uid, first.coverage) == (
        "2023-11-14T22:13:30Z", "2023-11-14T22:14:00Z", None, 0.9,
    )  # fmt: skip
    assert first.cpu_cores == {"avg": 1.0, "p90": None, "p95": 2.0, "max": None, "last": None}
    assert first.memory_bytes["max"] == 2 * GIB
    assert [item.cpu_cores["avg"] for item in found.items] == [0.0, 1.0, 2.0, 3.0]
    cpu = found.statistics["cpu_cores"]
    assert (cpu.points, cpu.avg, cpu.p50, cpu.max) == (4, 1.5, 1.0, 3.0)
    # As people and scripts read it.
    assert msgspec.json.decode(msgspec.json.encode(found))["kind"] == "UsageSeries"


def test_a_pod_by_name_and_by_uid() -> None:
    of = {"u1": ("web-0", 1.0), "u2": ("web-1", 2.0), "u3": ("", 3.0)}
    window = usage_window(AT_MS, 9.0, pods=of)
    assert pod_names(window) == {"shop/web-0", "shop/web-1"}
    for sought, uid, used in (
        (PodSelector("shop", "web-1"), "u2", 2.0),
        (PodSelector(uid="u3"), "u3", 3.0),
    ):
        (point,) = window_points(window, sought).points
        assert (point.uid, point.cpu_cores["avg"]) == (uid, used)
    for sought in (PodSelector("other", "web-1"), PodSelector(uid="u4"), PodSelector(uid="web-1")):
        assert window_points(window, sought).points == ()


def test_recreated_pod_is_listed_beside_its_predecessor() -> None:
    both = {"u2": ("web-0", 2.0), "u1": ("web-0", 1.0)}
    window = window_points(usage_window(AT_MS, 9.0, pods=both), PodSelector("shop", "web-0"))
    found = usage_series("node-1", PodSelector("shop", "web-0"), [window])
    assert [(item.uid, item.cpu_cores["avg"]) for item in found.items] == [("u1", 1.0), ("u2", 2.0)]
    assert found.pod == "shop/web-0"


@pytest.mark.parametrize("cpu", [None, float("nan")])
def test_unknown_values_are_none_and_not_counted(cpu: float | None) -> None:
    windows = [usage_window(AT_MS, cpu), usage_window(AT_MS + LENGTH_MS, 4.0, sequence=1)]
    found = usage_series("node-1", None, [window_points(window, None) for window in windows])
    assert found.items[0].cpu_cores["avg"] is None
    assert (found.statistics["cpu_cores"].points, found.statistics["cpu_cores"].avg) == (1, 4.0)


def test_no_windows_give_no_numbers() -> None:
    found = usage_series("node-1", None, [])
    assert (found.items, found.missing_windows) == ([], 0)
    assert found.statistics["cpu_cores"].avg is None


@given(st.sets(st.tuples(st.integers(1, 2), st.integers(0, 20)), min_size=1), st.randoms())
def test_windows_in_any_order_and_repeated_count_once(
    numbers: set[tuple[int, int]], luck: random.Random
) -> None:
    """Two exporters one after the other: the second begins to count anew."""
    windows = [
        window_points(
            usage_window(AT_MS + (100 * epoch + number) * LENGTH_MS, 1.0, sequence=number,
                         epoch=epoch),
            None,
        )
        for epoch, number in sorted(numbers)
    ]  # fmt: skip
    again = [*windows, *windows[::2]]
    luck.shuffle(again)
    found = usage_series("node-1", None, again)
    assert [item.end for item in found.items] == [window.points[0].end for window in windows]
    missing = 0
    for epoch in (1, 2):
        own = [number for of, number in numbers if of == epoch]
        missing += len(set(range(min(own), max(own))) - set(own)) if own else 0
    assert found.missing_windows == missing
