"""The log of a cluster that ran a trace, as the join writes it."""

from collections.abc import Iterator

import numpy as np

from pipeline.kafka.partition import partition_of
from pipeline.processors.archive.archive_rows import LoggedWindow
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.join.pod_facts import PodRow, pod_row
from pipeline.processors.join.sample_join import NodeObjects, join
from pipeline.times import format_time
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord, Strategy
from pipeline.topics.pods import Owner, PodRecord
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import read_rows
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window, encode_window

PARTITIONS = 2
MEMORY_BYTES = 2**50


def log_of(trace: Trace) -> list[LoggedWindow]:
    """A window of each node in each step, those of a step together."""
    offsets = [0] * PARTITIONS
    records = []
    for step in range(trace.steps):
        for node, name in enumerate(trace.nodes):
            partition = partition_of(name, PARTITIONS)
            window = window_of(trace, node, step, offsets[partition])
            records.append(LoggedWindow(partition, offsets[partition], window))
            offsets[partition] += 1
    return records


def window_of(trace: Trace, node: int, step: int, offset: int) -> Window:
    """The window of the exporter's sample of this step. Its usage is the 90th percentile that
    models learn; unknown usage is missing. A limit that a trace assumed is not set."""
    start_ms = (trace.start_seconds + step * trace.step_seconds) * 1000
    end_ms = start_ms + trace.step_seconds * 1000
    name = trace.nodes[node]
    runs = (trace.node_index == node) & (trace.start <= step) & (step < trace.end)
    rows, pods = [], {}
    for stay in np.flatnonzero(runs).tolist():
        usage = trace.stay_usage(stay)[step - trace.start[stay]] / [1000.0, 1.0]
        uid = trace.pods[stay]
        columns = zip(("cpu_cores_p90", "memory_bytes_p90"), usage.tolist(), strict=True)
        known = {column: value for column, value in columns if not np.isnan(value)}
        rows.append({"kind": "pod", "id": uid, "coverage": 1.0, **known})
        pods[uid] = _pod_row(trace, stay)
    header = SampleHeader(
        node=name, machine_id="m", boot_id="b", epoch=1, sequence=step + 1,
        window_start_ms=start_ms, window_end_ms=end_ms,
    )  # fmt: skip
    allocatable = Resources(
        cpu_millicores=int(trace.allocatable[node, 0]), memory_bytes=MEMORY_BYTES
    )
    policy = HotNodePolicy(pool=trace.pools[node]) if trace.pools else None
    record = NodeRecord(
        node=name, uid=name, capacity=allocatable, allocatable=allocatable, hot_nodes=policy
    )
    node_row = {"kind": "node", "id": "", "coverage": 1.0}
    joined = join(
        read_rows(encode_samples(SampleBatch(header, [node_row, *rows]))),
        NodeObjects(record, pods), Strategy(), sample_offset=offset, appended_ms=end_ms + 250,
    )  # fmt: skip
    return decode_window(encode_window(joined))


def _pod_row(trace: Trace, stay: int) -> PodRow:
    began = trace.start_seconds + int(trace.start[stay]) * trace.step_seconds
    owner = None
    if trace.workloads and trace.workloads[stay]:
        kind, _, name = trace.workloads[stay].split("/")
        owner = Owner(kind=kind, name=name)
    return pod_row(
        PodRecord(
            node=trace.nodes[trace.node_index[stay]], uid=trace.pods[stay],
            cgroup_uid=trace.pods[stay], namespace="trace", name="pod", pod_class="prod",
            phase="Running", created_at=format_time(began), started_at=format_time(began),
            owner=owner, requests=_resources(trace.requests[stay].tolist()),
            limits=_resources(trace.set_limits[stay].tolist()),
        )
    )  # fmt: skip


def _resources(amounts: list[float]) -> Resources:
    cpu, memory = (int(amount) or None for amount in amounts)
    return Resources(cpu_millicores=cpu, memory_bytes=memory)


def records_of(trace: Trace) -> Iterator[tuple[str, bytes]]:
    """The records of the topic, with their keys."""
    for record in log_of(trace):
        yield record.window.header.node, encode_window(record.window)
