"""The commands `explain`, `model inspect` and `model import` with a real broker."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner, Result
from msgspec.structs import replace

from pipeline.agents.bank_settings import model_config
from pipeline.agents.checkpoint_rounds import CheckpointRounds
from pipeline.agents.cluster_state import ClusterStateTopics
from pipeline.agents.fleet_topic import FleetTopic
from pipeline.agents.join_agent import JoinRules
from pipeline.agents.partition_models import ModelRules
from pipeline.agents.recovery import Recovery
from pipeline.agents.refusals import Refused
from pipeline.agents.shard import Shard
from pipeline.agents.window_handover import WindowHandover
from pipeline.cli.main import cli
from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.newest import newest
from pipeline.kafka.partition import partition_of
from pipeline.kafka.partition_log import open_reader
from pipeline.kafka.producer import log_producer
from pipeline.kafka.topic_admin import apply_topics
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.histogram import CPU_LAYOUT
from pipeline.processors.model.model_config import ENTITIES
from pipeline.settings import KafkaSettings, Settings
from pipeline.times import format_time
from pipeline.topics.checkpoints import NodeCheckpoint
from pipeline.topics.codec import decode_pack, encode_pack
from pipeline.topics.nodes import Strategy
from pipeline.topics.registry import CHECKPOINTS, PREDICTIONS, SAMPLES, WINDOWS
from tests.agents.fakes import APPENDED_MS
from tests.agents.logs import window
from tests.broker import flags_of

NODE = "node-7"
WINDOW_COUNT = 12
GROUP = "tide-workers"


@asynccontextmanager
async def owner(kafka: KafkaSettings) -> AsyncIterator[tuple[Shard, CheckpointRounds]]:
    """Load the node's partition as a worker does."""
    settings, client, prefix = Settings(kafka=kafka), client_options(kafka), kafka.topic_prefix
    partition = partition_of(NODE, kafka.partitions)

    async def refuse(topic: str, refused: Refused) -> None:
        raise refused[0][1]

    async with log_producer(client) as output:
        recovery = Recovery(
            member=uuid.uuid4().hex,
            group=GROUP,
            output=output,
            open_reader=partial(open_reader, client),
            cluster_state_topics=ClusterStateTopics(prefix, refuse),
            fleet=FleetTopic(prefix, refuse, 60.0),
            join_rules=JoinRules(prefix, 2, future_tolerance_seconds=60, strategy=Strategy()),
            model_rules=ModelRules(prefix=prefix, statistic="p90"),
            bank=Bank(model_config(settings)),
            handover=WindowHandover(),
            clock=SystemClock(),
        )
        [shard] = [loaded async for loaded in recovery.load_all([partition], {})]
        topic = CHECKPOINTS.full_name(prefix)
        yield shard, CheckpointRounds(shard, output, topic, SystemClock())


async def filled(kafka: KafkaSettings) -> None:
    """Write windows of two nodes, their predictions, and a complete round of checkpoints."""
    await apply_topics(kafka)
    samples, windows = (t.full_name(kafka.topic_prefix) for t in (SAMPLES, WINDOWS))
    place, key = partition_of(NODE, kafka.partitions), NODE.encode()
    async with AIOKafkaProducer(**client_options(kafka)) as producer:
        for step in range(WINDOW_COUNT):
            await producer.send_and_wait(samples, b"a sample", key, partition=place)
            value = window(NODE, step + 1, sample_offset=step)
            await producer.send_and_wait(windows, value, key, partition=place)
    async with owner(kafka) as (_, rounds):
        await rounds.write()


def springtide(kafka: KafkaSettings, *arguments: str) -> Result:
    """Run the command in a thread, because it starts an event loop."""
    return CliRunner().invoke(cli, [*arguments, *flags_of(kafka)], catch_exceptions=False)


async def typed(kafka: KafkaSettings, *arguments: str) -> Result:
    return await asyncio.to_thread(springtide, kafka, *arguments)


async def samples(kafka: KafkaSettings) -> tuple[int, float]:
    """Load the node; return its CPU samples, and its percentile peak before the margin."""
    async with owner(kafka) as (shard, _):
        (peaks,) = shard.model.bank.peaks([NODE])
        at = ENTITIES.index("node")
        return int(peaks.samples[at, 0]), float(peaks.predictors["percentile"].raw[at, 0])


