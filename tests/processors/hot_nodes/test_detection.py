"""From windows to alerts: which usage is compared with what, and when alerts end."""

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.processors.hot_nodes.detection import end_alerts
from pipeline.processors.model.bank import Bank
from pipeline.topics.alerts import AlertRecord, OpenAlert, Pressure
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.windows import Window
from tests.processors.hot_nodes.node_windows import POLICY, Stream, hot_window, transitions_of
from tests.processors.hot_nodes.reference import Rule

OPENED, CLOSED = ("node_cpu", "opened"), ("node_cpu", "closed")


def with_policy(**fields: Any) -> HotNodePolicy:
    return msgspec.structs.replace(POLICY, **fields)


def hot(count: int, first: int = 1, **fields: Any) -> list[Window]:
    return [hot_window(end, 90.0, 50.0, **fields) for end in range(first, first + count)]


def stream_of(windows: list[Window]) -> Stream:
    stream = Stream()
    for window in windows:
        stream.apply(window)
    return stream


def test_record_of_an_opened_alert_has_the_evidence() -> None:
    usage = [40.0, 71.0, 72.0, 73.0, 74.0, 75.0]
    stalled: Any = {"pressure_cpu_some": 0.25}
    stream = stream_of([hot_window(end, cpu, **stalled) for end, cpu in enumerate(usage)])
    (record,) = stream.records["node-1"]
    assert (record.id, record.transition) == ("node-1/node_cpu/2023-11-14T22:16:30Z", "opened")
    assert (record.severity, record.since, record.as_of) == (
        "warning", "2023-11-14T22:16:30Z", "2023-11-14T22:16:30Z",
    )  # fmt: skip
    evidence = record.evidence
    assert evidence.series == (40.0, 71.0, 72.0, 73.0, 74.0, 75.0)
    assert (evidence.usage, evidence.span_seconds, evidence.usage_percent) == ("average", 30, 75.0)
    assert (evidence.threshold_percent, evidence.critical_percent) == (70.0, 85.0)
    assert evidence.pressure == Pressure(cpu_some=0.25)
    assert (record.offset, record.pool) == (5, "__default_node_pool__")
    assert stream.open["node-1"] == (
        OpenAlert(
            rule="node_cpu", severity="warning", since="2023-11-14T22:16:30Z", usage_percent=75.0,
            threshold_percent=70.0,
        ),
    )  # fmt: skip


def test_all_transitions_of_an_alert_have_one_id() -> None:
    usage = [71.0] * 5 + [90.0] * 5 + [75.0] * 3 + [10.0] * 3
    stream = stream_of([hot_window(end, cpu) for end, cpu in enumerate(usage, 1)])
    records = stream.records["node-1"]
    assert [r.transition for r in records] == ["opened", "escalated", "eased", "closed"]
    assert [r.severity for r in records] == ["warning", "critical", "warning", "warning"]
    assert [r.reason for r in records] == [None, None, None, "cooled"]
    assert [r.duration_seconds for r in records] == [0.0, 150.0, 240.0, 330.0]
    assert len({record.id for record in records}) == 1
    assert stream.open["node-1"] == ()


def test_average_is_that_of_the_windows_in_the_span() -> None:
    """Five windows of 20% and four of 100%: at last 84% on average over 150 s, 56% over 300."""
    usage = [20.0] * 5 + [100.0] * 4
    windows = {
        span: [
            hot_window(end, cpu, policy=with_policy(span_seconds=span, open_windows=1))
            for end, cpu in enumerate(usage, 1)
        ]
        for span in (30, 150, 300)
    }
    percents = {
        span: [record.evidence.usage_percent for record in stream_of(own).records["node-1"]]
        for span, own in windows.items()
        if span < 300
    }
    assert percents == {30: [100.0], 150: [84.0]}
    assert transitions_of(windows[300]) == []


def test_usage_is_unknown_until_half_of_the_span_is() -> None:
    policy = with_policy(span_seconds=300, open_windows=1)
    records = stream_of(hot(9, policy=policy)).records["node-1"]
    assert [record.as_of for record in records] == ["2023-11-14T22:16:30Z"]  # the fifth


@pytest.mark.parametrize("kind", ["average", "p90"])
def test_a_span_of_more_windows_than_are_kept_is_one_of_those(
    kind: Literal["average", "p90"],
) -> None:
    """Half an hour of windows of 10 s has 180, of which 60 are kept: half of these is enough."""
    policy = with_policy(usage=kind, span_seconds=1800, open_windows=1)
    windows = [hot_window(end, 90.0, policy=policy, seconds=10) for end in range(1, 65)]
    records = stream_of(windows).records["node-1"]
    assert [record.as_of for record in records] == ["2023-11-14T22:19:00Z"]  # the thirtieth


