"""The fast protocol gives what the slow one gives."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.backtest.protocol import (
    TOLERANCE,
    hindsight_savings,
    outcomes,
    over_machines,
    score,
    scored_steps,
    window_max,
)
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from pipeline.processors.backtest.trace_tables import read_traces
from tests.processors.backtest import reference_protocol
from tests.processors.backtest.trace_files import (
    PLACEMENT,
    SERIES,
    Row,
    random_tables,
    series_row,
    stay_row,
    table_of,
    with_gaps,
)

RESOURCES = ("cpu", "memory")
UNITS = (1, int(MEBIBYTE))


def trace_of(series: list[Row], stays: list[Row]) -> Trace:
    return read_traces("made", table_of(series, SERIES), table_of(stays, PLACEMENT))[0]


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(2, 40),
    nodes=st.integers(1, 4),
    horizon=st.integers(1, 39),
    burn_in=st.integers(0, 10),
    stride=st.integers(1, 5),
    resource=st.integers(0, 1),
    has_gaps=st.booleans(),
)
def test_scores_are_those_of_the_slow_protocol(
    seed: int, steps: int, nodes: int, horizon: int, burn_in: int, stride: int, resource: int,
    has_gaps: bool,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    series, placement = random_tables(random, steps, nodes, series=6, step_seconds=900)
    if has_gaps:
        series = with_gaps(random, series)
    (trace,) = read_traces("made", series, placement)
    at = scored_steps(steps, horizon, burn_in, stride)
    assert at.tolist() == [
        step for step in range(burn_in, steps, stride) if step + horizon <= steps - 1
    ]
    happened = outcomes(trace, at, horizon)
    unit = UNITS[resource]
    predictions = random.integers(0, 3000, (len(trace.nodes), len(at))).astype(float)
    predictions[random.random(predictions.shape) < 0.1] = np.nan
    # Exactly at the tolerance, and just beyond.
    edge = happened.oracle[..., resource] / unit - random.choice([0, 1, 2], predictions.shape)
    near = random.random(predictions.shape) < 0.5
    predictions = np.where(near & (edge >= 0), edge, predictions)

    def predict(node: str, step: int) -> Fraction | None:
        value = predictions[trace.nodes.index(node), at.tolist().index(step)]
        return None if np.isnan(value) else Fraction(value)

    expected = reference_protocol.judge(
        series, placement, RESOURCES[resource], at.tolist(), horizon, predict
    )
    machines = score(
        predictions * unit,
        happened.requests[..., resource],
        happened.oracle[..., resource],
        TOLERANCE[resource],
    )
    assert list(trace.nodes) == list(expected)
    for number, machine in enumerate(expected.values()):
        assert machines.points[number] == machine.points
        for name in ("violation", "severity", "savings", "oracle_savings"):
            wanted, got = getattr(machine, name), getattr(machines, name)[number]
            assert np.isnan(got) if wanted is None else got == pytest.approx(float(wanted))


@given(
    seed=st.integers(0, 2**32), machines=st.integers(1, 4), points=st.integers(1, 6),
    percent=st.integers(0, 100),
)  # fmt: skip
def test_hindsight_savings_are_those_of_the_best_factor(
    seed: int, machines: int, points: int, percent: int
) -> None:
    random = np.random.default_rng(seed)
    shape = (machines, points)
    requests = random.integers(2, 50, shape).astype(float)
    oracle = np.floor(requests * random.random(shape))
    predictions = random.integers(1, 60, shape).astype(float)
    listed = {
        str(k): [
            (Fraction(p), int(r), int(o))
            for p, r, o in zip(predictions[k], requests[k], oracle[k], strict=True)
        ]
        for k in range(machines)
    }
    # No rate lies on the limit itself, where the last bit of a sum decides.
    rate = Fraction(percent, 100) + Fraction(1, 10_007)
    expected = reference_protocol.hindsight_savings(listed, rate)
    assert hindsight_savings(predictions, requests, oracle, 1.0, float(rate)) == pytest.approx(
        float(expected)
    )


@given(values=st.lists(st.integers(0, 9), min_size=1, max_size=30), length=st.integers(1, 30))
def test_window_max_is_the_maximum_of_each_window(values: list[int], length: int) -> None:
    length = min(length, len(values))
    windows = [values[i : i + length] for i in range(len(values) - length + 1)]
    result = window_max(np.array(values, np.float64)[:, None], length)
    assert result[:, 0].tolist() == [max(window) for window in windows]


def test_oracle_counts_running_pods_only() -> None:
    """A pod that leaves counts until it has left; a pod that arrives later does not count."""
    series = [
        series_row("leaves", [100, 100, 300, 400, 900], cpu_request_m=1000),
        series_row("stays", [10, 20, 30, 40, 50], cpu_request_m=1000),
        series_row("comes", [800] * 5, cpu_request_m=1000),
    ]
    stays = [
        stay_row("leaves", "leaves", 0, 3),
        stay_row("stays", "stays", 0, 5),
        stay_row("comes", "comes", 1, 5),
    ]
    happened = outcomes(trace_of(series, stays), np.array([0, 1]), 3)
    assert happened.requests[0, :, 0].tolist() == [2000.0, 3000.0]
    assert happened.oracle[0, :, 0].tolist() == [330.0, 1130.0]


def test_pod_that_returns_counts_where_it_ran_when_the_prediction_was_made() -> None:
    """As one pod: its absence of at most half an hour, six steps, is not its end. It does not count
    for the predictions of its absence."""
    series = [series_row("s", [100] * 2 + [0] * 6 + [400, 100, 0])]
    stays = [stay_row("a", "s", 0, 2), stay_row("a", "s", 8, 10)]
    happened = outcomes(trace_of(series, stays), np.array([0, 1, 2, 7, 8]), 2)
    assert happened.oracle[0, :, 0].tolist() == [100.0, 0.0, 0.0, 0.0, 100.0]
    happened = outcomes(trace_of(series, stays), np.array([1, 2]), 8)
    assert happened.oracle[0, :, 0].tolist() == [400.0, 0.0]


def test_pod_that_returns_after_half_an_hour_is_another_one() -> None:
    series = [series_row("s", [100] * 2 + [0] * 6 + [400, 100, 0])]
    stays = [stay_row("a", "s", 0, 1), stay_row("a", "s", 8, 10)]
    happened = outcomes(trace_of(series, stays), np.array([0]), 9)
    assert happened.oracle[0, :, 0].tolist() == [0.0]


def test_prediction_before_unknown_usage_is_not_scored() -> None:
    """From step 14 to 16 the pod's usage is unknown. It is no zero while the pod runs."""
    unknown = [100, 200, *[None] * 15, 50, 60]
    series = [series_row("known", [10] * 19), series_row("unknown", unknown)]
    stays = [
        stay_row("a", "known", 0, 19),
        stay_row("b", "unknown", 0, 19, node="node-1"),
        stay_row("c", "unknown", 0, 15, node="node-2"),
    ]
    trace = trace_of(series, stays)
    at = np.arange(17)
    happened = outcomes(trace, at, 2)
    known = [np.flatnonzero(~np.isnan(row)).tolist() for row in happened.oracle[..., 0]]
    assert known == [[*range(17)], [*range(12), 16], [*range(12), 14, 15, 16]]
    predictions = np.full((3, 17), 70.0)
    machines = score(predictions, happened.requests[..., 0], happened.oracle[..., 0], 1.0)
    # The pod of the third node has ended after its usage became unknown.
    assert machines.points.tolist() == [17, 13, 13]
    assert machines.violation == pytest.approx([0.0, 12 / 13, 12 / 13])
    assert machines.savings == pytest.approx(np.full(3, 430 / 500))
    assert machines.oracle_savings == pytest.approx(
        [490 / 500, (12 * 300 + 440) / 13 / 500, (12 * 300 + 500) / 13 / 500]
    )


