"""Our own samples as a provider: what exporters, or other providers, have published of a window."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipeline.errors import ProviderError, RecordError
from pipeline.kafka.client import client_options, our_errors
from pipeline.processors.provided.fetched_usage import Columns, Fetched, PodName, Window
from pipeline.settings import KafkaSettings
from pipeline.topics.arrow import read_samples
from pipeline.topics.registry import MAX_RECORD_BYTES, SAMPLES

_POLL_MS: Final = 300
_SILENT_POLLS: Final = 100


class Stream:
    """The topic `samples`, read again for each window; made by `open_stream`."""

    def __init__(self, kafka: KafkaSettings, consumer: AIOKafkaConsumer) -> None:
        self._kafka = kafka
        self._consumer = consumer
        name = SAMPLES.full_name(kafka.topic_prefix)
        self._partitions = [TopicPartition(name, p) for p in range(kafka.partitions)]

    async def fetch(self, window: Window) -> Fetched:
        """Of each node the newest of its windows that ended in `window`, as far as it is on the
        topic by now. Raises `ProviderError` if that cannot be read to its end, `KafkaError` if
        there is no broker."""
        found = Fetched()
        ends: dict[str, int] = {}
        with our_errors(self._kafka, "reading samples"):
            async for value in self._since(window.start_ms):
                try:
                    header, rows = await asyncio.to_thread(read_samples, value)
                except RecordError:
                    found.left_out["unreadable"] += 1
                    continue
                newest = ends.get(header.node, 0)
                if window.has(header.window_end_ms) and header.window_end_ms > newest:
                    ends[header.node] = header.window_end_ms
                    _put(found, header.node, rows.to_pylist())
        return found

    async def _since(self, at_ms: int) -> AsyncIterator[bytes]:
        """What was appended at this time or later, up to the present end."""
        consumer = self._consumer
        ends = await consumer.end_offsets(self._partitions)
        starts = await consumer.offsets_for_times(dict.fromkeys(self._partitions, at_ms))
        left = {}
        for tp in self._partitions:
            start = ends[tp] if starts[tp] is None else starts[tp].offset
            consumer.seek(tp, start)
            if start < ends[tp]:
                left[tp] = ends[tp]
        silent = 0
        while left:
            batches = await consumer.getmany(*left, timeout_ms=_POLL_MS)
            for messages in batches.values():
                for message in messages:
                    yield message.value or b""
            for tp in [tp for tp in left if await consumer.position(tp) >= left[tp]]:
                del left[tp]
            silent = 0 if batches else silent + 1
            if silent > _SILENT_POLLS:
                raise ProviderError(f"{next(iter(left)).topic} cannot be read", may_pass=True)


def _put(found: Fetched, node: str, rows: list[Columns]) -> None:
    for pod in [pod for pod in found.pods if pod.node == node]:
        del found.pods[pod]
    for row in rows:
        stated = {name: value for name, value in row.items() if value is not None}
        kind, uid = stated.pop("kind"), stated.pop("id")
        if kind == "node":
            found.nodes[node] = stated
        elif kind == "pod":
            found.pods[PodName("", "", uid, node)] = stated


@asynccontextmanager
async def open_stream(kafka: KafkaSettings) -> AsyncIterator[Stream]:
    """Our own samples. Raises `BrokerUnavailableError` if no broker answers."""
    consumer = AIOKafkaConsumer(
        **client_options(kafka),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=MAX_RECORD_BYTES,
    )
    with our_errors(kafka, "reading samples"):
        try:
            await consumer.start()
            name = SAMPLES.full_name(kafka.topic_prefix)
            consumer.assign([TopicPartition(name, p) for p in range(kafka.partitions)])
            yield Stream(kafka, consumer)
        finally:
            await consumer.stop()