@pytest.mark.parametrize(("kind", "cores"), [("p50", 9.5), ("p90", 7.5)])
def test_percentiles_are_those_of_the_points(kind: Literal["p50", "p90"], cores: float) -> None:
    """In each window 7 of 30 points are at 10 cores: p50 is low, p90 high."""
    points = [1.0] * 23 + [10.0] * 7
    policy = with_policy(usage=kind, span_seconds=300, open_windows=1)
    windows = [hot_window(end, 31.0, points=points, policy=policy) for end in range(1, 8)]
    found = transitions_of(windows)
    assert found == ([] if kind == "p50" else [OPENED])
    # Without points the averages of windows stand in.
    usage = [10.0] * 5 + [90.0] * 5
    windows = [hot_window(end, cpu, policy=policy) for end, cpu in enumerate(usage, 1)]
    assert transitions_of(windows) == ([] if kind == "p50" else [OPENED])


def test_peak_is_that_of_the_deciding_predictor() -> None:
    """Usage fell to 10%, the peak is that of before."""
    policy = with_policy(usage="peak", open_windows=30)
    stream = stream_of([hot_window(end, 90.0 if end < 20 else 10.0, policy=policy)
                        for end in range(1, 31)])  # fmt: skip
    (record,) = stream.records["node-1"]
    peaks = stream.bank.peaks(["node-1"])
    cores = peaks.summaries[0].peaks[peaks.decides[0]][0]
    assert record.evidence.usage_percent == pytest.approx(10 * cores, abs=0.01)
    assert cores > 9.0


PROD = HotNodePolicy(prod_high_percent={"cpu": 50.0}, span_seconds=30, open_windows=2)


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ({"uid-0": ("prod", 3.0), "uid-1": ("prod", 2.1)}, ["opened"]),
        ({"uid-0": ("prod", 3.0), "uid-1": ("prod", 2.0)}, []),
        ({"uid-0": ("prod", 3.0), "uid-1": ("batch", 6.0)}, []),
        ({"uid-0": ("prod", 3.0), "uid-1": ("unknown", 6.0)}, ["opened"]),
        ({"uid-0": ("prod", 6.0), "uid-1": ("prod", None)}, []),
        ({"uid-0": ("prod", 6.0), "uid-1": ("batch", None)}, ["opened"]),
    ],
)
def test_prod_is_the_sum_of_prod_pods(
    pods: dict[str, tuple[str, float | None]], found: list[str]
) -> None:
    windows = [hot_window(end, 99.0, pods=pods, policy=PROD) for end in range(1, 5)]
    assert transitions_of(windows) == [("prod_cpu", transition) for transition in found]


