"""Records and objects that no role may trust, of every kind that a broker or API server accepts."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from pipeline.kafka.client import client_options
from pipeline.kafka.follow import TopicPartition
from pipeline.kafka.partition import partition_of
from pipeline.processors.join.node_facts import RAW_ALLOCATABLE
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.loadaware.node_thresholds import ANNOTATION as THRESHOLDS
from pipeline.processors.overcommit.third_party import ALLOCATIONS
from pipeline.processors.policy.normalization import ENABLED, RATIO
from pipeline.topics.codec import UnreadableValue
from pipeline.topics.registry import DEAD_LETTERS, MAX_RECORD_BYTES, SAMPLES, TOPICS
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from tests.cluster.objects import Object, node, pod
from tests.kafka.raw_batches import hostile_batches, produce_raw
from tests.system.harness import Record, Stage

HOSTILE: Final = "hostile"
KEYS: Final = (HOSTILE.encode(), b"\xff\xfe")
STRANGERS: Final = 100
"""Nodes that have no Node object, and send samples."""
EXTENDED_RESOURCES: Final = 5000
BOMB_BYTES: Final = 2 * MAX_RECORD_BYTES
"""Brokers that compact a topic hold each record in memory, and end where it does not fit."""

_ANNOTATIONS: Final = (THRESHOLDS, RESERVATION, ALLOCATIONS, RATIO, ENABLED, RAW_ALLOCATABLE)
_VALUES: Final = (
    None, b"", b"\xff" * 100, b"{}", b"[]", b"null", b"[" * 100_000, b"\x91" * 100_000,
    b'{"node": "hostile", "version": 99}', b'{"node": "hostile", "as_of": "never", "epoch": -1}',
)  # fmt: skip


class Sent(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


def is_hostile(record: Record) -> bool:
    """Whether a record of a result topic was sent by `send_records`."""
    return record.key in KEYS or isinstance(record.value, UnreadableValue)


async def send_records(
    stage: Stage, producer: AIOKafkaProducer, rng: random.Random, nodes: Sequence[str], now_ms: int
) -> None:
    """Send hostile batches and values to every topic; the broker may refuse some."""
    client = client_options(stage.settings.kafka)
    topics = [topic for topic in TOPICS if topic is not DEAD_LETTERS]
    sent = [
        Sent(topic.name, rng.randrange(topic.partition_count(stage.partitions)), key, value)
        for topic in topics
        for key in KEYS
        for value in _VALUES
    ]
    sent += hostile_samples(nodes, stage.partitions, now_ms)
    for each in rng.sample(sent, len(sent)):
        with suppress(KafkaError):
            await producer.send(
                stage.topic(each.topic), key=each.key, value=each.value, partition=each.partition
            )
    await producer.flush()
    for topic in topics:
        for batch in hostile_batches(KEYS[0], KEYS[0], BOMB_BYTES).values():
            partition = rng.randrange(topic.partition_count(stage.partitions))
            tp = TopicPartition(stage.topic(topic.name), partition)
            with suppress(KafkaError):
                await produce_raw(client, tp, batch)


def hostile_samples(nodes: Sequence[str], partitions: int, now_ms: int) -> Iterator[Sent]:
    """Yield samples that lie about their machine, time, node, values or size."""
    victim, other = nodes[0], nodes[1]
    yield _sample(victim, partitions, now_ms, machine_id="impostor")
    yield _sample(victim, partitions, now_ms, epoch=2)
    yield _sample(victim, partitions, now_ms + 3_600_000)
    yield _sample(victim, partitions, now_ms - 3_600_000)
    yield _sample(victim, partitions, now_ms)._replace(key=other.encode())
    yield _sample(victim, partitions, now_ms)._replace(key=None)
    of_other = (partition_of(victim, partitions) + 1) % partitions
    yield _sample(victim, partitions, now_ms)._replace(partition=of_other)
    for value in (float("nan"), -1.0, float("inf"), 1e300):
        yield _sample("absurd", partitions, now_ms, cores=value)
    for number in range(STRANGERS):
        yield _sample(f"stranger-{number}", partitions, now_ms)
    whole = _sample(other, partitions, now_ms)
    assert whole.value is not None
    yield whole._replace(value=whole.value[: len(whole.value) // 2])
    yield whole._replace(value=bytes(SAMPLES.max_bytes - 501))


def _sample(
    name: str, partitions: int, end_ms: int, *, machine_id: str = "", epoch: int = 1,
    cores: float = 1.0,
) -> Sent:  # fmt: skip
    end_ms = end_ms // 2000 * 2000
    header = SampleHeader(
        node=name, machine_id=machine_id or f"machine-{name}", boot_id="b", epoch=epoch, sequence=1,
        window_start_ms=end_ms - 2000, window_end_ms=end_ms,
    )  # fmt: skip
    usage = {"cpu_cores_avg": cores, "cpu_cores_p90": cores, "memory_bytes_p90": cores * 2.0**30}
    row: dict[str, Any] = {"kind": "node", "id": "", "coverage": 1.0} | usage
    value = encode_samples(SampleBatch(header, [row]))
    return Sent("samples", partition_of(name, partitions), name.encode(), value)


def hostile_objects() -> list[Object]:
    """Objects that the API server accepts: absurd amounts, invalid annotations, too many names."""
    names = {f"example.com/resource-{number}": "1" for number in range(EXTENDED_RESOURCES)}
    invalid = dict.fromkeys(_ANNOTATIONS, "{not JSON")
    absurd = node(HOSTILE, annotations=invalid, cpu="9E", memory="7Ei")
    absurd["status"]["allocatable"] = absurd["status"]["capacity"] | names
    labels = {"koordinator.sh/priority-class": "koord-nonsense"}
    return [
        absurd,
        pod(HOSTILE, on=HOSTILE, labels=labels, cpu="9E", memory="7Ei"),
        pod(f"{HOSTILE}-waiting", labels=labels, memory="7Ei"),
    ]


def listing(objects: Sequence[Mapping[str, Any]]) -> str:
    """The objects as one manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
