"""Rows of windows: exact statistics, real coverage, unknown values as None, no end twice."""

from collections.abc import Sequence
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_exporter.collection import (
    NODE,
    SYSTEM,
    Collection,
    ContainerGrowth,
    Entity,
    Rates,
    Stall,
    Usage,
)
from node_exporter.kernel.parse_files import Throttling, Traffic
from node_exporter.window_aggregation import (
    EmittedRanges,
    OpenWindow,
    window_end_ms,
    window_seconds_for,
)
from pipeline.topics.samples import STATISTICS, SampleBatch, SampleHeader, encode_samples

POD = Entity("pod", "uid-1", "Burstable")
TIER = Entity("tier", "besteffort", None)
END = 1_700_000_010_000
WINDOW = 10_000


def usage(
    entity: Entity = POD,
    cores: float | None = 1.0,
    memory: int | None = 100,
    throttling: Throttling | None = None,
    stall: Stall | None = None,
) -> Usage:
    cpu_ns = None if cores is None else round(cores * 1e9)
    elapsed = None if cores is None else 1.0
    cached = None if memory is None else 2 * memory
    return Usage(entity, cpu_ns, elapsed, memory, cached, None, throttling, stall)


def window_of(*per_tick: list[Usage], rates: Rates | None = None) -> OpenWindow:
    window = OpenWindow(END, WINDOW, 1000)
    for i, usages in enumerate(per_tick):
        window.add(Collection(window.start_ms + 1000 * (i + 1), tuple(usages), rates))
    return window


def row_of(window: OpenWindow, entity: Entity = POD) -> dict[str, object]:
    (row,) = [r for r in window.rows(2, 1024) if (r["kind"], r["id"]) == (entity.kind, entity.id)]
    return row


@given(at=st.integers(0, 2**41), window=st.integers(1, 86_400_000))
def test_time_belongs_to_the_window_that_ends_at_or_after_it(at: int, window: int) -> None:
    end = window_end_ms(at, window)
    assert end % window == 0
    assert end - window < at <= end


@given(values=st.lists(st.integers(0, 10**13), min_size=1, max_size=40))
def test_statistics_are_exact(values: list[int]) -> None:
    row = row_of(window_of(*[[usage(memory=value)] for value in values]))
    ascending = sorted(values)
    for name, p in (("p90", Fraction(9, 10)), ("p95", Fraction(19, 20))):
        rank = int(len(values) * p)
        assert row[f"memory_bytes_{name}"] == ascending[max(0, rank - 1)]
    assert (row["memory_bytes_max"], row["memory_bytes_last"]) == (max(values), values[-1])
    assert row["memory_bytes_avg"] == float(Fraction(sum(values), len(values)))


def test_p90_of_thirty_values_is_the_27th() -> None:
    # 30 * 0.9 as a float may be slightly above or below 27.
    row = row_of(window_of(*[[usage(cores=float(i))] for i in range(1, 31)]))
    assert (row["cpu_cores_p90"], row["cpu_cores_p95"]) == (27.0, 28.0)


def test_cpu_average_is_weighted_by_time() -> None:
    window = OpenWindow(END, WINDOW, 1000)
    for second, cpu_ns, elapsed in ((1, 10**9, 1.0), (9, 4 * 10**9, 8.0)):
        reading = Usage(POD, cpu_ns, elapsed, 1, 1, None)
        window.add(Collection(window.start_ms + second * 1000, (reading,), None))
    row = row_of(window)
    assert (row["cpu_cores_avg"], row["cpu_cores_max"]) == (pytest.approx(5 / 9), 1.0)
    assert row["coverage"] == pytest.approx(0.4)  # 1 s, and 3 of the 8


def coverage_of(readings: Sequence[tuple[float, float]], length: int = 30_000) -> float:
    """Coverage of a window with readings at (seconds after the start, elapsed seconds)."""
    window = OpenWindow(1_700_000_010_000 // length * length, length, 1000)
    for second, elapsed in readings:
        reading = Usage(POD, round(elapsed * 1e9), elapsed, 1, 1, None)
        window.add(Collection(window.start_ms + round(second * 1000), (reading,), None))
    coverage = row_of(window)["coverage"]
    assert isinstance(coverage, float)
    return coverage


def test_coverage_is_observed_time_instead_of_number_of_readings() -> None:
    late = [(int(2.2 * i), 2.2) for i in range(1, 14)]  # a node too busy for a reading every second
    assert coverage_of(late) == pytest.approx(2.2 * 12 / 30 + 2.0 / 30)
    assert coverage_of([(i, 1.0) for i in range(1, 31)]) == 1.0
    assert coverage_of([(i, 1.0 + (0.004 if i % 2 else -0.005)) for i in range(1, 31)]) == 1.0
    assert coverage_of([(i, 1.0) for i in range(1, 30)]) == pytest.approx(29 / 30)
    # Only time within the window counts, and at most three intervals of a long pause.
    assert coverage_of([(1, 15.0)]) == pytest.approx(1 / 30)
    assert coverage_of([(30, 18.0)]) == pytest.approx(3 / 30)


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.001, 60)), min_size=1, max_size=60))
def test_coverage_is_between_zero_and_one(readings: list[tuple[int, float]]) -> None:
    assert 0 <= coverage_of(readings) <= 1