def test_node_without_prod_pods_uses_nothing_of_it() -> None:
    windows = [hot_window(end, 99.0, prod=6.0, policy=PROD) for end in (1, 2)]
    windows += [hot_window(end, 99.0, policy=PROD) for end in (3, 4, 5)]
    assert transitions_of(windows) == [("prod_cpu", "opened"), ("prod_cpu", "closed")]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, [OPENED]),
        ({"cores": None}, []),
        ({"cores": 0}, []),
        ({"annotations": {"node.koordinator.sh/raw-allocatable": '{"cpu":"20"}'}}, []),
        ({"annotations": {"node.koordinator.sh/raw-allocatable": "{"}}, [OPENED]),
        ({"annotations": {"node.koordinator.sh/raw-allocatable": "{}"}}, [OPENED]),
        ({"cores": 30, "annotations": {"node.koordinator.sh/raw-allocatable": '{"cpu":"10"}'}},
         [OPENED]),
    ],
)  # fmt: skip
def test_capacity_is_allocatable_before_amplification(
    fields: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    assert transitions_of(hot(6, **fields)) == found


def reserving(text: str) -> dict[str, Any]:
    return {"annotations": {"node.koordinator.sh/reservation": text}}


FOUR = reserving('{"resources": {"cpu": "4"}}')


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({**FOUR, "outside": 0.0}, [OPENED]),  # 6 of 6
        ({**FOUR, "outside": 1.5}, [OPENED]),  # 4.5 of 6
        ({**FOUR, "outside": 4.0}, []),  # 2 of 6
        ({**FOUR, "outside": 5.5}, []),  # 2 of 6: pods and 1.5 beyond the reservation
        (FOUR, []),  # no pods: all usage is that of the system
        ({**FOUR, "pods": {"a": ("batch", None)}}, [OPENED]),  # unknown: all usage counts
        ({**reserving('{"reservedCPUs": "0-3", "applyPolicy": "ReservedCPUsOnly"}'),
          "outside": 0.0}, [OPENED]),
        ({**reserving('{"resources": {"cpu": "10"}}'), "outside": 0.0}, []),  # no capacity
        ({**reserving("{"), "outside": 0.0}, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["average", "p90"])
def test_a_reservation_is_neither_capacity_nor_are_those_who_use_it_usage(
    fields: dict[str, Any], found: list[tuple[str, str]], kind: Literal["average", "p90"]
) -> None:
    policy = with_policy(usage=kind)
    windows = [hot_window(end, 60.0, policy=policy, **fields) for end in range(1, 10)]
    assert transitions_of(windows) == found


def test_a_new_reservation_makes_no_node_hot_whose_pods_have_room() -> None:
    """Windows from before it count what others used, too."""
    windows = [hot_window(end, 60.0, outside=4.0) for end in range(1, 11)]
    windows += [hot_window(end, 60.0, outside=4.0, **FOUR) for end in range(11, 31)]
    assert transitions_of(windows) == []


def test_uncovered_windows_and_gaps_are_neither_hot_nor_calm() -> None:
    late = [*hot(4), *hot(3, 5, coverage=0.49), *hot(1, 9)]
    assert transitions_of(late[:-1]) == []
    assert transitions_of(late) == [OPENED]
    calm = [*hot(5), *(hot_window(end, 1.0, coverage=0.49) for end in range(6, 20))]
    assert transitions_of(calm) == [OPENED]


def test_an_uncovered_window_is_not_judged_by_the_average_of_those_before() -> None:
    """That average is known, and says nothing new."""
    policy = with_policy(span_seconds=300, open_windows=5)
    # Half of the span is known with the fifth window.
    windows = [*hot(8, policy=policy), *hot(2, 9, coverage=0.49, policy=policy)]
    assert transitions_of(windows) == []
    assert transitions_of([*windows, *hot(1, 11, policy=policy)]) == [OPENED]


@pytest.mark.parametrize("usage", [106.0, 2000.0, 5e6])
@pytest.mark.parametrize("kind", ["average", "p90", "p99"])
def test_usage_that_no_machine_has_is_unknown(
    usage: float, kind: Literal["average", "p90", "p99"]
) -> None:
    """One such window would keep the average of five minutes above any threshold, and the planner
    would evict pods of an idle node."""
    policy = with_policy(usage=kind, span_seconds=300, open_windows=1, high_percent={"cpu": 25.0})
    machine: dict[str, Any] = {"capacity_cpu_cores": 10.0, "policy": policy}
    calm = [hot_window(end, 20.0, points=[2.0] * 30, **machine) for end in range(1, 21)]
    points = [usage / 10] * 30
    calm[11] = hot_window(12, usage, points=points, **machine)
    assert transitions_of(calm) == []


@pytest.mark.parametrize(
    ("measured", "stated", "cpu", "opens"),
    [
        (20.0, 10, 209.0, True),  # Kubelet states new CPUs of a virtual machine after its restart
        (20.0, 10, 211.0, False),
        (None, 20, 209.0, True),  # imported usage
        (None, 20, 211.0, False),
        (None, None, 300.0, True),
    ],
)
def test_the_larger_of_measured_and_stated_capacity_bounds_usage(
    measured: float | None, stated: int | None, cpu: float, opens: bool
) -> None:
    windows = [
        hot_window(end, cpu, capacity_cpu_cores=measured, stated_cores=stated)
        for end in range(1, 6)
    ]
    assert transitions_of(windows) == ([OPENED] if opens else [])


def test_late_and_duplicate_windows_change_nothing() -> None:
    windows = hot(5)
    repeated = [*windows[:4], *windows[:4], windows[3], windows[4], windows[4]]
    first, second = stream_of(windows), stream_of(repeated)
    assert first.transitions() == second.transitions() == [OPENED]
    assert first.bank.encode_state("node-1") == second.bank.encode_state("node-1")


@pytest.mark.parametrize(
    "policy",
    [
        None,
        HotNodePolicy(high_percent={"memory": 99.0}),
        HotNodePolicy(high_percent={"cpu": 10.0}, use_deviation_thresholds=True),
    ],
)
def test_removed_threshold_closes_the_alert(policy: HotNodePolicy | None) -> None:
    stream = stream_of([*hot(5), *hot(2, 6, policy=policy), *hot(5, 8)])
    assert stream.transitions() == [OPENED, CLOSED, OPENED]
    assert stream.records["node-1"][1].reason == "policy"
    assert len({record.id for record in stream.records["node-1"]}) == 2


def test_node_without_policy_has_no_state_of_detection() -> None:
    bank = stream_of(hot(2, policy=None)).bank
    assert bank.encode_state("node-1") == stream_of(hot(2, policy=None)).bank.encode_state("node-1")
    stream = stream_of([*hot(5), *hot(1, 6, policy=None)])
    plain = stream_of(hot(6, policy=None))
    assert stream.bank.encode_state("node-1") == plain.bank.encode_state("node-1")


def test_another_machine_closes_the_alerts_and_starts_anew() -> None:
    windows = [*hot(5), *hot(4, 8, machine="m2")]
    stream = stream_of(windows)
    assert stream.transitions() == [OPENED, CLOSED]
    assert stream.records["node-1"][1].reason == "new machine"
    stream.apply(*hot(1, 12, machine="m2"))
    assert stream.transitions() == [OPENED, CLOSED, OPENED]


def test_deleted_node_closes_its_alerts_once() -> None:
    stream = stream_of(hot(5))
    position = {"generation": 0, "offset": 9, "epoch": 0}
    (record,) = end_alerts((stream.bank, "node-1"), position)
    assert (record.transition, record.reason, record.offset) == ("closed", "node deleted", 9)
    assert end_alerts((stream.bank, "node-1"), position) == []
    assert end_alerts((Bank(), "node-1"), position) == []


# -- laws

CPU = st.none() | st.sampled_from([10.0, 65.0, 66.0, 70.0, 71.0, 86.0, 100.0])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2, 12]),
        CPU,
        st.sampled_from([1.0, 1.0, 1.0, 0.4]),
    ),
    max_size=30,
)
FAST = with_policy(open_windows=2, close_windows=2)