def koordinator_file(folder: Path, uid: str) -> Path:
    now = format_time(APPENDED_MS / 1000 - 3600)
    histogram = {"referenceTimestamp": now, "totalWeight": 500.0, "bucketWeights": {"60": 10_000}}
    path = folder / uid
    path.write_text(json.dumps({"UID": uid, "CPU": histogram, "LastUpdated": now}))
    return path


async def test_explain_inspect_and_import(kafka: KafkaSettings, tmp_path: Path) -> None:
    await filled(kafka)

    shown = await typed(kafka, "explain", NODE, "--resource", "cpu", "--class", "node")
    assert (shown.exit_code, f"node {NODE}" in shown.output) == (0, True), shown.output
    assert "raw, mean + N * stdev: " in shown.output
    shown = await typed(kafka, "explain", NODE, "-o", "json")
    assert json.loads(shown.stdout)["node"] == NODE
    for partitions, arguments, code, message in (
        (2, (NODE, "--predictor", "oracle"), 2, "choose one of percentile"),
        (2, ("nod-7",), 4, f"did you mean {NODE}?"),
        (2, (NODE.upper(),), 4, f"did you mean {NODE}?"),
        (8, (NODE,), 3, "set kafka.partitions (--partitions) to 2"),
    ):
        shown = await typed(replace(kafka, partitions=partitions), "explain", *arguments)
        assert (shown.exit_code, message in shown.output) == (code, True), shown.output

    shown = await typed(kafka, "model", "inspect", NODE, "--pods")
    assert shown.exit_code == 0, shown.output
    assert f"{WINDOW_COUNT} applied, 0 missing" in shown.output
    assert any(line.split()[:1] == ["pod-2"] for line in shown.output.splitlines())
    shown = await typed(kafka, "model", "inspect", NODE, "--row", "pod-2", "-o", "json")
    document = json.loads(shown.stdout)
    assert (document["node"], document["applied"]) == (NODE, WINDOW_COUNT)
    assert [row["entity"] for row in document["items"]] == ["pod-2", "pod-2"]
    shown = await typed(kafka, "model", "inspect", NODE, "--row", "pod-99")
    assert (shown.exit_code, "no model of pod-99" in shown.output) == (2, True)
    assert (await typed(kafka, "model", "inspect", "zebra")).exit_code == 4

    files = [str(koordinator_file(tmp_path, uid)) for uid in ("__node__", "gone")]
    taking = ("model", "import", "--from", "koordinator", "--node", NODE, *files)
    assert (await samples(kafka))[0] == WINDOW_COUNT
    shown = await typed(kafka, *taking)
    assert shown.exit_code == 0, shown.output
    assert "node: cpu 1 buckets; memory unknown, nothing to import" in shown.output
    assert "gone: skipped" in shown.output
    assert await samples(kafka) == (WINDOW_COUNT + 500, CPU_LAYOUT.ends[60])


async def test_an_export_is_imported_bit_for_bit(kafka: KafkaSettings, tmp_path: Path) -> None:
    await filled(kafka)
    file = tmp_path / "node-7.springtide"
    shown = await typed(kafka, "model", "export", NODE, "--to", str(file))
    assert shown.exit_code == 0, shown.output
    assert f"{WINDOW_COUNT} windows applied" in shown.output
    foreign = str(koordinator_file(tmp_path, "__node__"))
    await typed(kafka, "model", "import", "--from", "koordinator", "--node", NODE, foreign)
    assert (await samples(kafka))[0] == WINDOW_COUNT + 500

    putting = ("model", "import", "--from", "springtide", "--node", NODE, str(file))
    shown = await typed(kafka, *putting, "--dry-run")
    assert (shown.exit_code, "nothing was changed" in shown.output) == (0, True), shown.output
    assert (await samples(kafka))[0] == WINDOW_COUNT + 500
    config = tmp_path / "settings.yaml"
    config.write_text("model: {training_statistic: max}")
    shown = await typed(kafka, *putting, "--config", str(config))
    assert (shown.exit_code, "is of model" in shown.output) == (1, True), shown.output
    shown = await typed(kafka, *putting)
    assert (shown.exit_code, "replaces: 8 entities" in shown.output) == (0, True), shown.output
    async with owner(kafka) as (shard, _):
        assert shard.model.bank.encode_state(NODE) == file.read_bytes()
    shown = await typed(kafka, "model", "export", NODE, "--to", str(file))
    assert (shown.exit_code, "already exists" in shown.output) == (2, True)


