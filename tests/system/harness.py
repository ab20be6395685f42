"""Run real workers on a real broker under load, disrupt them, and gather the topics' records.

A `Stage` has the topics and the consumer group of one run. `Feed` produces a `Load` step by step
and notes the position of each sample. `Worker` is a process that can be started, killed, paused and
stopped; none outlives the tests. `gather` waits until everything that was produced is in the log,
applied and covered by a complete round of checkpoints, and returns every record of every topic.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from pipeline.kafka.partition import partition_of
from pipeline.kafka.topic_admin import apply_topics
from pipeline.local.process_guard import die_with_parent
from pipeline.settings import KafkaSettings, ModelSettings, Settings, WorkerSettings
from pipeline.topics.checkpoints import RoundMarker, parse_key
from pipeline.topics.codec import decode_pack
from pipeline.topics.windows import decode_window, encode_window, sample_offset_of
from tests.processes import ROOT, environment, is_alive, until
from tests.system.load import Load, Message, partition

SESSION_SECONDS = 12
CHECKPOINT_SECONDS = 2
READ_SECONDS = 600
TOPICS = (
    "windows", "predictions", "node-state", "resources", "alerts", "accuracy", "checkpoints",
    "dead-letters",
)  # fmt: skip
MODEL = ModelSettings(expiration_seconds=60.0, horizon_seconds=60.0, accuracy_interval_seconds=20.0)
"""Short, so that pods expire, and peaks are judged, during a test."""


class Record(NamedTuple):
    """A record of a partition; `at` is the broker's append time in seconds."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    at: float
    headers: dict[str, bytes]


Logs = dict[str, dict[int, list[Record]]]
"""Topic (without prefix) -> partition -> records in order."""


@dataclass(frozen=True)
class Stage:
    """Topics and consumer group of one run."""

    bootstrap: str
    prefix: str
    partitions: int = 4
    replicas: int = 1
    model: ModelSettings = MODEL

    @property
    def settings(self) -> Settings:
        """The settings of the workers of this run."""
        return Settings(
            kafka=KafkaSettings(
                bootstrap_servers=self.bootstrap,
                topic_prefix=self.prefix,
                partitions=self.partitions,
                replication_factor=self.replicas,
            ),
            worker=WorkerSettings(
                id=self.prefix,
                session_timeout_seconds=SESSION_SECONDS,
                checkpoint_interval_seconds=CHECKPOINT_SECONDS,
            ),
            model=self.model,
        )

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"


async def create_stage(
    bootstrap: str, partitions: int = 4, replicas: int = 1, model: ModelSettings = MODEL
) -> Stage:
    """Create topics with a new prefix for one run."""
    stage = Stage(bootstrap, f"system-{uuid4().hex[:8]}", partitions, replicas, model)
    await apply_topics(stage.settings.kafka)
    return stage


def model_flags(model: ModelSettings) -> list[str]:
    """The flags of a worker for the settings of models that a stage changes."""
    return [
        *("--expiration-seconds", str(model.expiration_seconds)),
        *("--horizon-seconds", str(model.horizon_seconds)),
        *("--accuracy-interval-seconds", str(model.accuracy_interval_seconds)),
        *("--predictor", model.predictor, "--predictors", f"[{', '.join(model.predictors)}]"),
    ]


# -- processes


class Worker:
    """A worker process of `stage`, which can be started again after it has ended. Its code is that
    of `tree`."""

    def __init__(
        self,
        stage: Stage,
        directory: Path,
        *,
        instance: str | None = None,
        bug: str = "none",
        options: Sequence[str] = (),
        tree: Path = ROOT,
    ) -> None:
        settings = stage.settings
        self.tree = tree
        self.argv = [
            *(sys.executable, "-m", "tests.system.worker_entry", bug, "worker", "--no-supervise"),
            *("--bootstrap-servers", stage.bootstrap, "--topic-prefix", stage.prefix),
            *("--partitions", str(stage.partitions), "--id", stage.prefix),
            *("--session-timeout-seconds", str(SESSION_SECONDS)),
            *("--checkpoint-interval-seconds", str(CHECKPOINT_SECONDS)),
            *model_flags(settings.model),
            *("--metrics-host", "127.0.0.1", "--metrics-port", "0"),
            *("--data-dir", str(directory / "faust")),
            *(("--instance-id", instance) if instance else ()),
            *options,
        ]
        self.log = directory / f"worker-{uuid4().hex[:6]}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._loads = 0

    def start(self) -> None:
        """Start the process; its output is appended to `log`."""
        self._loads = self.says("partition loaded")
        self.process = _start(self.argv, self.log, self.tree)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds: float = 30) -> int:
        """Send SIGTERM; return the exit code. Fails if the process runs longer than `seconds`."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def starved_seconds(self) -> float:
        """Return `starved_seconds` of the process."""
        return starved_seconds(self.pid)

    def says(self, text: str) -> int:
        """Return how often `text` is in its log."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    async def loaded(self, seconds: float = 120) -> None:
        """Wait until it has loaded partitions since its last start."""
        text = "partition loaded"
        await until(lambda: self.says(text) > self._loads, seconds, self.tail)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start_supervised(stage: Stage, directory: Path, options: Sequence[str] = ()) -> Worker:
    """Start a worker with a supervisor, by the command line of the product."""
    worker = Worker(stage, directory, options=options)
    argv = [word for word in worker.argv if word != "--no-supervise"]
    at = argv.index("tests.system.worker_entry")
    worker.argv = [*argv[:at], "pipeline.cli.main", *argv[at + 2 :]]
    worker.start()
    return worker