def test_usage_is_cut_at_the_limit_and_the_oracle_at_the_requests() -> None:
    series = [series_row("high", [0, 5000], cpu_request_m=500, cpu_limit_m=600)]
    trace = trace_of(series, [stay_row("pod", "high", 0, 2)])
    assert trace.usage[:, 0].tolist() == [0.0, 600.0]
    assert outcomes(trace, np.array([0]), 1).oracle[0, 0, 0] == 500.0


def test_machine_without_points_does_not_count() -> None:
    requests = np.array([[0.0, 0.0], [10.0, 0.0]])
    machines = score(np.zeros((2, 2)), requests, requests, 1.0)
    assert machines.points.tolist() == [0, 1]
    fleet = over_machines(machines)
    assert (fleet.machines, fleet.points, fleet.violation) == (1, 1, 1.0)
    assert (fleet.severity, fleet.savings) == (1.0, 1.0)


def test_unknown_prediction_gives_nothing_away() -> None:
    fleet = over_machines(score(np.array([[np.nan]]), np.array([[9.0]]), np.array([[5.0]]), 1.0))
    assert (fleet.violation, fleet.savings, fleet.unknown) == (0.0, 0.0, 1.0)


def test_fleet_without_points_has_no_scores() -> None:
    nothing = np.zeros((2, 0))
    fleet = over_machines(score(nothing, nothing, nothing, 1.0))
    assert fleet.machines == 0
    assert np.isnan([fleet.violation, fleet.violation_p90, fleet.savings, fleet.of_oracle]).all()


def test_machines_with_the_same_series_count_as_one_in_errors() -> None:
    requests = np.full((6, 1), 10.0)
    oracle = np.array([[9.0]] * 3 + [[1.0]] * 3)
    machines = score(np.full((6, 1), 5.0), requests, oracle, 1.0)
    assert over_machines(machines).violation_error == pytest.approx(0.5 / 6**0.5)
    assert over_machines(machines, copies=3.0).violation_error == pytest.approx(0.5 / 2**0.5)


def test_copies_are_pods_of_a_series_at_a_time() -> None:
    series = [series_row(name, [1] * 10) for name in ("a", "b")]
    alone = [stay_row("a.0", "a", 0, 5), stay_row("a.1", "a", 5, 10), stay_row("b", "b", 0, 10)]
    assert trace_of(series, alone).copies == 1.0
    again = [*alone, *(row | {"pod": f"{row['pod']}-2", "node": "node-1"} for row in alone)]
    assert trace_of(series, again).copies == 2.0