def test_coverage_of_a_short_pod_is_its_lifetime_within_the_window() -> None:
    there, node = [usage(), usage(NODE)], [usage(NODE)]
    first = [usage(cores=None), usage(NODE)]  # a first reading has memory only
    window = window_of(node, node, first, there, there, there, node, node, node, node)
    assert row_of(window)["coverage"] == pytest.approx(0.3)
    assert row_of(window, NODE)["coverage"] == 1.0
    assert row_of(window)["memory_bytes_last"] == 100.0


def test_rows_are_ordered_by_kind_and_id() -> None:
    window = window_of([usage(), usage(Entity("pod", "a", None)), usage(TIER), usage(NODE)])
    kinds = [(row["kind"], row["id"]) for row in window.rows(2, 1024)]
    assert kinds == [("node", ""), ("tier", "besteffort"), ("pod", "a"), ("pod", "uid-1")]


def test_system_row_covers_the_ticks_with_known_system_usage() -> None:
    window = OpenWindow(END, WINDOW, 1000)
    system = [None, *(usage(SYSTEM, float(i), 10 * i) for i in range(1, 10))]
    for i, rest in enumerate(system):
        # The last system usage comes without a reading of the node.
        node = () if i == 9 else (usage(NODE),)
        window.add(Collection(window.start_ms + 1000 * (i + 1), node, None, rest))
    row = row_of(window, SYSTEM)
    assert (row["kind"], row["id"], row["qos"]) == ("tier", "system", None)
    assert row["coverage"] == pytest.approx(0.8)
    assert [row[f"cpu_cores_{s}"] for s in STATISTICS] == [4.5, 7.0, 7.0, 8.0, 8.0]
    assert [row[f"memory_bytes_{s}"] for s in STATISTICS] == [45.0, 70.0, 70.0, 80.0, 80.0]
    assert [r["id"] for r in window_of([usage(NODE)]).rows(2, 1024)] == [""]  # no system usage


def test_window_without_readings_has_a_node_row_of_unknown_values() -> None:
    (row,) = window_of([], []).rows(None, None)
    assert (row["coverage"], row["cpu_cores_avg"], row["capacity_cpu_cores"]) == (0.0, None, None)
    assert (row["network_receive_bytes_per_second"], row["points_cpu_cores"]) == (None, [])


def test_unknown_values_stay_unknown() -> None:
    row = row_of(window_of([usage(memory=None)], [usage(memory=None)]))
    assert (row["memory_bytes_avg"], row["memory_with_hot_page_cache_bytes_max"]) == (None, None)
    assert row.keys().isdisjoint({"cpu_throttled_ratio", "pressure_cpu_some"})


