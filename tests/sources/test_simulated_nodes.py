"""Simulated nodes are reproducible, consistent, and resemble those of a real cluster."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sources.simulated_nodes import MAX_WINDOW_SECONDS, POINTS, SimulatedNode
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import PodRecord
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import STATISTICS, USAGES, encode_samples

NOON = 1_700_049_600  # 2023-11-15T12:00:00Z


def sample_bytes(seed: int, index: int, start: int = NOON, pods: int = 8) -> bytes:
    node = SimulatedNode(seed, index, pods)
    return encode_samples(node.sample(start, start + 30, epoch=1, sequence=2))


def test_same_seed_gives_same_bytes_in_any_order() -> None:
    starts = [NOON, NOON + 30, NOON + 86_400]
    node = SimulatedNode(7, 3, 8)
    forth = [node.sample(s, s + 30, epoch=1, sequence=2) for s in starts]
    back = [node.sample(s, s + 30, epoch=1, sequence=2) for s in reversed(starts)]
    assert forth == back[::-1]
    assert [encode_samples(b) for b in forth] == [sample_bytes(7, 3, s) for s in starts]
    assert SimulatedNode(7, 3, 8).record == node.record
    assert SimulatedNode(7, 3, 8).pods(NOON, NOON + 30) == node.pods(NOON, NOON + 30)


def test_other_seeds_nodes_and_times_differ() -> None:
    samples = {sample_bytes(seed, index, start) for seed, index, start in
            itertools.product((1, 2), (0, 1), (NOON, NOON + 30))}  # fmt: skip
    assert len(samples) == 8


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(0, 99_999), st.integers(0, 2_000_000_000),
    st.integers(0, 12), st.sampled_from([1, 5, 30, 300, 600]),
)  # fmt: skip
def test_samples_are_valid_and_add_up(
    seed: int, index: int, start: int, pods: int, window: int
) -> None:
    node = SimulatedNode(seed, index, pods)
    batch = node.sample(start, start + window, epoch=1, sequence=0)
    read = read_samples(encode_samples(batch))
    header = read.header
    length = header.window_end_ms - header.window_start_ms
    assert (header.simulated, header.node, length) == (True, node.name, window * 1000)
    node_row, *pod_rows = batch.rows
    assert {row["id"] for row in pod_rows} == set(node.pods(start, start + window))
    assert len(read.rows) == 1 + len(pod_rows)
    for usage, capacity in (("cpu_cores", node.cpu_cores), ("memory_bytes", node.memory_bytes)):
        parts = sum(row[f"{usage}_avg"] for row in pod_rows)
        assert 0 <= parts <= node_row[f"{usage}_avg"] <= capacity
    for row in batch.rows:
        assert all(0 <= row[f"{u}_{s}"] < np.inf for u in USAGES for s in STATISTICS)
        for usage in USAGES:
            assert row[f"{usage}_p90"] <= row[f"{usage}_p95"] <= row[f"{usage}_max"]
        assert 0 < row["coverage"] <= 1


def test_statistics_are_computed_from_the_points() -> None:
    node = SimulatedNode(1, 1, 10).sample(NOON, NOON + 30, epoch=1, sequence=0).rows[0]
    points = node["points_cpu_cores"]
    assert len(points) == POINTS == len(node["points_offset_seconds"])
    assert node["points_offset_seconds"][-1] == 30.0
    assert node["cpu_cores_avg"] == pytest.approx(sum(points) / POINTS)
    assert node["cpu_cores_p90"] == sorted(points)[int(POINTS * 0.9) - 1]
    assert (node["cpu_cores_max"], node["cpu_cores_last"]) == (max(points), points[-1])


def test_pods_are_created_and_deleted_and_have_distinct_names() -> None:
    node = SimulatedNode(1, 5, 20)
    seen: dict[str, PodRecord] = {}
    changes = 0
    before: set[str] = set()
    for start in range(NOON, NOON + 2 * 86_400, 300):
        pods = node.pods(start, start + 300)
        assert len(pods) <= 20
        changes += set(pods) != before
        before = set(pods)
        seen |= pods
        assert all(parse_time(pod.created_at or "") < start + 300 for pod in pods.values())
    assert len(seen) > 25
    assert changes < 2 * 288 / 2, "most windows change nothing"
    names = [(pod.namespace, pod.name) for pod in seen.values()]
    assert len(set(names)) == len(names)


def test_coverage_of_new_pod_is_its_share_of_the_window() -> None:
    node = SimulatedNode(1, 5, 20)
    for start in range(NOON, NOON + 86_400, 300):
        for row in node.sample(start, start + 300, epoch=1, sequence=0).rows[1:]:
            if row["coverage"] == 1.0:
                continue
            created = parse_time(node.pods(start, start + 300)[row["id"]].created_at or "")
            if created > start:
                assert row["coverage"] == pytest.approx((start + 300 - created) / 300, abs=0.01)
                return
    pytest.fail("no pod appeared in a day")


def test_records_can_be_encoded_and_decoded() -> None:
    node = SimulatedNode(1, 5, 40)
    allocatable, capacity = node.record.allocatable, node.record.capacity
    assert 0 < (allocatable.cpu_millicores or 0) < (capacity.cpu_millicores or 0)
    pods = node.pods(NOON, NOON + 30).values()
    assert {pod.pod_class for pod in pods} >= {"prod", "batch"}
    for pod in pods:
        assert decode_json(PodRecord, encode_json(pod)) == pod
        expected = (node.name, pod.requests.cpu_millicores is not None)
        assert (pod.node, pod.pod_class == "prod") == expected


def test_load_resembles_that_of_a_cluster() -> None:
    """There is a daily cycle; some nodes are nearly idle, some above the threshold of 65%."""
    fleet = [SimulatedNode(1, index, 30) for index in range(60)]

    def shares(hour: int) -> list[float]:
        start = NOON + hour * 3600
        rows = [node.sample(start, start + 30, epoch=1, sequence=0).rows[0] for node in fleet]
        return [r["cpu_cores_avg"] / n.cpu_cores for r, n in zip(rows, fleet, strict=True)]

    by_hour = [shares(hour) for hour in range(0, 24, 3)]
    means = [sum(hour) / len(hour) for hour in by_hour]
    assert max(means) > 1.25 * min(means)
    all_shares = list(itertools.chain.from_iterable(by_hour))
    assert 0.03 < sum(share > 0.65 for share in all_shares) / len(all_shares) < 0.35
    assert sum(share < 0.25 for share in all_shares) / len(all_shares) > 0.05


def test_memory_of_some_pods_grows_until_they_are_restarted() -> None:
    ratios = []
    for index in range(20):
        node = SimulatedNode(1, index, 20)
        now, later = (
            {
                row["id"]: row["memory_bytes_avg"]
                for row in node.sample(start, start + 30, epoch=1, sequence=0).rows
            }
            for start in (NOON, NOON + 6 * 3600)
        )
        for uid, pod in node.pods(NOON, NOON + 30).items():
            if pod.name.startswith("growing") and uid in later:
                ratios.append(later[uid] / now[uid])
    assert len(ratios) > 10
    assert sum(ratio > 1.01 for ratio in ratios) > 0.8 * len(ratios)


def test_longest_window_never_has_a_pod_and_its_successor() -> None:
    node = SimulatedNode(3, 1, 30)
    for start in range(NOON, NOON + 86_400, MAX_WINDOW_SECONDS):
        owners = [p.owner for p in node.pods(start, start + MAX_WINDOW_SECONDS).values()]
        assert len({o.name for o in owners if o}) == len(owners)