def windows_of(steps: list[tuple[int, float | None, float]], **fields: Any) -> list[Window]:
    windows, end = [], 0
    for step, cpu, coverage in steps:
        end += step
        windows.append(hot_window(end, cpu, coverage=coverage, policy=FAST, **fields))
    return windows


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_detection_equals_the_reference(steps: list[tuple[int, float | None, float]]) -> None:
    rule, expected, end, last = Rule(70.0, 2, 2, 5.0), [], 0, -(10**9)
    for step, cpu, coverage in steps:
        end += step
        if end <= last:
            continue
        last = end
        percent = cpu if coverage >= 0.5 else None
        if change := rule.look(30 * (end - 1), 30 * end, percent):
            expected.append(("node_cpu", change))
    assert transitions_of(windows_of(steps)) == expected


@settings(max_examples=30, deadline=None)
@given(st.data(), st.tuples(STEPS, STEPS, STEPS))
def test_alerts_depend_on_the_windows_of_their_node_alone(
    data: st.DataObject, steps: tuple[list[tuple[int, float | None, float]], ...]
) -> None:
    """Not on the nodes beside it, their order, the calls, or restarts from checkpoints."""
    names = ("node-1", "node-2", "node-3")
    queues = {n: windows_of(own, node=n) for n, own in zip(names, steps, strict=True)}
    alone = {}
    for name, windows in queues.items():
        stream = stream_of(windows)
        alone[name] = (stream.records.get(name, []), stream.open.get(name), states(stream.bank))
    stream = Stream()
    while any(queues.values()):
        ready = [name for name in names if queues[name]]
        chosen = data.draw(st.lists(st.sampled_from(ready), unique=True, min_size=1))
        stream.apply(*(queues[name].pop(0) for name in chosen))
        if data.draw(st.booleans()):
            stream = stream.restarted()
    for name in names:
        records, open_alerts, state = alone[name]
        found = stream.records.get(name, [])
        assert [without_offset(r) for r in found] == [without_offset(r) for r in records]
        assert stream.open.get(name) == open_alerts
        assert states(stream.bank).get(name) == state.get(name)


def states(bank: Bank) -> dict[str, bytes]:
    return {node: bank.encode_state(node) for node in bank.nodes}


def without_offset(record: AlertRecord) -> AlertRecord:
    return msgspec.structs.replace(record, offset=0)
