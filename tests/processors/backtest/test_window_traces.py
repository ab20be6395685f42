"""Windows of a cluster that ran a trace are this trace; what they do not tell is unknown."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InvalidRecordError
from pipeline.processors.archive.archive_rows import LoggedWindow, archive_rows
from pipeline.processors.backtest import window_log
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.trace_tables import read_traces
from pipeline.processors.backtest.window_log import COLUMNS, WindowLog
from pipeline.processors.backtest.window_traces import window_trace
from pipeline.topics.pod_columns import DecodedPods, encode_pod_columns
from pipeline.topics.windows import WindowRows, departure, retraction
from tests.processors.backtest.trace_exports import content, random_trace
from tests.processors.backtest.trace_files import (
    METADATA,
    PLACEMENT,
    SERIES,
    series_row,
    stay_row,
    table_of,
)
from tests.processors.backtest.trace_log import MEMORY_BYTES, log_of

PER_STAY = ("node_index", "start", "end", "series_index", "first_sample")


def trace_of(records: Iterable[LoggedWindow], size: int = 7, statistic: str = "p90") -> Trace:
    """The trace of these records, in batches of this size."""
    log, rest = WindowLog(statistic), [*records]
    while rest:
        log.add(archive_rows(rest[:size]).select(COLUMNS))
        del rest[:size]
    return window_trace("made", log)


def played(usage: dict[str, list[int]], steps: int) -> Trace:
    """A trace of pods, each on a node of its own, `n-` and its name, from the first step on."""
    metadata = METADATA | {"steps": str(steps)}
    series = [series_row(name, samples) for name, samples in usage.items()]
    placement = [
        stay_row(name, name, 0, len(samples), node=f"n-{name}") for name, samples in usage.items()
    ]
    (trace,) = read_traces(
        "made", table_of(series, SERIES, metadata), table_of(placement, PLACEMENT, metadata)
    )
    return trace


def cpu(trace: Trace, pod: str) -> list[float | None]:
    """Millicores of a pod, None unknown."""
    (stay,) = (i for i, name in enumerate(trace.pods) if name.split()[-1] == pod)
    return [None if np.isnan(each) else each for each in trace.stay_usage(stay)[:, 0].tolist()]


def of_class(record: LoggedWindow, pod_class: str | None) -> LoggedWindow:
    """The window of one pod of this class, None for a pod without a record."""
    request = (None if pod_class is None else 500.0,)
    facts = encode_pod_columns(DecodedPods(pod_class=(pod_class,), request_cpu_millicores=request))
    rows = WindowRows(record.window.rows.sample, facts)
    return record._replace(window=msgspec.structs.replace(record.window, rows=rows))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(2, 20), step_seconds=st.sampled_from([60, 300]),
    size=st.integers(1, 40),
)  # fmt: skip
def test_the_log_of_a_trace_reads_back_as_the_trace(
    seed: int, steps: int, step_seconds: int, size: int
) -> None:
    random = np.random.default_rng(seed)
    trace = random_trace(random, steps, step_seconds, mixed=False)
    workloads = random.choice(["", "Deployment/trace/cart", "CronJob/trace/night"], len(trace.pods))
    unset = random.random((len(trace.pods), 2)) < 0.3
    allocatable = np.stack([trace.allocatable[:, 0], np.full(len(trace.nodes), MEMORY_BYTES)], 1)
    has_resource = trace.limits.any(axis=0)
    trace = replace(
        trace,
        workloads=tuple(workloads.tolist()),
        pools=tuple(random.choice(["a", "b"], len(trace.nodes)).tolist()),
        has_assumed_limit=unset,
        limits=np.where(unset & has_resource, allocatable[trace.node_index], trace.limits),
    )
    records = log_of(trace)
    order = random.permutation(len(records)).tolist()
    back = trace_of([records[place] for place in order], size)
    expected = content(trace, held_steps=3600 // step_seconds)
    found = content(back)
    found["stays"] = [(node, pod.split()[-1], *rest) for node, pod, *rest in found["stays"]]
    assert {**found, "stays": None} == {**expected, "stays": None}
    for one, other in zip(found["stays"], expected["stays"], strict=True):
        assert one[:-1] == other[:-1]
        for own, theirs in zip(one[-1], other[-1], strict=True):
            assert own == pytest.approx(theirs, rel=1e-14, abs=0)
    assert back.pools == trace.pools
    assert back.set_limits[:, has_resource].tolist() == trace.set_limits[:, has_resource].tolist()


def test_a_missing_window_is_held_for_an_hour_and_then_unknown() -> None:
    trace = played({"a": [100] * 20}, 20)
    kept = [record for step, record in enumerate(log_of(trace)) if not 3 <= step < 17]
    samples = cpu(trace_of(kept), "a")
    assert samples == [*[100.0] * 15, None, None, *[100.0] * 3]


def test_a_pod_ends_when_its_node_has_a_window_without_it() -> None:
    """Pod `a` is away at steps 3 and 4; its node has a window at step 4 alone."""
    both = played({"a": [100] * 8, "b": [100] * 8}, 8)
    both = replace(both, nodes=("n",), node_index=np.zeros(2, np.int64))
    alone = replace(both, limits=both.limits[1:], requests=both.requests[1:], pods=("b",),
                    **{name: getattr(both, name)[1:] for name in PER_STAY})  # fmt: skip
    records = [*log_of(both)[:3], log_of(alone)[4], *log_of(both)[5:]]
    back = trace_of(records)
    stays = zip(back.pods, back.start.tolist(), back.end.tolist(), strict=True)
    assert [*stays] == [("trace/pod a", 0, 3), ("trace/pod b", 0, 8), ("trace/pod a", 5, 8)]
    assert back.earlier_stays.tolist() == [-1, -1, 0]
    assert not np.isnan(back.usage[:, 0]).any()


def test_a_node_that_fell_silent_is_unknown_to_the_end() -> None:
    """Its pod `a` was there in its last window; pod `b` of another node ended long before."""
    trace = played({"a": [100] * 5, "b": [100] * 3, "c": [100] * 20}, 20)
    records = [
        record for record in log_of(trace)
        if record.window.header.node != "n-a"
        or record.window.header.sequence <= 5
    ]  # fmt: skip
    back = trace_of(records)
    assert cpu(back, "a") == [*[100.0] * 17, *[None] * 3]  # 12 steps are held
    assert cpu(back, "b") == [100.0] * 3
    assert "nodes that fell silent, and whose usage is unknown from then on: 1" in back.notes
    last_ms = max(
        record.window.header.window_end_ms
        for record in records
        if record.window.header.node == "n-a"
    )
    for end in (departure, retraction):
        gone = LoggedWindow(0, 9_999, end("n-a", last_ms + 1000))
        assert cpu(trace_of([gone, *records]), "a") == [100.0] * 5
        outdated = LoggedWindow(0, 9_999, end("n-a", last_ms - 1000))
        assert len(cpu(trace_of([outdated, *records]), "a")) == 20


def test_repeated_windows_count_once_and_short_ones_by_the_highest() -> None:
    records = log_of(played({"a": [100, 200, 300]}, 3))
    assert cpu(trace_of([*records, *records]), "a") == [100.0, 200.0, 300.0]
    half = played({"a": [250, 50]}, 2)
    half = replace(half, step_seconds=150, start_seconds=half.start_seconds + 300)
    assert cpu(trace_of([records[0], records[2], *log_of(half)][:4]), "a") == [100.0, 250.0, 300.0]


@pytest.mark.parametrize(
    ("pod_class", "note"),
    [
        ("batch", "left out: pods of Mid, Batch and Free: 1"),
        (None, "left out: pods without a record, whose requests are unknown: 1"),
    ],
)
def test_pods_of_other_classes_and_without_a_record_are_left_out(
    pod_class: str | None, note: str
) -> None:
    records = log_of(played({"a": [100] * 3}, 3))
    others = [of_class(record, pod_class) for record in log_of(played({"b": [7] * 3}, 3))]
    back = trace_of([*records, *others])
    assert back.pods == ("trace/pod a",)
    assert note in back.notes
    with pytest.raises(InvalidRecordError, match="made: no window has a pod of Prod with a record"):
        trace_of(others)
    assert trace_of([of_class(record, "none") for record in records]).pods == ("a",)


def test_unknown_memory_of_all_pods_is_no_resource() -> None:
    back = trace_of(log_of(played({"a": [100, 200]}, 2)))
    assert back.resources == ("cpu",)
    assert "no usage of memory is known" in back.notes


def test_unknown_usage_of_both_resources_is_no_resource() -> None:
    trace = played({"a": [100, 300], "b": [300, 100]}, 2)
    silent = replace(trace, usage=np.full_like(trace.usage, np.nan))
    result = trace_of(log_of(silent))
    assert result.resources == ()
    assert "no usage of cpu is known" in result.notes


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("node", None, "a row has no node"),
        ("window_start", None, "a row has no window_start"),
        ("window_end", None, "a row has no window_end"),
        ("id", None, "a row has no id"),
        ("kind", "node", "two rows about its node"),
        ("log_offset", 0, "two rows about its node"),
    ],
)
def test_rows_that_no_log_has_are_refused(column: str, value: object, problem: str) -> None:
    batch = archive_rows(log_of(played({"a": [100, 300]}, 2))).select(COLUMNS)
    place = batch.schema.get_field_index(column)
    values = pa.array([value] * len(batch), batch.schema.field(place).type)
    with pytest.raises(InvalidRecordError, match=problem) as caught:
        WindowLog("p90").add(batch.set_column(place, batch.schema.field(place), values))
    assert caught.value.hint


def test_another_statistic_stands_in_for_a_missing_one() -> None:
    records = log_of(played({"a": [100, 200]}, 2))
    assert cpu(trace_of(records, statistic="avg"), "a") == [100.0, 200.0]


def test_too_many_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_log, "MOST_SAMPLES", 10)
    with pytest.raises(InvalidRecordError, match="more than 10 samples"):
        trace_of(log_of(played({"a": [100] * 11}, 11)))
