"""Hourly usage of pools and workloads from windows, and how long it is kept."""

from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.processors.usage_levels import hourly_usage
from pipeline.processors.usage_levels.hourly_usage import (
    FEWEST_READS,
    HourlyUsage,
    HourSums,
    Means,
    UsageSubject,
    hour_record,
    means_of,
)
from pipeline.processors.usage_levels.level_changes import KEPT_HOURS
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.hourly_usage import KEYS, HourlyUsageRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.windows import Window
from tests.processors.joined import GIB, NODE_ROW, header, joined, known_pod, pod_row, view_of

HOUR = 472_222
MEMORY = 1.074e9
"""A GiB with the four digits that means have."""
POOL = UsageSubject("pool", "gold")
WEB = UsageSubject("workload", "Deployment/shop/web")
WEB_OWNER = Owner(kind="Deployment", name="web")
GOLD = NodeRecord(
    node="node-1", hot_nodes=HotNodePolicy(pool="gold"),
    allocatable=Resources(cpu_millicores=8000, memory_bytes=16 << 30),
)  # fmt: skip


def window(
    end: int, *cores: float | None, owner: Owner | None = WEB_OWNER, node: str = "node-1",
    **row: Any,
) -> Window:  # fmt: skip
    """The `end`-th window of a node with a pod of a Deployment for each of `cores`."""
    pods = [known_pod(f"p{i}", owner=owner) for i in range(len(cores))]
    rows = [
        pod_row(pod.uid, cpu_cores_avg=used, memory_bytes_avg=GIB)
        for pod, used in zip(pods, cores, strict=True)
    ]
    view = view_of(*pods, record=GOLD)
    return joined({**NODE_ROW, **row}, *rows, view=view, of=header(node, end))


def means(*reads: list[Window]) -> dict[UsageSubject, Means]:
    sums = HourSums()
    for read, windows in enumerate(reads):
        sums.add(read, windows)
    return sums.means(())[0]


def test_a_pool_is_a_share_of_allocatable_and_a_workload_the_mean_of_its_pods() -> None:
    found = means([window(0, 0.5, 1.0)], [window(30, 0.25, 0.25)])
    assert found == {POOL: (0.5, 0.5), WEB: (0.5, MEMORY)}


@pytest.mark.parametrize("pods", [1, 2, 7])
def test_scaling_is_no_change(pods: int) -> None:
    assert means(*([window(30 * read, *[0.5] * pods)] for read in range(4)))[WEB] == (0.5, MEMORY)


def test_a_window_counts_once() -> None:
    once = means([window(0, 1.0), window(1, 2.0)], [window(30, 2.0)])
    again = means(
        [window(0, 1.0), window(0, 1.0), window(1, 2.0)], [window(0, 1.0), window(30, 2.0)]
    )
    assert again == once


def test_unknown_usage_is_not_zero() -> None:
    reads = [window(0, 1.0, None)], [window(30, None, cpu_cores_avg=None)]
    assert means(*reads) == {POOL: (0.5, 0.5), WEB: (1.0, MEMORY)}
    assert means([window(0, None)], [window(30, None)])[WEB] == (None, MEMORY)


def test_a_workload_that_was_hardly_seen_has_no_mean() -> None:
    assert means([window(0, 1.0)], [window(30)]) == {POOL: (0.5, 0.5)}
    assert means() == {}


@pytest.mark.parametrize(
    "owner", [None, Owner(kind="Job", name="once"), Owner(kind="Node", name="node-1")]
)
def test_pods_without_a_lasting_workload_are_none(owner: Owner | None) -> None:
    reads = [[window(30 * read, 1.0, owner=owner)] for read in range(FEWEST_READS)]
    assert means(*reads).keys() == {POOL}


def test_an_absurd_node_moves_no_mean() -> None:
    reads = [[window(30 * read), window(30 * read, node="node-2", cpu_cores_avg=1e5)]
             for read in range(2)]  # fmt: skip
    assert means(*reads)[POOL] == (0.5, 0.5)


def test_the_pool_of_a_workload_is_that_of_most_of_its_pods() -> None:
    sums = HourSums()
    sums.add(0, [window(0, 1.0, 1.0)])
    assert sums.main_pools()[WEB] == "gold"


def test_beyond_the_limit_the_largest_are_kept_and_known_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hourly_usage, "MOST_WORKLOADS", 1)
    sums = HourSums()
    for read in range(FEWEST_READS):
        small = window(30 * read, 1.0, owner=Owner(kind="StatefulSet", name="db"), node="b")
        sums.add(read, [window(30 * read, 1.0, 1.0, node="a"), small])
    chosen, left_out = sums.means(())
    assert ({*chosen}, left_out) == ({POOL, WEB}, 1)
    known = UsageSubject("workload", "StatefulSet/shop/db")
    chosen, left_out = sums.means({known})
    assert ({*chosen}, left_out) == ({POOL, known}, 1)


def test_hours_have_their_order_whatever_the_order_of_their_records() -> None:
    hours = {HOUR + i: {WEB: (float(i), None)} for i in range(0, KEPT_HOURS, 3)}
    usage, shuffled = HourlyUsage(), HourlyUsage()
    for hour in sorted(hours):
        usage.put(hour, hours[hour])
    for hour in [max(hours), *sorted(hours, key=lambda each: each * 7919 % 1000), *hours]:
        shuffled.put(hour, hours[hour])
    np.testing.assert_array_equal(usage.values(), shuffled.values())
    (row,) = usage.values()
    expected = [
        float(hour - HOUR) if hour in hours else np.nan
        for hour in range(usage.newest_hour - KEPT_HOURS + 1, usage.newest_hour + 1)
    ]
    np.testing.assert_array_equal(row[0], expected)
    assert np.isnan(row[1]).all()


def test_what_has_no_hour_any_more_is_forgotten() -> None:
    usage = HourlyUsage()
    usage.put(HOUR, {WEB: (1.0, GIB)})
    usage.put(HOUR + 1, {POOL: (0.5, 0.5)})
    usage.put(HOUR + KEPT_HOURS, {POOL: (0.5, 0.5)})
    assert usage.subjects == [POOL]
    assert HOUR not in usage
    usage.put(HOUR, {WEB: (1.0, GIB)})  # too old
    assert usage.subjects == [POOL]
    usage.put(HOUR + 3 * KEPT_HOURS, {})
    assert usage.subjects == []


def test_the_number_of_workloads_is_bounded_over_all_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hourly_usage, "MOST_SUBJECTS", 5)
    usage = HourlyUsage()
    for hour in range(20):
        names = [UsageSubject("workload", f"{hour}-{i}") for i in range(2)]
        usage.put(HOUR + hour, dict.fromkeys([WEB, *names], (1.0, GIB)))
        assert len(usage.subjects) <= 5
        assert WEB in usage.subjects
        assert {*names} <= {*usage.subjects}
        assert not np.isnan(usage.values()[usage.subjects.index(WEB), 0, -hour - 1 :]).any()


def test_a_record_is_read_as_it_was_written() -> None:
    hour = {POOL: (0.5, None), WEB: (0.25, GIB)}
    record = hour_record("2023-11-14T22:00:00Z", hour)
    again = decode_json(HourlyUsageRecord, encode_json(record))
    assert means_of(again) == hour
    newer = msgspec.structs.replace(
        again, usage=again.usage | {"node/x": (1.0, 1.0), "odd": (1, 1)}
    )
    assert means_of(newer) == hour
    assert KEYS > KEPT_HOURS