def test_throttling_and_pressure_are_shares_of_observed_time() -> None:
    stall = Stall(5.0, 500_000, 0, None, 6_000_000, 0)
    window = window_of(
        [usage(throttling=Throttling(10, 5, 10**9))],
        [usage(throttling=Throttling(10, 10, 10**9), stall=stall)],
        [usage(throttling=Throttling(0, 0, 0), stall=stall)],
    )
    row = row_of(window)
    expected = {
        "cpu_throttled_ratio": 0.75, "cpu_throttled_seconds": 2.0,
        "pressure_cpu_some": pytest.approx(0.1), "pressure_memory_some": 0.0,
        "pressure_io_some": 1.0,  # at most 1
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert "pressure_memory_full" not in row


def containers(**throttling: Throttling) -> dict[str, ContainerGrowth]:
    return {id: ContainerGrowth(None, None, delta) for id, delta in throttling.items()}


def test_throttled_ratio_of_a_pod_is_that_of_its_most_throttled_container() -> None:
    a, b = Throttling(10, 9, 10**9), Throttling(10, 1, 10**9)
    own = Throttling(20, 0, 0)
    reading = usage(throttling=own)._replace(containers=containers(a=a, b=b))
    row = row_of(window_of([usage(throttling=own)], [reading], [reading]))
    assert (row["cpu_throttled_ratio"], row["cpu_throttled_seconds"]) == (0.9, 4.0)
    higher = usage(throttling=Throttling(10, 10, 10**9))._replace(containers=containers(b=b))
    row = row_of(window_of([higher]))
    assert (row["cpu_throttled_ratio"], row["cpu_throttled_seconds"]) == (1.0, 2.0)
    # The counters of containers are known even if those of their pod are not.
    unknown = usage()._replace(containers=containers(a=a))
    assert row_of(window_of([unknown]))["cpu_throttled_ratio"] == 0.9


def test_no_throttled_period_is_a_known_zero() -> None:
    assert row_of(window_of([usage(throttling=Throttling(0, 0, 0))]))["cpu_throttled_ratio"] == 0.0


def test_node_row_has_rates_and_points() -> None:
    rates = Rates(5.0, Traffic(50, 100), None)
    row = row_of(window_of([usage(NODE, 0.5, 7)], [usage(NODE, None, 8)], rates=rates), NODE)
    expected = {
        "network_receive_bytes_per_second": 10.0, "network_transmit_bytes_per_second": 20.0,
        "disk_read_bytes_per_second": None, "points_offset_seconds": [1.0, 2.0],
        "points_cpu_cores": [0.5, None], "points_memory_bytes": [7.0, 8.0],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("interval", "default", "length"),
    [
        (None, 30, 30),
        (30.0, 30, 30),
        (10.0, 30, 30),  # the policy cannot shorten windows
        (float("nan"), 30, 30),
        (45.0, 30, 45),
        (61.0, 30, 60),  # no divisor: the next shorter one of the default's doubles
        (70.5, 30, 60),
        (90.0, 30, 90),
        (119.0, 30, 60),
        (120.0, 30, 120),
        (180.0, 30, 180),
        (300.0, 30, 300),
        (600.0, 30, 300),
        (3600.0, 30, 300),
        (31_536_000.0, 30, 300),
        (float("inf"), 1, 128),
        (64.0, 27, 64),
        (67.0, 27, 54),
        (7200.0, 3600, 3600),
    ],
)
def test_policy_lengthens_windows_to_a_divisor_of_its_interval_on_a_grid_of_the_day(
    interval: float | None, default: int, length: int
) -> None:
    assert window_seconds_for(interval, default) == length
    assert 86_400 % length == 0


def test_end_is_emitted_once_despite_clock_steps() -> None:
    emitted = EmittedRanges()

    def claim(*ends: int, length: int = 30) -> list[bool]:
        return [emitted.claim(end - length, end) for end in ends]

    assert claim(30, 60, 90) == [True, True, True]
    assert claim(60, 90, 120) == [False, False, True]
    day = 86_400
    assert claim(day, day + 30) == [True, True]
    # Set back after a day ahead: only emitted windows are suppressed, not the whole day.
    assert claim(120, 150, day, day + 60) == [False, True, False, True]
    # Windows twice as long that begin within an emitted range.
    assert claim(120, 180, 240, length=60) == [False, False, True]


@given(st.lists(st.integers(1, 60), max_size=60))
def test_emitted_ends_are_distinct_in_any_order(numbers: list[int]) -> None:
    emitted = EmittedRanges()
    emitted_numbers = [n for n in numbers if emitted.claim(n * 30 - 30, n * 30)]
    assert len(emitted_numbers) == len(set(emitted_numbers)) == len(set(numbers))


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 4])), max_size=60))
def test_windows_of_mixed_lengths_never_overlap(windows: list[tuple[int, int]]) -> None:
    emitted, emitted_seconds = EmittedRanges(), set[int]()
    for number, length in windows:
        span = set(range(number * length, number * length + length))
        assert emitted.claim(min(span), max(span) + 1) == emitted_seconds.isdisjoint(span)
        emitted_seconds |= span if emitted_seconds.isdisjoint(span) else set()


def test_encoded_window_is_within_the_documented_size() -> None:
    """The budget of docs/reference/exporter.md holds for values that hardly compress."""
    random, containers = Random(3), 0

    def any_usage(entity: Entity) -> Usage:
        memory = random.randrange(10**10)
        stall = Stall(5.0, *(random.randrange(5 * 10**6) for _ in range(5)))
        throttling = Throttling(10, random.randrange(10), random.randrange(10**9))
        of_each = {
            f"{entity.id:>060}{i:04}": ContainerGrowth(random.randrange(10**9), 1.0, None, memory)
            for i in range(containers)
        }
        return Usage(
            entity, random.randrange(10**9), 1.0, memory, memory, memory, throttling, stall,
            of_each if entity.kind == "pod" else None,
        )  # fmt: skip

    def size(pods: int) -> int:
        window = OpenWindow(1_700_000_010_000, 30_000, 1000)
        entities = [
            NODE,
            *(Entity("pod", f"{i:08x}" + "-0000" * 5, "Burstable") for i in range(pods)),
        ]
        for tick in range(30):
            usages = tuple(any_usage(entity) for entity in entities)
            at_ms = window.start_ms + 1000 * (tick + 1)
            window.add(
                Collection(at_ms, usages, Rates(1.0, Traffic(1, 2), Traffic(3, 4)), usages[0])
            )
        header = SampleHeader(
            node="n" * 63, machine_id="m" * 32, boot_id="b" * 36, epoch=10**12, sequence=10**6,
            window_start_ms=window.start_ms, window_end_ms=window.end_ms,
        )  # fmt: skip
        return len(encode_samples(SampleBatch(header, window.rows(64, 1 << 40))))

    without_pods, with_pods = size(0), size(110)
    assert without_pods < 8_000
    assert (with_pods - without_pods) / 110 < 400
    containers = 2
    assert (size(110) - with_pods) / 220 < 90
