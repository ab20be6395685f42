"""Range exports of Prometheus are the traces that they came from; what does not fit is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.backtest.prometheus_ranges import read_range
from pipeline.processors.backtest.prometheus_traces import prometheus_trace
from pipeline.processors.backtest.trace import MEBIBYTE, Trace
from tests.processors.backtest.trace_exports import (
    Matrix,
    answer,
    content,
    exports_of,
    matrix,
    random_trace,
)

T0, STEP = 1700000100, 300
POD = {"namespace": "shop", "pod": "cart", "node": "n1"}


def times(values: list[float | None], first: int = 0) -> dict[int, float]:
    return {
        T0 + STEP * step: value for step, value in enumerate(values, first) if value is not None
    }


def amount(value: float, labels: dict[str, str], resource: str = "cpu") -> Matrix:
    return matrix((labels | {"resource": resource}, times([value, value])))


def exports(cpu: Matrix, **others: Matrix) -> dict[str, Matrix]:
    usual = {
        "requests": amount(0.5, POD | {"container": "main"}),
        "limits": amount(1.0, POD | {"container": "main"}),
        "allocatable": amount(4.0, {"node": "n1"}) + amount(4.0, {"node": "n2"}),
    }
    return {"cpu": cpu} | usual | others


def trace_of(exports: dict[str, Matrix]) -> Trace:
    return prometheus_trace(
        "made", {name: read_range(answer(result)) for name, result in exports.items()}
    )


def refusal(exports: dict[str, Matrix]) -> str:
    with pytest.raises(InvalidRecordError) as caught:
        trace_of(exports)
    assert caught.value.hint
    return caught.value.message


def usage(values: list[float | None], first: int = 0, **labels: str) -> Matrix:
    return matrix((POD | {"container": "main"} | labels, times(values, first)))


def test_containers_are_summed_and_end_when_they_end() -> None:
    """The second container starts a step later and ends earlier; it has no limit."""
    side = {"container": "side"}
    cpu = usage([0.2, 0.2, 0.2, 0.2]) + usage([0.1, 0.3], 1, **side) + usage([9.0], container="")
    cpu += usage([8.0], container="POD")
    trace = trace_of(exports(cpu))
    assert trace.pods == ("shop/cart@n1",)
    assert trace.stay_usage(0)[:, 0] == pytest.approx([200, 300, 500, 200])
    # Rates look back: the first value is that of the step that ends at its time.
    assert (trace.start_seconds, trace.step_seconds, trace.steps) == (T0 - STEP, STEP, 4)
    assert (trace.requests[0, 0], trace.limits[0, 0]) == (500.0, 4000.0)
    limits = exports([])["limits"] + amount(0.5, POD | side)
    assert trace_of(exports(cpu, limits=limits)).limits[0, 0] == 1500.0


def test_gap_of_one_container_makes_the_pod_unknown() -> None:
    """13 steps are missing, of which one hour is held."""
    gap: list[float | None] = [0.1, *[None] * 13, 0.1]
    trace = trace_of(exports(usage([0.2] * 15) + usage(gap, container="side")))
    cpu = trace.stay_usage(0)[:, 0]
    assert np.flatnonzero(np.isnan(cpu)).tolist() == [13]
    assert cpu[[0, 12, 14]] == pytest.approx([300.0] * 3)
    assert "cpu is unknown for 0.1 h" in trace.notes[0]


@pytest.mark.parametrize("text", ["NaN", "nan"])
def test_nan_is_unknown(text: str) -> None:
    cpu = usage([0.2, 0.2, 0.3])
    cpu[0]["values"][1][1] = text
    assert trace_of(exports(cpu)).stay_usage(0)[:, 0] == pytest.approx([200, 200, 300])


def test_pod_is_there_where_every_resource_is() -> None:
    """Memory comes a scrape before the first rate, and the pod of node n2 has none."""
    memory = usage([MEBIBYTE, 2 * MEBIBYTE, 3 * MEBIBYTE, 4 * MEBIBYTE])
    allocatable = exports([])["allocatable"] + amount(8 * MEBIBYTE, {"node": "n1"}, "memory")
    cpu = usage([0.2, 0.2], 1) + usage([0.2, 0.2], node="n2")
    trace = trace_of(exports(cpu, memory=memory, allocatable=allocatable))
    assert (trace.nodes, trace.start.tolist(), trace.end.tolist()) == (("n1",), [1], [3])
    assert (trace.stay_usage(0)[:, 1] / MEBIBYTE).tolist() == [2.0, 3.0]
    assert trace.limits[0].tolist() == [1000.0, 8 * MEBIBYTE]
    assert trace.notes == ("left out: pods without usage of every resource: 1",)


def test_pod_that_moves_is_another_pod() -> None:
    """Without a label `node`, `kube_pod_info` names the node, also when both are there for once."""
    series = usage([0.1, 0.1, 0.2, 0.2, 0.3])
    del series[0]["metric"]["node"]
    stranger = usage([0.1], pod="stranger", node="")
    infos = matrix(
        (POD, times([1.0, 1.0, 1.0])), (POD | {"node": "n2"}, times([1.0, 1.0], 2)),
    )  # fmt: skip
    trace = trace_of(exports(series + stranger, pods=infos))
    assert trace.pods == ("shop/cart@n1", "shop/cart@n2")
    assert (trace.start.tolist(), trace.end.tolist()) == ([0, 2], [2, 5])
    assert trace.stay_usage(1)[:, 0] == pytest.approx([200, 200, 300])
    assert trace.requests[:, 0].tolist() == [500.0, 0.0]
    assert trace.notes == ("left out: pods without a node: 1", "1 pods have no CPU request")


def test_pod_on_a_node_without_allocatable_is_left_out() -> None:
    trace = trace_of(exports(usage([0.1, 0.1]) + usage([0.2], node="gone", pod="other")))
    assert trace.pods == ("shop/cart@n1",)
    assert trace.notes == ("left out: pods on nodes without allocatable: 1",)
    assert refusal(exports(usage([0.2, 0.2], node="gone"))) == "no pod is left"


@given(
    seed=st.integers(0, 2**32), steps=st.integers(2, 20), step_seconds=st.sampled_from([60, 3600])
)
def test_trace_exported_from_prometheus_reads_back_equal(
    seed: int, steps: int, step_seconds: int
) -> None:
    random = np.random.default_rng(seed)
    trace = random_trace(random, steps, step_seconds, mixed=False)
    expected = content(trace, held_steps=3600 // step_seconds)
    back = content(trace_of(exports_of(trace)))
    for stays_of in (back, expected):
        stays_of["stays"] = [
            (node, pod.removeprefix("ns/").removesuffix(f"@{node}"), *rest)
            for node, pod, *rest in stays_of["stays"]
        ]
    assert back == _nearly(expected)


def _nearly(value: Any) -> Any:
    """The same with room for the last bit: cores are millicores by 1000."""
    match value:
        case dict():
            return {key: _nearly(each) for key, each in value.items()}
        case tuple() | list():
            return type(value)(_nearly(each) for each in value)
        case float():
            return pytest.approx(value, rel=1e-14, abs=0)
        case _:
            return value


def changed(position: int, value: Any) -> Matrix:
    series = usage([0.1, 0.2, 0.3])
    series[0]["values"][1][position] = value
    return series


@pytest.mark.parametrize(
    ("cpu", "problem"),
    [
        (changed(1, "+Inf"), "'shop/cart@n1': cpu_m has a value that is negative or above 1e+09"),
        (changed(1, "inf"), "'shop/cart@n1': cpu_m has a value that is negative or above 1e+09"),
        (changed(1, "-0.5"), "'shop/cart@n1': cpu_m has a value that is negative or above 1e+09"),
        (changed(1, "1e300"), "'shop/cart@n1': cpu_m has a value that is negative or above 1e+09"),
        (changed(1, "0.5m"), "0.5m"),
        (changed(1, 0.5), "Expected `str`, got `float`"),
        (changed(0, T0), f"container 'main': {T0}: its series has a sample at this time already"),
        (changed(0, T0 + 0.5), "a time is not a whole second since 1970"),
        (changed(0, 1e300), "a time is not a whole second since 1970"),
        (changed(0, T0 + 299), f"{T0 + 600}: its time is not a multiple of the step, 299 s"),
        (usage([0.1, 0.1], namespace=""), "cpu: a series has no label namespace"),
        (usage([0.1]), "no series has two samples"),
        (usage([0.1, 0.1], node=""), "no series of usage names the node of its pod"),
        (usage([0.1, 0.1]) + usage([0.1]), "its series has a sample at this time already"),
        ([], "the export cpu has no series"),
    ],
)
def test_series_that_do_not_fit(cpu: Matrix, problem: str) -> None:
    assert problem in refusal(exports(cpu))


@pytest.mark.parametrize("name", ["requests", "limits", "allocatable"])
def test_exports_that_are_missing(name: str) -> None:
    given = exports(usage([0.1, 0.1]))
    del given[name]
    assert refusal(given) == f"the export {name} has no series"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not an answer of Prometheus: Input data was truncated"),
        (b"<html>", "not an answer of Prometheus: JSON is malformed"),
        (b"[]", "not an answer of Prometheus: Expected `object`, got `array`"),
        (b"[" * 100_000, "not an answer of Prometheus"),
        (b'{"status":"\xff"}', "not an answer of Prometheus"),
        (
            b'{"status":"error","errorType":"bad_data","error":"exceeded maximum resolution"}',
            "Prometheus answered with an error: bad_data: exceeded maximum resolution",
        ),
        (
            b'{"status":"success","data":{"resultType":"vector","result":[]}}',
            "the answer is a vector, not a matrix",
        ),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{}}]}}',
            "not an answer of Prometheus: Object missing required field `values`",
        ),
        (answer(usage([0.1, 0.2]))[:-20], "not an answer of Prometheus"),
    ],
)
def test_bodies_that_are_no_matrix(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        read_range(body)
    assert problem in caught.value.message
    assert caught.value.hint


def test_parts_in_any_order_make_one_series() -> None:
    late, early = usage([0.3, 0.4], 2), usage([0.1, 0.2])
    answers = {name: read_range(answer(each)) for name, each in exports(late).items()}
    answers["cpu"] += read_range(answer(early))
    trace = prometheus_trace("made", answers)
    assert trace.stay_usage(0)[:, 0] == pytest.approx([100, 200, 300, 400])


def test_numbers_are_read_as_they_are() -> None:
    body = json.dumps(json.loads(answer(usage([0.1, 1e-300])))).encode()
    (series,) = read_range(body)
    assert series.values.tolist() == [0.1, 1e-300]
