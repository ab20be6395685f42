"""Gauges: numbers of a node under names of extended resources, from a sample to the node state."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from pipeline.processors.join.sample_join import clean_sample
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.topics.resource_amounts import LARGEST_AMOUNT, MAX_GAUGES, RATES, is_gauge
from pipeline.topics.sample_rows import encode_arrays, read_rows
from pipeline.topics.samples import SampleBatch, encode_samples
from pipeline.topics.windows import decode_window, encode_window
from tests.processors.joined import NODE_ROW, header, joined, pod_row

RATE = next(iter(RATES))
CONNTRACK = "example.com/conntrack"
QUEUE = "example.com/queue_depth"


def sample(**gauges: Any) -> bytes:
    """A sample whose node has these gauges, beside a pod."""
    return encode_samples(SampleBatch(header(), [NODE_ROW | gauges, pod_row("a")]))


def test_gauges_of_a_node_reach_the_average_of_its_window() -> None:
    window = joined(NODE_ROW | {CONNTRACK: 1200.5, QUEUE: 0.0}, pod_row("a", cpu_cores_avg=1.0))
    again = decode_window(encode_window(window))
    plain = joined(NODE_ROW)
    gauges = WindowBatch([again, plain]).average.gauges
    assert [*gauges] == [{CONNTRACK: 1200.5, QUEUE: 0.0}, {}]


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 1e308, LARGEST_AMOUNT + 2.0])
def test_an_impossible_gauge_is_unknown_and_counted(value: float) -> None:
    clean, bad_values = clean_sample(read_rows(sample(**{CONNTRACK: value, QUEUE: 3.0})))
    assert (clean.gauges, bad_values) == ({QUEUE: 3.0}, {CONNTRACK: 1})


def test_a_gauge_that_is_missing_or_null_is_unknown() -> None:
    assert read_rows(sample()).gauges == {}
    assert read_rows(sample(**{CONNTRACK: None})).gauges == {}


def hostile(*names: str) -> bytes:
    """A sample with these statistics, all 1."""
    return encode_arrays(
        header(), kinds=["node"], ids=[""],
        statistics={name: pa.array([1.0]) for name in ("cpu_cores_avg", *names)},
    )  # fmt: skip


def test_of_five_thousand_gauges_the_first_eight_by_name_count() -> None:
    names = [f"example.com/gauge-{number:04}" for number in range(5000)]
    random.Random(1).shuffle(names)
    clean, bad_values = clean_sample(read_rows(hostile(*names)))
    assert [*clean.gauges] == sorted(names)[:MAX_GAUGES]
    assert bad_values == {"gauges": 5000 - MAX_GAUGES}
    assert clean.number("cpu_cores_avg").tolist() == [1.0]


@pytest.mark.parametrize(
    "name",
    ["example.com/" + "x" * 10_000, "a/b/c", "example.com/", "/x", "Example.com/x", RATE],
    ids=["10 kB", "two slashes", "no name", "no domain", "upper case", "a rate"],
)
def test_a_gauge_of_an_invalid_name_is_ignored_and_counted(name: str) -> None:
    assert not is_gauge(name)
    clean, bad_values = clean_sample(read_rows(hostile(name)))
    assert (clean.gauges, bad_values) == ({}, {"gauges": 1})


def test_an_unknown_statistic_is_ignored_as_before() -> None:
    clean, bad_values = clean_sample(read_rows(hostile("pressure_of_tomorrow")))
    assert (clean.gauges, bad_values) == ({}, {})


def test_a_writer_refuses_a_statistic_that_is_no_gauge() -> None:
    with pytest.raises(ValueError, match="has no column"):
        sample(nonsense=1.0)
