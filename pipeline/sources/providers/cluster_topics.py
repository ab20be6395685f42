"""What the topics say that a provider needs to know: which nodes there are, where pods run, and
which nodes an exporter speaks for.

Of a pod its place is kept, half a kilobyte each. Samples are looked at from some windows back, and
of each no more than its header.
"""

import asyncio
from typing import Final, NamedTuple

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from pipeline.clock import Clock
from pipeline.errors import BrokerUnavailableError, RecordError
from pipeline.kafka.client import COMMITTED, client_options, our_errors
from pipeline.logs import get_logger
from pipeline.processors.provided.fetched_usage import Window
from pipeline.processors.provided.usage_samples import MACHINE_ID, Place
from pipeline.settings import KafkaSettings
from pipeline.topics.arrow import metadata_of, read_header
from pipeline.topics.codec import Record, decode_json
from pipeline.topics.pods import split_pod_key
from pipeline.topics.registry import MAX_RECORD_BYTES, NODES, PODS, SAMPLES
from pipeline.topics.samples import SampleHeader

log = get_logger(__name__)

WINDOWS_SERVED: Final = 3
"""An exporter that was silent for so many windows, the longer ones of both, has gone."""

_AT_ONCE: Final = 1000
_POLL_MS: Final = 250
_SILENCE_SECONDS: Final = 60.0


class _Pod(Record, frozen=True, kw_only=True):
    """What is read of a record of `springtide.pods`."""

    cgroup_uid: str
    namespace: str
    name: str


class _Placed(NamedTuple):
    """Where a pod is, and the key of the record that says so."""

    key: bytes
    place: Place


class Known:
    """Kept up to date by a `Follower`. `nodes` are the names that `springtide.nodes` has, `peopled`
    counts the pods of each node that has some."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.peopled: dict[str, int] = {}
        self._places: dict[tuple[str, str], _Placed] = {}
        self._names: dict[bytes, tuple[str, str]] = {}
        self._exported: dict[str, Window] = {}

    @property
    def pods(self) -> int:
        """How many pods are known by name."""
        return len(self._places)

    def place(self, namespace: str, name: str) -> Place | None:
        """Where the pod of this name is; None where nobody says."""
        found = self._places.get((namespace, name))
        return None if found is None else found.place

    def served(self, window: Window) -> set[str]:
        """The nodes of which an exporter has published lately, as seen from `window`."""
        own_ms = window.end_ms - window.start_ms
        return {
            node
            for node, last in self._exported.items()
            if window.end_ms - last.end_ms
            <= WINDOWS_SERVED * max(own_ms, last.end_ms - last.start_ms)
        }

    # -- one record each

    def put_node(self, key: bytes, value: bytes | None) -> None:
        """A record of `springtide.nodes`."""
        name = key.decode(errors="replace")
        if value is None:
            self.nodes.discard(name)
        else:
            self.nodes.add(name)

    def put_pod(self, key: bytes, value: bytes | None) -> None:
        """A record of `springtide.pods`. Raises `RecordError` for one that cannot be read."""
        node, _ = split_pod_key(key)
        pod = decode_json(_Pod, value) if value is not None and node else None
        name = self._names.pop(key, None)
        if name is not None:
            self._count(node, -1)
            # A namesake may have come before this one's tombstone.
            if (placed := self._places.get(name)) is not None and placed.key == key:
                del self._places[name]
        if pod is not None:
            self._count(node, 1)
            self._names[key] = name = (pod.namespace, pod.name)
            self._places[name] = _Placed(key, Place(node, pod.cgroup_uid))

    def _count(self, node: str, pods: int) -> None:
        self.peopled[node] = self.peopled.get(node, 0) + pods
        if not self.peopled[node]:
            del self.peopled[node]

    def put_sample(self, value: bytes | None) -> None:
        """A record of `springtide.samples`. Raises `RecordError` for one that cannot be read."""
        if value is None:
            return
        header = _header(value)
        if header.machine_id != MACHINE_ID:
            window = Window(header.window_start_ms, header.window_end_ms)
            last = self._exported.get(header.node)
            if last is None or last.end_ms < window.end_ms:
                self._exported[header.node] = window


def _header(value: bytes) -> SampleHeader:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(value))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise RecordError(f"no sample: {error}") from error
    return read_header(metadata_of(schema))


class Follower:
    """Reads the topics into a `Known`; made anew for each turn."""

    def __init__(self, kafka: KafkaSettings, clock: Clock, known: Known, back_ms: int) -> None:
        """Samples are read from `back_ms` on, milliseconds since 1970."""
        self._kafka = kafka
        self._clock = clock
        self._known = known
        self._back_ms = back_ms
        self._names = {t.full_name(kafka.topic_prefix): t for t in (NODES, PODS, SAMPLES)}
        self._caught_up = asyncio.Event()

    async def caught_up(self) -> None:
        """Return when all is known that lay in the topics at the start."""
        await self._caught_up.wait()

    async def run(self) -> None:
        """Follow for ever. Raises `KafkaError` if the topics cannot be read."""
        consumer = AIOKafkaConsumer(
            **client_options(self._kafka),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=MAX_RECORD_BYTES,
            **COMMITTED,
        )
        with our_errors(self._kafka, "following nodes, pods and samples"):
            try:
                await consumer.start()
                left = await self._seek(consumer)
                heard = self._clock.monotonic()
                while True:
                    found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_AT_ONCE)
                    for messages in found.values():
                        for message in messages:
                            self._apply(message)
                    if found:
                        heard = self._clock.monotonic()
                    for tp in [tp for tp in left if await consumer.position(tp) >= left[tp]]:
                        del left[tp]
                    if not left and not self._caught_up.is_set():
                        self._caught_up.set()
                        log.info("caught up", nodes=len(self._known.nodes), pods=self._known.pods)
                    if left and self._clock.monotonic() - heard > _SILENCE_SECONDS:
                        raise BrokerUnavailableError(f"{next(iter(left)).topic} cannot be read")
            finally:
                await consumer.stop()

    async def _seek(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        """Go to where reading begins; gives the ends up to which something is there."""
        partitions = [
            TopicPartition(name, p) for name in self._names for p in range(self._kafka.partitions)
        ]
        consumer.assign(partitions)
        starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        samples = [tp for tp in partitions if self._names[tp.topic] is SAMPLES]
        since = await consumer.offsets_for_times(dict.fromkeys(samples, self._back_ms))
        for tp in samples:
            starts[tp] = ends[tp] if since[tp] is None else since[tp].offset
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        return {tp: end for tp, end in ends.items() if starts[tp] < end}

    def _apply(self, message: ConsumerRecord) -> None:
        topic, key, value = self._names[message.topic], message.key or b"", message.value
        try:
            if topic is SAMPLES:
                self._known.put_sample(value)
            elif topic is PODS:
                self._known.put_pod(key, value)
            else:
                self._known.put_node(key, value)
        except RecordError:
            return  # for the join to refuse
