"""A trace through a real broker and worker: `springtide.accuracy` has what a backtest finds."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.agents.bank_settings import model_config
from pipeline.kafka.partition import partition_of
from pipeline.local.local_kafka import LocalKafka
from pipeline.processors.accuracy.accuracy_totals import AccuracyTotals
from pipeline.processors.arrays import FloatArray, IntArray
from pipeline.processors.backtest.protocol import TOLERANCE, outcomes, over_machines, score
from pipeline.processors.backtest.replay import Run, Variant, replay
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.join.pod_facts import pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.processors.model.model_config import RESOURCES
from pipeline.settings import ModelSettings, Settings
from pipeline.sources.trace_folders import read_dataset
from pipeline.times import format_time, parse_time
from pipeline.topics.accuracy import AccuracyRecord
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.pods import PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import encode_window
from tests.system.harness import Record, Stage, Worker, copy_windows, create_stage, gather

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

TRACES = Path(__file__).parents[1] / "data" / "traces"
NODES, STEPS = 4, 720
HORIZON_STEPS = 288
MODEL = ModelSettings(predictors=("percentile", "nsigma-v1", "resource-central", "calibrated"))


def part_of_a_trace() -> Trace:
    """The first nodes and steps of the Google trace."""
    (trace,) = (each for each in read_dataset(TRACES, "google_jobs") if each.scenario == "std")
    kept = (trace.node_index < NODES) & (trace.start < STEPS)
    per_stay = ("node_index", "start", "end", "requests", "limits", "series_index", "first_sample")
    columns = {name: getattr(trace, name)[kept] for name in per_stay}
    columns["end"] = np.minimum(columns["end"], STEPS)
    return replace(
        trace, **columns, steps=STEPS, nodes=trace.nodes[:NODES],
        allocatable=trace.allocatable[:NODES],
        pods=tuple(pod for pod, keep in zip(trace.pods, kept, strict=True) if keep),
    )  # fmt: skip


def window_of(trace: Trace, node: int, step: int, offset: int) -> bytes:
    """The window that a join would have written of the exporter's sample of this step."""
    start_ms = (trace.start_seconds + step * trace.step_seconds) * 1000
    end_ms = start_ms + trace.step_seconds * 1000
    name = trace.nodes[node]
    runs = (trace.node_index == node) & (trace.start <= step) & (step < trace.end)
    rows, pods, total = [], {}, np.zeros(2)
    # In the order in which the models add them up, so that the system uses exactly nothing.
    for stay in sorted(np.flatnonzero(runs).tolist(), key=lambda stay: trace.pods[stay]):
        # As in a backtest a pod without a resource uses nothing of it.
        usage = np.nan_to_num(trace.stay_usage(stay)[step - trace.start[stay]]) / [1000.0, 1.0]
        uid, total, (cpu, memory) = trace.pods[stay], total + usage, usage.tolist()
        rows.append(
            {"kind": "pod", "id": uid, "coverage": 1.0, "cpu_cores_p90": cpu,
             "memory_bytes_p90": memory}
        )  # fmt: skip
        millicores, memory_bytes = trace.requests[stay].astype(int).tolist()
        began = trace.start_seconds + int(trace.start[stay]) * trace.step_seconds
        pods[uid] = pod_row(
            PodRecord(
                node=name, uid=uid, cgroup_uid=uid, namespace="trace", name=uid, pod_class="prod",
                phase="Running", created_at=format_time(began), started_at=format_time(began),
                requests=Resources(cpu_millicores=millicores, memory_bytes=memory_bytes),
            )
        )  # fmt: skip
    node_row = {
        "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_p90": float(total[0]),
        "memory_bytes_p90": float(total[1]), "capacity_cpu_cores": 1e6,
        "capacity_memory_bytes": 2.0**50,
    }  # fmt: skip
    header = SampleHeader(
        node=name, machine_id="m", boot_id="b", epoch=1, sequence=step + 1,
        window_start_ms=start_ms, window_end_ms=end_ms,
    )  # fmt: skip
    large = Resources(cpu_millicores=10**9, memory_bytes=2**50)
    record = NodeRecord(node=name, uid=name, capacity=large, allocatable=large)
    joined = join(
        read_rows(encode_samples(SampleBatch(header, [node_row, *rows]))),
        NodeObjects(record, pods), Strategy(), sample_offset=offset, appended_ms=end_ms + 250,
    )  # fmt: skip
    return encode_window(joined)


