"""Two sources that report one node, from samples in a real broker to what an extender explains."""

import asyncio
import json
import subprocess
import time
from typing import Any, Final

import aiohttp
import pytest

from pipeline.clock import SystemClock
from pipeline.kafka.client import client_options
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.local_kafka import LocalKafka
from pipeline.settings import ExtenderSettings, KafkaSettings, Settings
from pipeline.table import NODE_AND_POD_TOPICS, Feed, Table
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.node_state import NodeStateRecord
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.registry import NODE_STATE, NODES, SAMPLES
from pipeline.topics.resource_amounts import Resources
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.broker import latest, messages, own_topics, send
from tests.cluster.roles import worker
from tests.extender.conftest import running
from tests.processes import environment, springtide, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NODE: Final = "n1"
SECONDS: Final = 6
GIB: Final = 2**30
ROOM: Final = Resources(cpu_millicores=8000, memory_bytes=32 * GIB)
POD: Final = {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"containers": []}}
PROMETHEUS, METRICS_SERVER = "prometheus", "metrics-server"


class Sources:
    """Sources of one node, which send windows of six seconds."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        # Windows of a minute and a half ago are judged, and not in the future at the end.
        self._end = int(time.time() - 90) // SECONDS * SECONDS

    async def send(self, windows: int, **cores: float) -> None:
        """Each source, by name, sends as many windows; the exporter is called `exporter`."""
        for _ in range(windows):
            self._end += SECONDS
            for source, used in cores.items():
                data = self._sample(source.replace("_", "-"), used)
                await send(self._kafka, SAMPLES, (NODE, data))

    async def send_as_time_passes(self, **cores: float) -> None:
        self._end = max(self._end, int(time.time()) // SECONDS * SECONDS)
        await asyncio.sleep(max(0.0, self._end + SECONDS - time.time()))
        await self.send(1, **cores)

    def _sample(self, source: str, used: float) -> bytes:
        is_exporter = source == "exporter"
        header = SampleHeader(
            node=NODE, machine_id="m" * is_exporter, boot_id="", epoch=int(is_exporter),
            sequence=self._end // SECONDS, window_start_ms=(self._end - SECONDS) * 1000,
            window_end_ms=self._end * 1000, source="" if is_exporter else source,
        )  # fmt: skip
        seconds = [float(second) for second in range(1, SECONDS + 1)]
        row = {
            "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": used,
            "memory_bytes_avg": used * GIB, "capacity_cpu_cores": 8.0,
            "capacity_memory_bytes": 32.0 * GIB, "points_offset_seconds": seconds,
            "points_cpu_cores": [used] * SECONDS, "points_memory_bytes": [used * GIB] * SECONDS,
        }  # fmt: skip
        return encode_samples(SampleBatch(header, [row]))

    async def state(self) -> NodeStateRecord | None:
        value = (await latest(self._kafka, NODE_STATE)).get(NODE)
        return None if value is None else decode_json(NodeStateRecord, value)

    async def has(self, source: str, disputes: str | None, cores: float, applied: int = 0) -> bool:
        """Whether the newest state is of this usage by `source`, and names the other one."""
        state = await self.state()
        if state is None or (state.source, state.usage.cpu_cores) != (source, cores):
            return False
        if state.counters.applied < applied:
            return False
        return (state.dispute and state.dispute.source) == disputes


@pytest.fixture
async def sources(broker: LocalKafka) -> Sources:
    kafka = own_topics(broker, 2)
    await apply_topics(kafka)
    record = NodeRecord(node=NODE, allocatable=ROOM, capacity=ROOM)
    await send(kafka, NODES, (NODE, encode_json(record)))
    return Sources(kafka)


async def test_a_provider_that_differs_from_an_exporter_is_named_until_it_agrees(
    sources: Sources, tmp_path: Any
) -> None:
    kafka = sources._kafka
    feed = Feed(
        Table(), client=client_options(kafka), prefix=kafka.topic_prefix, clock=SystemClock(),
        topics=NODE_AND_POD_TOPICS,
    )  # fmt: skip
    extender = ExtenderSettings(mode="act", host="127.0.0.1", port=0)
    with worker(Settings(kafka=kafka)):
        async with running(feed, extender) as port, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}"

            async def explained() -> dict[str, Any]:
                async with session.post(f"{url}/v1/explain", json={"pod": POD}) as answer:
                    items = (await answer.json())["items"] if answer.status == 200 else []
                return items[0] if items else {}

            async def is_disputed() -> bool:
                return bool((await explained()).get("dispute"))

            await sources.send(5, exporter=2.0, prometheus=6.0)
            await until(lambda: sources.has("", PROMETHEUS, 2.0), 120, sources.state)
            await until(is_disputed)
            item = await explained()
            dispute = item["dispute"]
            assert dispute["source"] == PROMETHEUS
            assert dispute["usage"] == {"cpu_cores": 6.0, "memory_bytes": 6.0 * GIB}
            assert dispute["believed"] == {"cpu_cores": 2.0, "memory_bytes": 2.0 * GIB}
            # What is believed may be too low.
            assert (item["verdict"], item["estimated"]) == ("estimated", ["cpu", "memory"])
            async with session.get(f"{url}/metrics") as page:
                assert 'odd_nodes{oddity="disputed"} 1.0' in await page.text()
            async with session.get(f"{url}/v1/nodes/{NODE}") as answer:
                assert "disputed" in (await answer.json())["oddities"]
            manifest = tmp_path / "pod.json"
            manifest.write_text(json.dumps({"kind": "Pod", **POD}))
            ran = await asyncio.to_thread(
                subprocess.run,
                springtide("why-not", "-f", str(manifest), NODE, "--extender", url),
                env=environment(), capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert "2000m and 2.0Gi counts, prometheus reports 6000m and 6.0Gi" in ran.stdout, ran

            await sources.send(5, exporter=2.0, prometheus=2.1)
            await until(lambda: sources.has("", None, 2.0, applied=10), 60, sources.state)

            async def is_agreed() -> bool:
                return not await is_disputed()

            await until(is_agreed)


async def test_of_two_providers_the_higher_counts_and_the_other_when_it_dies(
    sources: Sources,
) -> None:
    with worker(Settings(kafka=sources._kafka)):
        await sources.send(8, prometheus=2.0, metrics_server=6.0)
        await until(lambda: sources.has(METRICS_SERVER, PROMETHEUS, 6.0, 8), 120, sources.state)
        state = await sources.state()
        assert state is not None
        assert state.counters.applied == 8, "each window counts once, by one source"
        # The higher one dies. It is sent first: it may have been silent while the test waited.
        await sources.send_as_time_passes(metrics_server=6.0, prometheus=2.0)
        for _ in range(5):
            await sources.send_as_time_passes(prometheus=2.0)
        # What is left counts from the first window on that began, by append time, after a window
        # of silence.
        times: dict[str, list[int]] = {METRICS_SERVER: [], PROMETHEUS: []}
        for message in await messages(sources._kafka, SAMPLES):
            times[read_samples(message.value).header.source].append(message.timestamp)
        last = times[METRICS_SERVER][-1]
        counted = [at for at in times[PROMETHEUS][-5:] if at - last >= 2 * SECONDS * 1000]
        applied = 9 + len(counted)
        await until(lambda: sources.has(PROMETHEUS, None, 2.0, applied), 120, sources.state)
        state = await sources.state()
        assert state is not None
        assert state.counters.applied == applied
