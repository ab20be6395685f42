"""A thousand hostile records among valid ones, through a real broker and a real worker.

Each hostile record has its expected outcome: a dead letter with its reason, a value replaced by
null and counted, or a counter of its node. Every valid record is applied.
"""

import hashlib
import json
import random
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.kafka.client import client_options
from pipeline.kafka.follow import TopicPartition
from pipeline.kafka.partition import partition_of
from pipeline.local.local_kafka import LocalKafka
from pipeline.times import format_time
from pipeline.topics.codec import decode_json
from pipeline.topics.node_state import Counters, NodeStateRecord
from pipeline.topics.registry import DEAD_LETTERS, SAMPLES
from pipeline.topics.sample_rows import read_samples
from pipeline.topics.samples import SampleBatch, SampleHeader, encode_samples
from pipeline.topics.windows import decode_window
from tests.broker import messages
from tests.kafka.raw_batches import hostile_batches, produce_raw
from tests.processes import until
from tests.system import oracle
from tests.system.harness import Logs, Stage, Worker, create_stage, feed, gather
from tests.system.load import WINDOW_SECONDS, Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES = tuple(f"node-{n}" for n in range(8))
# (cpu average, memory p90 of a pod): every kind of invalid value.
BAD_VALUES = (float("nan"), -1.0, float("inf"), float("-inf"), 1e300)
BAD_COLUMNS = (
    "cpu_cores_avg", "cpu_cores_p90", "memory_bytes_max", "network_receive_bytes_per_second",
)  # fmt: skip
DEAD = {
    "truncated": "undecodable", "json": "undecodable", "text": "undecodable",
    "no bytes": "undecodable", "no value": "undecodable", "empty batch": "invalid",
    "version": "unsupported_version", "long name": "invalid", "spaces": "invalid",
    "not its key": "key_mismatch", "no key": "key_mismatch", "other partition": "invalid",
    "future": "future_window", "huge junk": "undecodable", "huge id": "invalid",
}  # fmt: skip
OF_EACH = 55
OF_EACH_HUGE = 4


class ScriptedRecord(NamedTuple):
    """A record to produce. `reason` is the reason of its dead letter, None if it is joined."""

    partition: int
    key: bytes | None
    value: bytes | None
    reason: str | None
    node: str = ""


@dataclass
class Script:
    """The records of one run in order, and the expected final counters of each node."""

    stage: Stage
    rng: random.Random
    base_ms: int
    sent: list[ScriptedRecord] = field(default_factory=list)
    counters: dict[str, Counters] = field(default_factory=dict)
    bad_values: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def sample(self, node: str, step: int, epoch: int = 1, **row: Any) -> bytes:
        """Return the sample of `node` that ends `step` windows after the base."""
        end = self.base_ms + step * WINDOW_SECONDS * 1000
        header = SampleHeader(
            node=node, machine_id="m", boot_id="b", epoch=epoch, sequence=step,
            window_start_ms=end - WINDOW_SECONDS * 1000, window_end_ms=end,
        )  # fmt: skip
        good = {
            "kind": "node", "id": "", "coverage": 1.0, "cpu_cores_avg": 2.0, "cpu_cores_p90": 2.5,
            "memory_bytes_max": 2e9, "memory_bytes_p90": 1e9, "capacity_cpu_cores": 8.0,
            "network_receive_bytes_per_second": 1.0,
        }  # fmt: skip
        pod = {"kind": "pod", "id": "pod-1", "coverage": 1.0, "cpu_cores_p90": 0.5}
        return encode_samples(SampleBatch(header, [good | row, pod]))

    def good(self, node: str, value: bytes) -> None:
        at = partition_of(node, self.stage.partitions)
        self.sent.append(ScriptedRecord(at, node.encode(), value, None, node))

    def count(self, node: str, **more: int) -> None:
        old = self.counters.get(node, Counters())
        new = {name: getattr(old, name) + by for name, by in more.items()}
        self.counters[node] = Counters(**{f: getattr(old, f) for f in old.__struct_fields__} | new)

    def mark(self, node: str, **steps: int) -> None:
        """Set counters that are times to the ends of windows, given as steps."""
        times = {name: self.base_ms / 1000 + step * WINDOW_SECONDS for name, step in steps.items()}
        texts = {name: format_time(seconds) for name, seconds in times.items()}
        self.counters[node] = msgspec.structs.replace(self.counters[node], **texts)

    def dead(self, kind: str) -> None:
        """Add an invalid record of this kind with the key of a random node."""
        rng, node = self.rng, self.rng.choice(NODES)
        at, key = partition_of(node, self.stage.partitions), node.encode()
        value: bytes | None = self.sample(node, rng.randrange(1, 50))
        assert value is not None
        match kind:
            case "truncated":
                value = value[: rng.randrange(1, len(value) - 16)]
            case "json":
                value = json.dumps({"node": node, "cpu_cores": rng.random()}).encode()
            case "text":
                # The first byte never begins JSON: a line of JSON before junk is "invalid".
                value = b"\xff" + rng.randbytes(rng.randrange(1, 2000))
            case "no bytes":
                value = b""
            case "no value":
                value = None
            case "empty batch":
                value = encode_samples(SampleBatch(self._header(node)))
            case "version":
                value = self.sample(node, 1).replace(_version(1), _version(2))
            case "long name":
                key = b"n" * 300
                value = self.sample(key.decode(), 1)
            case "spaces":
                key = b"node with spaces"
                value = self.sample(key.decode(), 1)
            case "not its key":
                value = self.sample(rng.choice([n for n in NODES if n != node]), 1)
            case "no key":
                key = b""
            case "other partition":
                at = (at + 1) % self.stage.partitions
            case "future":
                value = self.sample(node, 100_000)
            case "huge junk":
                value = b"\xff" + rng.randbytes(SAMPLES.max_bytes - 501)
            case "huge id":
                rows = [{"kind": "node", "id": ""}, {"kind": "pod", "id": "u" * (2 << 19)}]
                value = encode_samples(SampleBatch(self._header(node), rows))
        self.sent.append(ScriptedRecord(at, key, value, DEAD[kind]))
        self.kinds[kind] += 1

    def _header(self, node: str) -> SampleHeader:
        return SampleHeader(
            node=node, machine_id="m", boot_id="b", epoch=1, sequence=0,
            window_start_ms=self.base_ms, window_end_ms=self.base_ms + 5000,
        )  # fmt: skip