def starved_seconds(pid: int) -> float:
    """Return how long a process has waited for a processor since its start."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return max((int(thread.read_text().split()[1]) for thread in threads), default=0) / 1e9


def children(pid: int) -> list[int]:
    """Return the process ids of the running children of a process."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [int(child) for child in found if is_alive(int(child))]


def _start(argv: Sequence[str], log: Path, tree: Path) -> subprocess.Popen[bytes]:
    output: IO[bytes]
    with log.open("ab") as output:
        return subprocess.Popen(
            argv, cwd=log.parent, env=environment(tree), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
        )  # fmt: skip


# -- load


@dataclass
class Feed:
    """Produces a load. `samples` are (partition, offset, node) of each valid sample."""

    stage: Stage
    load: Load
    producer: AIOKafkaProducer
    steps: int = 0
    samples: list[tuple[int, int, str]] = field(default_factory=list)

    async def send(self, messages: Sequence[Message]) -> None:
        """Produce in order, and wait for delivery."""
        pending = []
        for message in messages:
            at = partition(message, self.stage.partitions)
            sent = await self.producer.send(
                self.stage.topic(message.topic), key=message.key, value=message.value, partition=at
            )
            pending.append((message, sent))
        for message, sent in pending:
            metadata = await sent
            if message.topic == "samples":
                self.samples.append((metadata.partition, metadata.offset, message.node))

    async def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            await self.send(list(self.load.step(self.steps)))
            self.steps += 1

    @asynccontextmanager
    async def running(self, every_seconds: float = 0.4) -> AsyncIterator[None]:
        """Produce a window of every node each `every_seconds` in the background."""
        stop = asyncio.Event()

        async def run() -> None:
            while not stop.is_set():
                await self.advance()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), every_seconds)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            stop.set()
            await task


@asynccontextmanager
async def feed(stage: Stage, load: Load) -> AsyncIterator[Feed]:
    """Return a feed of `load` whose nodes and pods are produced."""
    async with AIOKafkaProducer(
        bootstrap_servers=stage.bootstrap, enable_idempotence=True, linger_ms=2,
        request_timeout_ms=90_000, max_request_size=4 << 20,
    ) as producer:  # fmt: skip
        made = Feed(stage, load, producer)
        await made.send(list(load.cluster_state()))
        yield made


async def wait_for_results(stage: Stage, seconds: float = 180) -> None:
    """Wait until every partition that has node states, and at least one, gets some more."""
    tps = [TopicPartition(stage.topic("node-state"), p) for p in range(stage.partitions)]
    async with AIOKafkaConsumer(bootstrap_servers=stage.bootstrap, group_id=None) as consumer:
        before = await consumer.end_offsets(tps)

        async def have_grown() -> bool:
            ends = await consumer.end_offsets(tps)
            grown = {tp for tp in tps if ends[tp] >= before[tp] + 4}
            return bool(grown) and grown.issuperset(tp for tp in tps if before[tp])

        await until(have_grown, seconds)


# -- content of the topics