async def test_models_fitted_offline_are_imported(kafka: KafkaSettings, tmp_path: Path) -> None:
    await filled(kafka)
    trace, models = tmp_path / "trace.csv", str(tmp_path / "models")
    ends = (format_time(APPENDED_MS / 1000 - 86_400 + 300 * i) for i in range(100))
    trace.write_text("\n".join(["window_end,cpu_cores_avg", *(f"{end},6.5" for end in ends)]))
    fit = ["model", "fit", str(trace), "--node", NODE, "--to", models]
    shown = CliRunner().invoke(cli, fit)
    assert shown.exit_code == 0, shown.output
    putting = ("model", "import", "--from", "springtide", "--node", NODE, models)
    shown = await typed(kafka, *putting)
    assert (shown.exit_code, "another machine" in shown.output) == (0, False), shown.output
    async with owner(kafka) as (shard, _):
        state = state_codec.decode(shard.model.bank.encode_state(NODE))
        assert (state.machine_id, state.applied) == ("m", 100)
    found, peak = await samples(kafka)
    assert (found, peak >= 6.5) == (100, True)


async def test_import_is_refused_while_a_worker_runs(kafka: KafkaSettings, tmp_path: Path) -> None:
    await filled(kafka)
    topic = SAMPLES.full_name(kafka.topic_prefix)
    file = str(koordinator_file(tmp_path, "__node__"))
    taking = ("model", "import", "--from", "koordinator", "--node", NODE, file)
    claimed, named = GROUP, f"{kafka.topic_prefix}.another"
    for running, group in ((claimed, "any"), (named, "another")):
        refused = f"workers of the group {running} are running"
        async with AIOKafkaConsumer(topic, **client_options(kafka), group_id=running):
            shown = await typed(kafka, *taking, "--id", group)
            assert (shown.exit_code, refused in shown.output) == (1, True), shown.output
            shown = await typed(kafka, *taking, "--id", group, "--dry-run")
            assert (shown.exit_code, refused in shown.output) == (0, True), shown.output
    assert (await samples(kafka))[0] == WINDOW_COUNT
    shown = await typed(kafka, *taking)
    assert shown.exit_code == 0, shown.output


async def test_deleted_and_damaged_records_are_reported(kafka: KafkaSettings) -> None:
    await filled(kafka)
    place = partition_of(NODE, kafka.partitions)
    async with AIOKafkaProducer(**client_options(kafka)) as producer:

        async def put(topic: Any, key: bytes, value: bytes | None) -> None:
            name = topic.full_name(kafka.topic_prefix)
            await producer.send_and_wait(name, value, key, partition=place)

        # After more records of other nodes than are read at once.
        name = PREDICTIONS.full_name(kafka.topic_prefix)
        for i in range(1200):
            await producer.send(name, b"{}", b"other-%d" % i, partition=place)
        await producer.flush()
        assert (await typed(kafka, "explain", NODE)).exit_code == 0
        await put(PREDICTIONS, NODE.encode(), None)
        assert (await typed(kafka, "explain", NODE)).exit_code == 4
        found = await newest(kafka, CHECKPOINTS, NODE, lambda key: key.startswith(b"node-7@"))
        assert found is not None
        state = decode_pack(NodeCheckpoint, found.value).state
        for damaged, says in (
            (state[:6] + b"\x01\x00" + state[8:], "layout version 1; this release reads"),
            (state[:-1], "its checksum does not match"),
        ):
            value = decode_pack(NodeCheckpoint, found.value)
            await put(CHECKPOINTS, found.key, encode_pack(replace(value, state=damaged)))
            shown = await typed(kafka, "model", "inspect", NODE)
            assert (shown.exit_code, says in shown.output) == (1, True), shown.output
        await put(CHECKPOINTS, f"{NODE}@999999".encode(), b"\x81\xa1")
        shown = await typed(kafka, "model", "inspect", NODE)
        assert (shown.exit_code, f"checkpoint '{NODE}@999999'" in shown.output) == (1, True)
        # A deleted record of another epoch leaves the previous one.
        await put(CHECKPOINTS, f"{NODE}@999999".encode(), None)
        await put(CHECKPOINTS, found.key, found.value)
        await put(CHECKPOINTS, f"{NODE}@1000000".encode(), None)
        shown = await typed(kafka, "model", "inspect", NODE)
        assert shown.exit_code == 0, shown.output
