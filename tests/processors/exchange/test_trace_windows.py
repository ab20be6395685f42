"""A trace gives the models that a worker would have learned."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import InvalidRecordError
from pipeline.processors.exchange.trace_windows import TYPES, read_trace
from pipeline.processors.explain.model_state_text import peaks_table
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.kubernetes.pod_classes import CLASSES
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES, ModelConfig
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.sources.simulated_nodes import SimulatedNode
from pipeline.times import format_time
from pipeline.topics.nodes import Strategy
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window

NODE = "node-1"
START = 1_700_000_000 // 300 * 300
PLAIN = "usageWithoutPageCache"
Row = dict[str, Any]


def table_of(rows: list[Row]) -> pa.Table:
    names = {name: None for row in rows for name in row}
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], TYPES[name]) for name in names}
    )


def learned(windows: Iterator[Window] | list[Window], config: ModelConfig | None = None) -> Bank:
    bank = Bank(config)
    bank.apply(WindowBatch(list(windows)).training("p90"))
    return bank


def simulated(windows: int) -> tuple[list[Window], list[Row]]:
    """Windows as the join makes them of samples and pods, and the same as rows of a trace."""
    node = SimulatedNode(seed=3, index=1, pods=12)
    joined, rows = [], []
    for number in range(windows):
        end = START + 300 * number
        sample = node.sample(end - 300, end, epoch=0, sequence=number)
        header = SampleHeader(
            node=NODE, machine_id="", boot_id="", epoch=0, sequence=number,
            window_start_ms=1000 * (end - 300), window_end_ms=1000 * end,
        )  # fmt: skip
        # A trace does not name containers.
        pods = {
            uid: pod_row(pod)._replace(containers=())
            for uid, pod in node.pods(end - 300, end).items()
        }
        joined.append(
            join(
                read_rows(encode_samples(SampleBatch(header, sample.rows))),
                NodeObjects(None, pods), Strategy(), sample_offset=number, appended_ms=1000 * end,
            )
        )  # fmt: skip
        for row in sample.rows:
            facts: Row = {}
            if row["kind"] == "pod":
                facts = {k: v for k, v in pods[row["id"]]._asdict().items() if k in TYPES}
                facts["pod_class"] = CLASSES[facts["pod_class"]]
            rows.append({"window_end": format_time(end), **row, **facts})
    return joined, rows


def test_a_trace_gives_the_models_of_a_worker_bit_for_bit() -> None:
    """The offline fit goes the worker's way."""
    joined, rows = simulated(40)
    expected = learned(joined).encode_state(NODE)
    assert learned(read_trace(table_of(rows), NODE, Strategy())).encode_state(NODE) == expected
    backwards = table_of(rows[::-1])
    assert learned(read_trace(backwards, NODE, Strategy())).encode_state(NODE) == expected


def simple(cores: list[float | None], step: int = 300, **more: Any) -> list[Row]:
    return [
        {"window_end": format_time(START + step * i), "cpu_cores_avg": used, **more}
        for i, used in enumerate(cores)
    ]


def test_a_time_and_a_column_of_usage_are_enough() -> None:
    table = table_of(simple([1.0, 2.0, None, 4.0]))
    windows = list(read_trace(table, NODE, Strategy()))
    assert [w.header.window_end_ms - w.header.window_start_ms for w in windows] == [300_000] * 4
    peaks = learned(windows).peaks([NODE])[0]
    assert peaks.samples[ENTITIES.index("node")].tolist() == [3, 0]
    assert peaks.predictors["percentile"].raw[0, 0] >= 4.0
    lines = peaks_table(peaks)
    assert lines[0].split() == ["ENTITY", "RESOURCE", "PERCENTILE", "NSIGMA-V1"]
    assert [line.split()[:2] for line in lines[1:3]] == [["node", "cpu"], ["system", "cpu"]]
    assert lines[-1] == "prod leaves unused, by percentile: cpu -, memory -"


def test_times_may_be_timestamps_and_windows_may_be_missing() -> None:
    rows = simple([1.0, 2.0, 3.0])
    del rows[1]
    rows += simple([5.0] * 6)[4:]
    table = table_of(rows)
    times = pa.array([START, START + 600, START + 1200, START + 1500], pa.timestamp("s", tz="UTC"))
    result = table.set_column(0, "window_end", times)
    one, other = (
        learned(read_trace(t, NODE, Strategy())).encode_state(NODE) for t in (table, result)
    )
    assert one == other
    ends = [w.header.window_end_ms // 1000 for w in read_trace(table, NODE, Strategy())]
    assert ends == [START, START + 600, START + 1200, START + 1500]


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        ([{"cpu_cores_avg": 1.0}], {}, "a trace has a column window_end, which is not there"),
        (simple([1.0]), {}, "two windows at least, not 1"),
        (simple([1.0, 2.0], step=90_000), {}, "2023-11-.*: window is not longer than 0 s"),
        (simple([1.0, 2.0], kind="pod", id="a"), {}, "2023-11-.*: batch has 0 node rows, not one"),
        (simple([1.0, 2.0]) * 2, {}, "2023-11-.*: batch has 2 node rows, not one"),
        (simple([1.0, 2.0], kind="pot"), {}, "batch has 0 node rows"),
        (simple([1.0, 2.0], kind=None) + simple([1.0, 2.0], kind="pod", id="a", pod_class="gold"),
         {}, "pod_class of 'a' is 'gold'"),
        ([*simple([1.0, 2.0]), {"window_end": "soon"}], {}, "window_end: not an RFC 3339 time"),
        ([*simple([1.0, 2.0]), {"window_end": None}], {}, "a row has no window_end"),
        (simple([1.0, 2.0]), {"gpu": [1, 2]}, "unknown column 'gpu'"),
        (simple([1.0, 2.0]), {"cpu_cores_avg": [1, 2]}, "two columns of one name"),
        (simple([1.0, 2.0]), {"cpu_cores_max": ["many", "more"]},
         "column cpu_cores_max: .*double"),
    ],
)  # fmt: skip
def test_an_invalid_trace_is_refused(
    rows: list[Row], columns: dict[str, list[Any]], says: str
) -> None:
    table = table_of(rows)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    with pytest.raises(InvalidRecordError, match=says):
        list(read_trace(table, NODE, Strategy()))