def log_of(trace: Trace, stage: Stage) -> dict[int, list[Record]]:
    """The windows of all nodes, by partition."""
    logs: dict[int, list[Record]] = defaultdict(list)
    for step in range(trace.steps):
        for node, name in enumerate(trace.nodes):
            at = partition_of(name, stage.partitions)
            offset = len(logs[at])
            value = window_of(trace, node, step, offset)
            logs[at].append(Record(at, offset, name.encode(), value, 0.0, {}))
    return logs


async def accuracy_of(trace: Trace, broker: LocalKafka, folder: Path) -> list[AccuracyRecord]:
    """What a worker publishes that reads the windows of a trace."""
    stage = await create_stage(broker.bootstrap_servers, partitions=2)
    await copy_windows({"windows": log_of(trace, stage)}, stage)
    options = (
        "--horizon-seconds", "86400", "--accuracy-interval-seconds", "3600",
        "--predictors", f"[{', '.join(MODEL.predictors)}]",
    )  # fmt: skip
    worker = Worker(stage, folder, options=options)
    worker.start()
    # A worker learns 2,880 windows here, which takes minutes on a busy machine.
    logs = await gather(stage, [], timeout=600)
    assert worker.stop() == 0
    return [
        decode_json(AccuracyRecord, record.value or b"")
        for records in logs["accuracy"].values()
        for record in records
    ]


async def test_accuracy_of_a_trace_is_that_of_a_backtest(
    broker: LocalKafka, tmp_path: Path
) -> None:
    trace = part_of_a_trace()
    records = await accuracy_of(trace, broker, tmp_path)
    made = sorted({parse_time(record.made_at) for record in records})
    at: IntArray = np.array(
        [round((end - trace.start_seconds) / trace.step_seconds) - 1 for end in made], np.int64
    )
    # One in an hour, as long as the horizon is in the trace.
    assert (at[0], at[-1] <= STEPS - HORIZON_STEPS, {*np.diff(at[1:])}) == (0, True, {12})
    expected = outcomes(trace, at, HORIZON_STEPS)
    config = model_config(Settings(model=MODEL))
    runs = [
        Run(Variant(name=name, config=replace(config, strategy=Strategy(predictor=name))), at)
        for name in MODEL.predictors
    ]
    predictions = replay(trace, runs)
    column = {end: number for number, end in enumerate(made)}
    assert len(records) == NODES * len(at)
    for record in records:
        node, step = trace.nodes.index(record.node), column[parse_time(record.made_at)]
        requests = both(record.requests.cpu, record.requests.memory)
        highest = np.minimum(both(record.highest.cpu, record.highest.memory), requests)
        np.testing.assert_allclose(requests, expected.requests[node, step])
        np.testing.assert_allclose(highest, expected.oracle[node, step], rtol=1e-9)
        for name, predicted in zip(MODEL.predictors, predictions, strict=True):
            judged = record.predictors[name]
            peaks = both(judged.cpu.peak, judged.memory.peak)
            # Without requests there is nothing to judge.
            expected_peaks = np.where(requests > 0.0, predicted[node, step], peaks)
            np.testing.assert_allclose(peaks, expected_peaks, atol=1.0)
    totals = AccuracyTotals()
    for record in sorted(records, key=lambda record: record.made_at):
        totals.add(record)
    for group, found in totals.scores():
        r, predicted = RESOURCES.index(group.resource), predictions[runs_of(runs, group.predictor)]
        scores = over_machines(
            score(
                predicted[..., r], expected.requests[..., r], expected.oracle[..., r],
                float(TOLERANCE[r]),
            )
        )  # fmt: skip
        assert found.points == scores.points
        assert found.savings == pytest.approx(scores.savings, rel=1e-6, nan_ok=True)
        assert found.violation == pytest.approx(scores.violation, abs=1e-12, nan_ok=True)


def both(cpu: float | None, memory: float | None) -> FloatArray:
    return np.array([cpu, memory], np.float64)


def runs_of(runs: list[Run], name: str) -> int:
    return [run.variant.name for run in runs].index(name)
