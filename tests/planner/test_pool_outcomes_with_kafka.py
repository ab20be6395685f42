"""Outcomes of a pool through a real broker: windows, predictions, planner, and a worker that was
killed, whose peaks are those of its log alone."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer

from pipeline.agents.bank_settings import model_config
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.window_batch import WindowBatch
from pipeline.settings import KafkaSettings, ModelSettings, Settings
from pipeline.times import parse_time
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.pods import pod_key
from pipeline.topics.pool_means import pool_key
from pipeline.topics.pool_outcomes import OUTCOMES, PoolOutcomesRecord
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.registry import FLEET, NODES, PODS, PREDICTIONS, SAMPLES, WINDOWS
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import Window, decode_window
from tests.broker import messages
from tests.planner.test_planner import Cluster
from tests.planner.test_pool_means_with_kafka import worker
from tests.processes import until
from tests.table.records import any_pod, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("a", "b", "c")
STEP_MS, HALF_HOUR_MS = 300_000, 1_800_000
MODEL = ModelSettings(
    predictors=("percentile", "calibrated"), predictor_options={"calibrated": {"risk": 0.1}},
    horizon_seconds=21_600,
)  # fmt: skip
OPTIONS = (
    "--predictors", "[percentile, calibrated]", "--predictor-options", "{calibrated: {risk: 0.1}}",
    "--horizon-seconds", "21600",
)  # fmt: skip


class Nodes:
    """Nodes with a pod of Prod each, and their samples."""

    def __init__(self, kafka: KafkaSettings, producer: AIOKafkaProducer) -> None:
        self._kafka, self._cluster = kafka, Cluster(kafka, producer)
        self._random = np.random.default_rng(1)
        self.planner = self._cluster.planner

    async def create(self) -> None:
        policy, room = HotNodePolicy(pool="gold"), Resources(cpu_millicores=10_000)
        for name in NAMES:
            record = NodeRecord(node=name, hot_nodes=policy, allocatable=room)
            await self._cluster.write(NODES, name, record)
            uid = f"{name}-pod"
            pod = any_pod(uid, requests=Resources(cpu_millicores=4000, memory_bytes=2**31))
            key = pod_key(name, uid)
            await self._cluster.send(PODS, name, encode_json(running(pod, name)), key)

    async def send(self, ends_ms: range) -> None:
        """A window of five minutes of each node with each of these ends."""
        for end_ms in ends_ms:
            for name in NAMES:
                header = SampleHeader(
                    node=name, machine_id=name, boot_id="b", epoch=1, sequence=end_ms // STEP_MS,
                    window_start_ms=end_ms - STEP_MS, window_end_ms=end_ms,
                )  # fmt: skip
                usage = {
                    "cpu_cores_p90": float(self._random.lognormal(-0.5, 0.3)),
                    "memory_bytes_p90": 2.0**28,
                }
                rows = [
                    {"kind": "node", "id": "", "coverage": 1.0, **usage},
                    {"kind": "pod", "id": f"{name}-pod", "coverage": 1.0, **usage},
                ]
                sample = encode_samples(SampleBatch(header, rows))
                await self._cluster.send(SAMPLES, name, sample)

    async def newest(self) -> dict[str, PredictionRecord]:
        """The newest prediction of each node."""
        records = await messages(self._kafka, PREDICTIONS)
        decoded = (decode_json(PredictionRecord, each.value) for each in records if each.value)
        ordered = sorted(decoded, key=lambda record: record.position)
        return {record.node: record for record in ordered}

    async def pools(self) -> dict[bytes, PoolOutcomesRecord]:
        """The outcomes on the topic."""
        records = await messages(self._kafka, FLEET)
        return {
            each.key: decode_json(PoolOutcomesRecord, each.value)
            for each in records if each.value and each.key.startswith(OUTCOMES)
        }  # fmt: skip

    async def windows(self) -> dict[str, list[Window]]:
        """All windows of each node, in the order of the log."""
        logs: dict[str, list[Window]] = {name: [] for name in NAMES}
        for each in sorted(await messages(self._kafka, WINDOWS), key=lambda one: one.offset):
            logs[each.key.decode()].append(decode_window(each.value))
        return logs


@asynccontextmanager
async def created(kafka: KafkaSettings) -> AsyncIterator[Nodes]:
    await apply_topics(kafka)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        nodes = Nodes(kafka, producer)
        await nodes.create()
        yield nodes


def recomputed(windows: list[Window], record: PredictionRecord) -> Bank:
    """The models of a node after the window of its prediction, from the log alone."""
    bank = Bank(model_config(Settings(model=MODEL)))
    for window in windows:
        if window.header.window_end_ms <= 1000 * parse_time(record.as_of):
            bank.apply(WindowBatch([window]).training(MODEL.training_statistic))
    return bank


async def test_a_killed_worker_predicts_with_the_outcomes_of_its_pool(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    last_ms = int(1000 * time.time()) // HALF_HOUR_MS * HALF_HOUR_MS
    cut_ms = last_ms - 3_600_000
    async with created(kafka) as nodes:

        async def have_outcomes() -> bool:
            newest = await nodes.newest()
            stated = [record.outcomes for record in newest.values()]
            return len(stated) == len(NAMES) and all(own and own.cpu.distribution for own in stated)

        async with worker(kafka, tmp_path / "first", *OPTIONS):
            await nodes.send(range(last_ms - 9 * 3_600_000, cut_ms + 1, STEP_MS))
            await until(have_outcomes, 300)
        async with nodes.planner():
            await until(nodes.pools, 300)
        pool = (await nodes.pools())[pool_key("gold", OUTCOMES)]
        assert (pool.nodes, pool.risk, pool.horizon_seconds) == (3, 0.1, 21_600)

        async def are_current() -> bool:
            newest = await nodes.newest()
            return all(1000 * parse_time(own.as_of) > cut_ms for own in newest.values())

        async with worker(kafka, tmp_path / "second", *OPTIONS):
            await nodes.send(range(cut_ms + STEP_MS, last_ms + 1, STEP_MS))
            await until(are_current, 300)
        newest, windows = await nodes.newest(), await nodes.windows()
    for name in NAMES:
        having = {
            window.header.window_end_ms: window.node.pool_outcomes
            for window in windows[name] if window.node.pool_outcomes is not None
        }  # fmt: skip
        assert having[last_ms - HALF_HOUR_MS] == pool
        record = newest[name]
        (peaks,) = recomputed(windows[name], record).peaks([name])
        assert record.outcomes == peaks.outcomes
        prod = peaks.predictors["calibrated"]
        terms = record.classes["prod"].terms["calibrated"]
        assert terms["share"].cpu == float(np.nanmax(prod.terms["share"][:, 0]))
