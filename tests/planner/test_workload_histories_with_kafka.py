"""Histories of workloads through a real broker: a worker that was killed published one, and the pod
that comes to another node of the next worker begins with it."""

import time
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer

from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.settings import KafkaSettings
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import Owner, pod_key
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import FLEET, NODES, PODS, PREDICTIONS, SAMPLES, WINDOWS
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window
from pipeline.topics.workload_histories import HOUR_MS, WorkloadHistoryRecord, history_key
from pipeline.topics.workloads import Workload
from tests.broker import messages
from tests.planner.test_planner import Cluster
from tests.planner.test_pool_means_with_kafka import worker
from tests.planner.test_pool_outcomes_with_kafka import OPTIONS, STEP_MS, recomputed
from tests.processes import until
from tests.table.records import any_pod, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WEB = Workload("d", "Deployment", "web")
OFTEN = ("--checkpoint-interval-seconds", "2", "--recommendation-interval-seconds", "2")


class Moves:
    """A Deployment with a pod on the node `old`, and then one on `new`."""

    def __init__(self, kafka: KafkaSettings, producer: AIOKafkaProducer) -> None:
        self._kafka, self._cluster = kafka, Cluster(kafka, producer)

    async def create(self) -> None:
        for name in ("old", "new"):
            record = NodeRecord(node=name, allocatable=Resources(cpu_millicores=10_000))
            await self._cluster.write(NODES, name, record)
            pod = any_pod(
                f"{name}-pod", owner=Owner(kind="ReplicaSet", name="web-5d4"),
                labels={"pod-template-hash": "5d4"},
                requests=Resources(cpu_millicores=4000, memory_bytes=2**31),
            )  # fmt: skip
            key = pod_key(name, pod.uid)
            await self._cluster.send(PODS, name, encode_json(running(pod, name)), key)

    async def send(self, name: str, ends_ms: range) -> None:
        """A window of five minutes of a node with each of these ends."""
        for end_ms in ends_ms:
            header = SampleHeader(
                node=name, machine_id=name, boot_id="b", epoch=1, sequence=end_ms // STEP_MS,
                window_start_ms=end_ms - STEP_MS, window_end_ms=end_ms,
            )  # fmt: skip
            usage = {"cpu_cores_p90": 0.5 + end_ms // STEP_MS % 7 / 70, "memory_bytes_p90": 2.0**28}
            rows = [
                {"kind": "node", "id": "", "coverage": 1.0, **usage},
                {"kind": "pod", "id": f"{name}-pod", "coverage": 1.0, **usage},
            ]
            await self._cluster.send(SAMPLES, name, encode_samples(SampleBatch(header, rows)))

    async def histories(self) -> dict[bytes, WorkloadHistoryRecord]:
        """The histories on the topic."""
        return {
            each.key: decode_json(WorkloadHistoryRecord, each.value)
            for each in await messages(self._kafka, FLEET) if each.value
        }  # fmt: skip

    async def newest(self, name: str) -> PredictionRecord | None:
        """The newest prediction of a node."""
        values = [each.value for each in await messages(self._kafka, PREDICTIONS) if each.value]
        own = [
            each for value in values if (each := decode_json(PredictionRecord, value)).node == name
        ]
        return max(own, key=lambda record: record.position, default=None)

    async def windows(self, name: str) -> list[Window]:
        """All windows of a node, in the order of the log."""
        log = sorted(await messages(self._kafka, WINDOWS), key=lambda one: one.offset)
        return [decode_window(each.value) for each in log if each.key == name.encode()]


async def test_a_pod_on_another_node_begins_with_the_history_of_its_workload(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    last_ms = int(1000 * time.time()) // HOUR_MS * HOUR_MS
    moved_ms = last_ms - HOUR_MS
    await apply_topics(kafka)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        moves = Moves(kafka, producer)
        await moves.create()
        async with worker(kafka, tmp_path / "first", *OPTIONS, *OFTEN):
            await moves.send("old", range(moved_ms - 9 * HOUR_MS + STEP_MS, moved_ms + 1, STEP_MS))

            async def is_whole() -> bool:
                own = (await moves.histories()).get(history_key(WEB))
                return own is not None and own.at_ms > moved_ms - 3 * HOUR_MS

            await until(is_whole, 300)
        history = (await moves.histories())[history_key(WEB)]

        async def is_current() -> bool:
            record = await moves.newest("new")
            return record is not None and 1000 * parse_time(record.as_of) > last_ms - HOUR_MS // 2

        async with worker(kafka, tmp_path / "second", *OPTIONS):
            await moves.send("new", range(moved_ms + STEP_MS, last_ms + 1, STEP_MS))
            await until(is_current, 300)
        windows, record = await moves.windows("new"), await moves.newest("new")
    joined = [window.node.workload_histories for window in windows]
    assert joined == [(history,)] + [()] * (len(windows) - 1)
    assert record is not None
    (peaks,) = recomputed(windows, record).peaks(["new"])
    share = record.classes["prod"].terms["calibrated"]["share"].cpu
    own_share = peaks.predictors["calibrated"].terms["share"][:, 0]
    assert share == float(np.nanmax(own_share))
    # A stranger's is 0.7.
    assert share < 0.5