def _version(number: int) -> bytes:
    return b'"version":%d,' % number


def write(stage: Stage, seed: int) -> Script:
    """Return 1,000 hostile and 1,000 valid records, shuffled; each node's records are in order."""
    script = Script(stage, random.Random(seed), Load(seed).base_seconds * 1000)
    rng = script.rng
    dead = [kind for kind in DEAD for _ in range(OF_EACH_HUGE if "huge" in kind else OF_EACH)]
    rng.shuffle(dead)
    counted = ["duplicate", "late", "gap", "second exporter", "bad value"]
    others = [counted[n % 5] for n in range(1000 - len(dead))]
    rng.shuffle(others)
    steps = dict.fromkeys(NODES, 0)
    while dead or others:
        node = rng.choice(NODES)
        steps[node] += 1
        kind = others.pop() if others and rng.random() < 0.4 else "good"
        if kind != "good":
            script.kinds[kind] += 1
        if kind == "gap" and steps[node] > 1:
            script.count(node, gaps=3)
            steps[node] += 3
            script.mark(node, last_gap_at=steps[node])
        row: dict[str, Any] = {}
        if kind == "bad value":
            column = rng.choice(BAD_COLUMNS)
            row = {column: rng.choice(BAD_VALUES)}
            script.bad_values[node, column] += 1
            script.count(node, bad_values=1)
            script.mark(node, last_bad_value_at=steps[node])
        script.good(node, script.sample(node, steps[node], **row))
        script.count(node, applied=1)
        if kind == "duplicate":
            script.good(node, script.sample(node, steps[node]))
            script.count(node, duplicate=1)
        elif kind == "second exporter":
            script.good(node, script.sample(node, steps[node], epoch=2))
            script.count(node, second_exporter=1)
        elif kind == "late" and steps[node] > 1:
            script.good(node, script.sample(node, steps[node] - 1))
            script.count(node, late=1)
        for _ in range(rng.randrange(3)):
            if dead:
                script.dead(dead.pop())
    # The last record of each node is valid, so its state has all counters.
    for node in NODES:
        script.good(node, script.sample(node, steps[node] + 1))
        script.count(node, applied=1)
    return script


async def produce(stage: Stage, script: Script) -> list[int]:
    """Produce the script; return the offsets of its records."""
    async with feed(stage, Load(0, nodes=0)) as made:
        topic = stage.topic("samples")
        pending = [
            await made.producer.send(topic, key=s.key, value=s.value, partition=s.partition)
            for s in script.sent
        ]
        return [(await one).offset for one in pending]