async def gather(
    stage: Stage,
    samples: Sequence[tuple[int, int, str]],
    *,
    ignore: set[str] | frozenset[str] = frozenset(),
    keep: Callable[[Record], bool] = lambda record: True,
    timeout: float = 150,
) -> Logs:
    """Return all records to `keep`, once every sample (except of nodes in `ignore`) is joined and
    every window is covered by a complete round, or `timeout` after all present ones were read.

    Raises AssertionError if not all are read: what a part of them shows would be no result.
    """
    last: dict[int, int] = {}
    for number, offset, node in samples:
        if node not in ignore:
            last[number] = max(offset, last.get(number, -1))
    logs: Logs = {topic: defaultdict(list) for topic in TOPICS}
    async with AIOKafkaConsumer(
        bootstrap_servers=stage.bootstrap, group_id=None, auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 << 20, fetch_max_wait_ms=200,
    ) as consumer:  # fmt: skip
        tps = [TopicPartition(stage.topic(t), p) for t in TOPICS for p in range(stage.partitions)]
        consumer.assign(tps)
        await _read_to_end(consumer, tps, logs, keep)
        deadline, done_at = time.monotonic() + timeout, None
        while time.monotonic() < deadline:
            await _read(consumer, logs, keep)
            if not (_joined(logs, last) and _covered(logs) and _published(logs)):
                done_at = None
            elif done_at is None:
                done_at = time.monotonic()
            elif time.monotonic() > done_at + 1.0:
                break
        await _read_to_end(consumer, tps, logs, keep)
    return logs


async def _read_to_end(
    consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition], logs: Logs,
    keep: Callable[[Record], bool],
) -> None:  # fmt: skip
    """Read everything that is there now."""
    ends = await consumer.end_offsets(tps)

    async def is_read() -> bool:
        await _read(consumer, logs, keep)
        return all([await consumer.position(tp) >= ends[tp] for tp in tps])

    await until(is_read, READ_SECONDS)


async def _read(consumer: AIOKafkaConsumer, logs: Logs, keep: Callable[[Record], bool]) -> None:
    found = await consumer.getmany(timeout_ms=300, max_records=5000)
    for tp, messages in found.items():
        topic = tp.topic.partition(".")[2]
        records = [
            Record(
                tp.partition, message.offset, message.key or b"", message.value,
                message.timestamp / 1000, dict(message.headers),
            )
            for message in messages
        ]  # fmt: skip
        logs[topic][tp.partition] += filter(keep, records)


def _joined(logs: Logs, last: dict[int, int]) -> bool:
    return all(
        any(sample_offset_of(r.value or b"") >= offset for r in reversed(logs["windows"][at]))
        for at, offset in last.items()
    )


def _covered(logs: Logs) -> bool:
    return all(
        (marker := newest_marker(logs["checkpoints"].get(at, ()))) is not None
        and marker.resume > records[-1].offset
        for at, records in logs["windows"].items()
        if records
    )


def _published(logs: Logs) -> bool:
    """Return whether the newest window has a result, or does not need one."""
    return all(logs["node-state"].get(at) for at, records in logs["windows"].items() if records)


def newest_marker(records: Sequence[Record]) -> RoundMarker | None:
    """Return the marker of the highest epoch."""
    markers: dict[int, RoundMarker] = {}
    for record in records:
        kind, _, epoch = parse_key(record.key)
        if kind == "marker" and record.value is not None:
            markers[epoch] = decode_pack(RoundMarker, record.value)
        elif kind == "marker":
            markers.pop(epoch, None)
    return markers[max(markers)] if markers else None


async def copy_windows(logs: Logs, stage: Stage) -> None:
    """Copy the gathered windows to `windows` of another stage, offset by offset.

    `samples` gets the length that these windows require.
    """
    windows = {
        at: [(record.key, record.value or b"") for record in records]
        for at, records in logs["windows"].items()
    }
    ends = await _write_windows(windows, stage)
    assert ends == {at: records[-1].offset for at, records in logs["windows"].items()}


async def repartition_windows(logs: Logs, stage: Stage) -> None:
    """Copy the gathered windows to the partitions of their nodes in `stage`, which has more.

    Each sample gets the offset that its window has in its partition.
    """
    windows: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for records in logs["windows"].values():
        for record in records:
            mine = windows[partition_of(record.key.decode(), stage.partitions)]
            window = decode_window(record.value or b"")
            if window.type == "window":
                window = msgspec.structs.replace(window, sample_offset=len(mine))
            mine.append((record.key, encode_window(window)))
    await _write_windows(windows, stage)


async def _write_windows(
    windows: Mapping[int, Sequence[tuple[bytes, bytes]]], stage: Stage
) -> dict[int, int]:
    """Write keys and values by partition; return the last offset of each partition."""
    ends: dict[int, int] = {}
    async with AIOKafkaProducer(
        bootstrap_servers=stage.bootstrap, enable_idempotence=True
    ) as producer:
        for at, records in windows.items():
            for key, value in records:
                sent: Any = await producer.send(
                    stage.topic("windows"), key=key, value=value, partition=at
                )
            ends[at] = (await sent).offset
            for _ in range(max(sample_offset_of(value) for _, value in records) + 1):
                await producer.send(stage.topic("samples"), value=b"joined before", partition=at)
    return ends
