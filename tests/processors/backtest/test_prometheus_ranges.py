"""Answers of Prometheus with series over time: as it writes them, and as others may."""

import json
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.backtest.prometheus_ranges import read_columns, read_labels

Values = list[list[Any]]


def _answer(*values: Values, separators: tuple[str, str] = (",", ":")) -> bytes:
    series = [{"metric": {"pod": f"pod-{i}"}, "values": own} for i, own in enumerate(values)]
    data = {"resultType": "matrix", "result": series}
    return json.dumps({"status": "success", "data": data}, separators=separators).encode()


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_values_of_plain_and_spaced_answers_are_the_same(separators: tuple[str, str]) -> None:
    random = np.random.default_rng(3)
    texts = [repr(value) for value in random.lognormal(0.0, 30.0, 2000).tolist()]
    special = [[1_700_000_000, "NaN"], [1_700_000_060, "+Inf"], [1_700_000_120, "-1e-7"]]
    values: list[Values] = [
        [[1_700_000_000 + 60 * i, text] for i, text in enumerate(texts)],
        [],
        special,
        [[1_700_000_000, "0"]],
    ]
    # More series than are read at once.
    values += [[[1_700_000_000, str(i)]] for i in range(1500)]
    columns = read_columns(_answer(*values, separators=separators))
    names = [labels["pod"] for labels in columns.labels]
    assert names == [f"pod-{i}" for i in range(len(values)) if i != 1]
    assert columns.counts.tolist() == [len(own) for own in values if own]
    points = [point for own in values for point in own]
    assert columns.seconds.tolist() == [seconds for seconds, _ in points]
    np.testing.assert_array_equal(columns.values, [float(text) for _, text in points])


@pytest.mark.parametrize(
    "values",
    [
        [[1_700_000_000, "1,5"]],
        [[1_700_000_000, "one"]],
        [[1_700_000_000, ""]],
        [[1_700_000_000, 1.5]],
        [["1700000000", "1.5"]],
        [["1700000000", 1.5]],
        [[1_700_000_000]],
        [[1_700_000_000, "1", "2"]],
        [1_700_000_000, "1"],
        [[[1_700_000_000, "1"]]],
        [[]],
        [[1_700_000_000.5, "1"]],
        [[1_700_000_000, "1"], [None, "2"]],
    ],
)
def test_other_points_are_refused(values: Any) -> None:
    with pytest.raises(InvalidRecordError):
        read_columns(_answer([[1_700_000_000, "0"]], values))


def test_value_that_is_no_number_is_named_by_its_series() -> None:
    with pytest.raises(InvalidRecordError, match="pod-1"):
        read_columns(_answer([[1_700_000_000, "0"]], [[1_700_000_000, "one"]]))


def test_labels_are_read_once_each_and_missing_ones_are_empty() -> None:
    series = [
        {"__name__": "kube_pod_info", "pod": "a", "node": "n1", "uid": "1"},
        {"__name__": "kube_pod_info", "pod": "a", "node": "n1", "uid": "2"},
        {"__name__": "kube_pod_info", "pod": "b"},
    ]
    warnings: set[str] = set()
    body = {"status": "success", "data": series, "warnings": ["partial"]}
    labels = read_labels(json.dumps(body).encode(), ("pod", "node"), warnings)
    assert labels == [{"pod": "a", "node": "n1"}, {"pod": "b", "node": ""}]
    assert warnings == {"partial"}


@pytest.mark.parametrize(
    "body", [b'{"status":"success"}', b'{"status":"success","data":{}}', b"<html>", b"{}"]
)
def test_other_answers_with_labels_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        read_labels(body, ("pod",))