def metrics(worker: Worker) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the worker's metrics by (name, labels in order)."""
    (line,) = [li for li in worker.log.read_text().splitlines() if '"metrics page"' in li]
    page = json.loads(line)
    url = f"http://{page['host']}:{page['port']}/metrics"
    text = urllib.request.urlopen(url, timeout=60).read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_thousand_hostile_records_among_valid_ones(
    broker: LocalKafka, tmp_path: Path
) -> None:
    stage = await create_stage(broker.bootstrap_servers)
    script = write(stage, seed=7)
    assert script.kinds.total() == 1000
    assert set(script.kinds) >= {*DEAD, "duplicate", "late", "gap", "second exporter", "bad value"}
    worker = Worker(stage, tmp_path)
    worker.start()
    await worker.loaded()
    offsets = await produce(stage, script)
    good = [
        (sent.partition, offset, sent.node)
        for sent, offset in zip(script.sent, offsets, strict=True)
        if sent.reason is None
    ]
    logs = await gather(stage, good)
    assert worker.is_running(), worker.tail()
    assert worker.says("partition loaded") == stage.partitions

    check_dead_letters(stage, script, offsets, logs)
    check_node_states(script, logs)
    check_bad_values(logs)
    check_metrics(script, worker)
    expected = oracle.undisturbed(logs["windows"], stage.settings)
    assert oracle.sample_problems(logs, good, set()) == []
    assert oracle.differences(logs, expected) == []
    assert sum(len(records) for records in logs["windows"].values()) == len(good)

    # Batches that no ordinary producer sends, as aiokafka cannot read them.
    expected_reasons = await produce_hostile_batches(stage, script)
    # The worker continues: the next valid sample is applied within seconds.
    again = Script(stage, random.Random(1), script.base_ms)
    again.good(NODES[0], again.sample(NODES[0], 590))
    before = metrics(worker)[APPLIED]
    await produce(stage, again)
    await until(lambda: metrics(worker)[APPLIED] > before)
    found = await unreadable(stage)
    for error, reason in zip(found, expected_reasons, strict=True):
        assert reason in error
    assert worker.stop() == 0


async def unreadable(stage: Stage) -> list[str]:
    """The errors of dead letters of batches that could not be read."""
    letters = [dict(each.headers) for each in await messages(stage.settings.kafka, DEAD_LETTERS)]
    return [each["error"].decode() for each in letters if each["reason"] == b"unreadable"]


async def produce_hostile_batches(stage: Stage, script: Script) -> list[str]:
    """Produce the batches to the partition of the first node; return the expected reasons."""
    tp = TopicPartition(stage.topic("samples"), partition_of(NODES[0], stage.partitions))
    batches = hostile_batches(NODES[0].encode(), script.sample(NODES[0], 580))
    for batch in batches.values():
        await produce_raw(client_options(stage.settings.kafka), tp, batch)
    return list(batches)


APPLIED = ("springtide_worker_windows_total", (("status", "applied"),))


def check_dead_letters(stage: Stage, script: Script, offsets: list[int], logs: Logs) -> None:
    """Check that each refused record has one dead letter with its position and reason."""
    letters: dict[tuple[int, int], Any] = {}
    for records in logs["dead-letters"].values():
        for record in records:
            headers = {name: value.decode() for name, value in record.headers.items()}
            assert headers["topic"] == stage.topic("samples")
            place = (int(headers["partition"]), int(headers["offset"]))
            assert place not in letters
            letters[place] = (record, headers)
    wanted = 0
    for sent, offset in zip(script.sent, offsets, strict=True):
        if sent.reason is None:
            assert (sent.partition, offset) not in letters
            continue
        wanted += 1
        record, headers = letters[sent.partition, offset]
        value = sent.value or b""
        assert headers["reason"] == sent.reason, headers
        assert headers["error"]
        assert int(headers["length"]) == len(value)
        assert headers["sha256"] == hashlib.sha256(value).hexdigest()
        assert (record.value, record.key) == (value[: 64 * 1024], sent.key or b"")
    assert len(letters) == wanted


def check_node_states(script: Script, logs: Logs) -> None:
    newest: dict[str, NodeStateRecord] = {}
    for records in logs["node-state"].values():
        for record in records:
            newest[record.key.decode()] = decode_json(NodeStateRecord, record.value or b"")
    assert {node: state.counters for node, state in newest.items()} == script.counters


def check_bad_values(logs: Logs) -> None:
    """Check that exactly the counted values are null."""
    found = 0
    for records in logs["windows"].values():
        for record in records:
            window = decode_window(record.value or b"")
            row = read_samples(window.rows.sample.data).rows[0]
            null = {column for column in BAD_COLUMNS if column not in row}
            assert null == set(window.bad_values)
            assert set(window.bad_values.values()) <= {1}
            found += len(null)
    assert found > 20


def check_metrics(script: Script, worker: Worker) -> None:
    page = metrics(worker)
    for reason, count in Counter(sent.reason for sent in script.sent if sent.reason).items():
        labels = (("reason", reason), ("topic", "samples"))
        assert page["springtide_worker_dead_letters_total", labels] == count
    columns = Counter[str]()
    for (_, column), count in script.bad_values.items():
        columns[column] += count
    for column, count in columns.items():
        assert page["springtide_worker_bad_values_total", (("column", column),)] == count
    for status in ("applied", "duplicate", "late", "second_exporter"):
        total = sum(getattr(counters, status) for counters in script.counters.values())
        assert page["springtide_worker_windows_total", (("status", status),)] == total
